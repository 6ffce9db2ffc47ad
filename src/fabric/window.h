// Memory that several processes map: sealed memfds. It has no name in any file system and goes with the last process
// that maps it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "fabric/descriptor.h"

namespace tide::fabric {

int64_t page_bytes();
int64_t whole_pages(int64_t bytes);  // at least one

// A new memory of whole_pages(bytes), zero, which can neither grow nor shrink. No space is reserved yet. `what` names
// it in errors. Throws Error(no_space) with the size.
Descriptor create_memory(const std::string& what, int64_t bytes);

// Reserves bytes [begin, end), so that a later store cannot fail for want of memory. `between` is called every 64 MiB
// and may throw. Throws Error(no_space) with the sizes.
void reserve(const Descriptor& memory, const std::string& what, int64_t begin, int64_t end,
             const std::function<void()>& between);

// Bytes that this machine can still give to new shared memory: the least of the kernel's estimate and of what the
// control groups (version 2) of this process leave. Empty where neither can be read.
std::optional<int64_t> available_memory();

// A mapping, readable and writable. Forked children inherit it: tensors that live in it stay readable in them.
class Window {
 public:
  Window() = default;
  // Throws Error(mismatch) when the memory has another size than whole_pages(bytes) or is not sealed, which would let a
  // peer take pages away under us; Error(no_space) with the size when it cannot be mapped.
  Window(const Descriptor& memory, const std::string& what, int64_t bytes);
  ~Window();
  Window(Window&& other) noexcept;
  Window& operator=(Window&& other) noexcept;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace tide::fabric
