#include "fabric/window.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "fabric/os_error.h"
#include "fmt/format.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace tide::fabric {
namespace {

constexpr int64_t kReserveStep = int64_t{64} << 20;
constexpr int kSeals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;

}  // namespace

int64_t page_bytes() {
  static const int64_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

int64_t whole_pages(int64_t bytes) {
  const int64_t page = page_bytes();
  return std::max<int64_t>(1, bytes / page + (bytes % page != 0 ? 1 : 0)) * page;
}

Descriptor create_memory(const std::string& what, int64_t bytes) {
  const int64_t size = whole_pages(bytes);
  // Over this limit ftruncate would not only fail, but raise a signal that ends the process.
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      static_cast<uint64_t>(size) > limit.rlim_cur) {
    throw Error(ErrorCode::no_space, fmt::format("cannot create {} of {} bytes: files are limited to {} bytes; raise "
                                                 "`ulimit -f`",
                                                 what, size, limit.rlim_cur));
  }
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  Descriptor memory(memfd_create("tide", kFlags | MFD_NOEXEC_SEAL));
  // Kernels before 6.3 do not know the last flag.
  if (!memory && errno == EINVAL) memory = Descriptor(memfd_create("tide", kFlags));
  if (!memory) throw os_error(fmt::format("create {} of {} bytes", what, size), errno);
  if (ftruncate(memory.get(), size) != 0) throw os_error(fmt::format("create {} of {} bytes", what, size), errno);
  if (fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) {
    throw os_error(fmt::format("seal {} of {} bytes", what, size), errno);
  }
  return memory;
}

void reserve(const Descriptor& memory, const std::string& what, int64_t begin, int64_t end,
             const std::function<void()>& between) {
  for (int64_t at = begin; at < end;) {
    if (between) between();
    const int64_t step = std::min(kReserveStep, end - at);
    if (fallocate(memory.get(), 0, at, step) == 0) {
      at += step;
    } else if (errno != EINTR) {
      throw os_error(fmt::format("reserve {}, {} of {} bytes in", what, at - begin, end - begin), errno);
    }
  }
}

Window::Window(const Descriptor& memory, const std::string& what, int64_t bytes) {
  const int64_t size = whole_pages(bytes);
  struct stat status {};
  if (fstat(memory.get(), &status) != 0) throw os_error(fmt::format("look at {}", what), errno);
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  if (status.st_size != size || seals < 0 || (seals & kSeals) != kSeals) {
    throw Error(ErrorCode::mismatch, fmt::format("{} has {} bytes and seals {:#x}, {} bytes and seals {:#x} were "
                                                 "expected: run the same build on every rank",
                                                 what, status.st_size, seals, size, kSeals));
  }
  void* mapped = mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (mapped == MAP_FAILED) throw os_error(fmt::format("map {} of {} bytes", what, size), errno);
  data_ = static_cast<std::byte*>(mapped);
  bytes_ = size;
}

Window::~Window() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

Window::Window(Window&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Window& Window::operator=(Window&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace tide::fabric
