#include "fabric/folder.h"

#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include "fabric/os_error.h"
#include "fmt/format.h"
#include "tide/error.h"

namespace tide::fabric {
namespace {

constexpr std::string_view kPrefix = "tide-";
constexpr std::string_view kPattern = "/tide-XXXXXX";
constexpr std::string_view kSocket = "/socket";

bool short_enough(std::string_view parent) {
  return parent.size() + kPattern.size() + kSocket.size() < sizeof(sockaddr_un::sun_path);
}

bool usable(const char* parent) { return access(parent, W_OK | X_OK) == 0; }

std::string parent_folder() {
  if (const char* given = std::getenv("TIDE_RUNTIME_DIR"); given != nullptr && *given != '\0') {
    if (!usable(given)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("TIDE_RUNTIME_DIR is '{}', where no folder can be made: {}; name a folder that this user "
                              "can write",
                              given, std::generic_category().message(errno)));
    }
    if (!short_enough(given)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("TIDE_RUNTIME_DIR is '{}', too long for a socket's path: name one of at most {} bytes",
                              given, sizeof(sockaddr_un::sun_path) - kPattern.size() - kSocket.size() - 1));
    }
    return given;
  }
  if (const char* given = std::getenv("XDG_RUNTIME_DIR"); given != nullptr && *given != '\0') {
    if (short_enough(given) && usable(given)) return given;
  }
  return "/tmp";
}

}  // namespace

RuntimeFolder::RuntimeFolder() : path_(parent_folder().append(kPattern)), process_(getpid()) {
  if (mkdtemp(path_.data()) == nullptr) throw os_error(fmt::format("make a folder {}", path_), errno);
}

std::string RuntimeFolder::socket_path() const { return std::string(path_).append(kSocket); }

void RuntimeFolder::remove() {
  if (path_.empty() || getpid() != process_) return;
  unlink(socket_path().c_str());
  rmdir(path_.c_str());
  path_.clear();
}

void remove_abandoned(const std::string& socket_path) {
  if (!std::string_view(socket_path).ends_with(kSocket)) return;
  const std::string folder = socket_path.substr(0, socket_path.size() - kSocket.size());
  const size_t slash = folder.rfind('/');
  if (slash == std::string::npos || !std::string_view(folder).substr(slash + 1).starts_with(kPrefix)) return;
  struct stat status {};
  if (lstat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return;
  if (status.st_uid != geteuid() || (status.st_mode & 0777) != 0700) return;
  if (lstat(socket_path.c_str(), &status) == 0 && !S_ISSOCK(status.st_mode)) return;
  unlink(socket_path.c_str());
  rmdir(folder.c_str());
}

}  // namespace tide::fabric
