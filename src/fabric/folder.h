// The private folder in which a job's sockets stand while its ranks meet.
#pragma once

#include <sys/types.h>

#include <string>

namespace tide::fabric {

// A new folder, mode 0700, random name, in $TIDE_RUNTIME_DIR, else in $XDG_RUNTIME_DIR where that can be written and is
// short enough for a socket's path, else in /tmp. Throws Error(invalid_argument) for a TIDE_RUNTIME_DIR that cannot be
// used.
class RuntimeFolder {
 public:
  RuntimeFolder();
  ~RuntimeFolder() { remove(); }
  RuntimeFolder(const RuntimeFolder&) = delete;
  RuntimeFolder& operator=(const RuntimeFolder&) = delete;

  // Path of the one socket of this folder.
  std::string socket_path() const;

  // Idempotent; does nothing in a forked child.
  void remove();

 private:
  std::string path_;
  pid_t process_;
};

// Removes a socket and its folder that another process has made and can no longer remove. Leaves alone whatever is not
// a folder of this user, named and protected as RuntimeFolder does it.
void remove_abandoned(const std::string& socket_path);

}  // namespace tide::fabric
