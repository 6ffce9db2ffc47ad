#include <cerrno>
#include <fstream>
#include <system_error>

#include "fmt/format.h"
#include "tide/error.h"
#include "tide/group_file.h"

namespace tide {

std::string read_file(const std::string& path, int64_t most_bytes) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::invalid_argument, fmt::format("file '{}' {}", path, what));
  };
  const auto unreadable = [&] {
    refuse(fmt::format("cannot be read ({}): give a file that exists and is readable",
                       std::generic_category().message(errno)));
  };
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) unreadable();
  // Read up to the limit and not by the size it claims: a pipe has none, and a file may grow.
  std::string text;
  std::string block(1 << 16, '\0');
  while (file) {
    file.read(block.data(), static_cast<std::streamsize>(block.size()));
    text.append(block, 0, static_cast<size_t>(file.gcount()));
    if (static_cast<int64_t>(text.size()) > most_bytes) {
      refuse(fmt::format("has more than {} bytes: give a smaller one", most_bytes));
    }
  }
  if (file.bad()) unreadable();
  return text;
}

}  // namespace tide
