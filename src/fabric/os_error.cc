#include "fabric/os_error.h"

#include <cerrno>
#include <system_error>

#include "fmt/format.h"

namespace tide::fabric {

Error os_error(const std::string& doing, int number) {
  // Thread-safe, unlike strerror.
  const std::string why = std::generic_category().message(number);
  switch (number) {
    case EMFILE:
      return Error(ErrorCode::no_space,
                   fmt::format("cannot {}: this process has no file descriptors left; raise `ulimit -n`", doing));
    case ENFILE:
      return Error(ErrorCode::no_space,
                   fmt::format("cannot {}: the machine has no file descriptors left; raise fs.file-max", doing));
    case ENOMEM:
    case ENOSPC:
    case ENOBUFS:
    case EDQUOT:
    case EFBIG:
      return Error(ErrorCode::no_space, fmt::format("cannot {}: {}; ask for less or free some", doing, why));
    default:
      return Error(ErrorCode::system, fmt::format("cannot {}: {}", doing, why));
  }
}

}  // namespace tide::fabric
