// Features of the kernel that sessions rely on, each tried and not looked up.
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

#include "cli/findings.h"
#include "fabric/folder.h"
#include "fmt/format.h"
#include "tide/error.h"

namespace tide::cli {
namespace {

std::string reason() { return std::generic_category().message(errno); }

Finding tried(const std::string& what, bool works, const std::string& lost, const std::string& advice) {
  if (works) return {what, Standing::ok, "works", "", ""};
  return {what, Standing::broken, reason(), lost, advice};
}

bool shares_sealed_memory() {
  const int memory = ::memfd_create("tide doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memory < 0) return false;
  const bool works =
      ::fallocate(memory, 0, 0, 4096) == 0 && ::fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0;
  const int error = errno;
  ::close(memory);
  errno = error;
  return works;
}

bool sees_deaths() {
  const long process = ::syscall(SYS_pidfd_open, ::getpid(), 0);
  if (process < 0) return false;
  ::close(static_cast<int>(process));
  return true;
}

// A wait for another value than the word holds comes back at once and says so.
bool waits_on_futex() {
  uint32_t word = 1;
  return ::syscall(SYS_futex, &word, FUTEX_WAIT, 0, nullptr, nullptr, 0) == -1 && errno == EAGAIN;
}

Finding private_folder() {
  try {
    const fabric::RuntimeFolder folder;
    return {"private folder for sockets", Standing::ok, folder.socket_path(), "", ""};
  } catch (const Error& error) {
    return {"private folder for sockets", Standing::broken, error.what(), "ranks cannot meet",
            "set TIDE_RUNTIME_DIR to a folder of yours that can be written"};
  }
}

}  // namespace

void look_at_kernel(Findings& findings) {
  utsname system{};
  ::uname(&system);
  findings.push_back(
      {"kernel", Standing::info, fmt::format("{} {} {}", system.sysname, system.release, system.machine), "", ""});
  findings.push_back(tried("sealed shared memory", shares_sealed_memory(), "sessions have no memory to share",
                           "run on Linux 3.17 or newer, and let the container call memfd_create"));
  findings.push_back(tried("death of a peer (pidfd)", sees_deaths(), "a dead rank would go unnoticed",
                           "run on Linux 5.3 or newer, and let the container call pidfd_open"));
  findings.push_back(tried("sleeping on memory (futex)", waits_on_futex(), "ranks cannot wait for each other",
                           "let the container call futex"));
  findings.push_back(private_folder());
}

}  // namespace tide::cli
