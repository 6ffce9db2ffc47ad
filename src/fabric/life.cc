#include "fabric/life.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include "fabric/os_error.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace tide::fabric {
namespace {

void warn_once() {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  std::fputs(
      "tide: this kernel refuses pidfd_open (Linux 5.3 has it): the death of a rank whose child processes live on is "
      "seen only at the deadline\n",
      stderr);
}

}  // namespace

Life open_life() {
  // Close-on-exec by definition.
  Descriptor self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (self) return {std::move(self), {}};
  if (errno != ENOSYS && errno != EPERM && errno != EINVAL) throw os_error("open a pidfd of this process", errno);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw os_error("open a pipe", errno);
  warn_once();
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

bool ended(short revents) { return (revents & (POLLIN | POLLHUP | POLLERR)) != 0; }

}  // namespace tide::fabric
