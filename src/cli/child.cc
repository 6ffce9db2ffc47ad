#include "cli/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

namespace tide::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostText = 1 << 16;

// Reads until the other end is closed, which a grandchild may keep open, or the time is over.
std::string read_until(int from, Clock::time_point deadline) {
  std::string text;
  std::array<char, 4096> block{};
  while (text.size() < kMostText) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) break;
    pollfd polled{from, POLLIN, 0};
    const int ready = ::poll(&polled, 1, static_cast<int>(left.count()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) break;
    const ssize_t got = ::read(from, block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(block.data(), static_cast<size_t>(got));
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

// In the child: `body` returns its exit status.
Answer run(const std::function<int()>& body, std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {};
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    ::dup2(null, STDIN_FILENO);
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(null, STDERR_FILENO);
    ::_exit(body());
  }
  ::close(ends[1]);
  Answer answer;
  if (child > 0) {
    ::setpgid(child, child);
    answer.text = read_until(ends[0], deadline);
    // It may have closed its output and live on.
    int status = 0;
    pid_t ended = 0;
    while ((ended = ::waitpid(child, &status, WNOHANG)) == 0 && Clock::now() < deadline) ::usleep(1000);
    ::kill(-child, SIGKILL);
    if (ended == 0) ::waitpid(child, nullptr, 0);
    answer.ended = ended == child;
    if (answer.ended && WIFEXITED(status)) answer.status = WEXITSTATUS(status);
  }
  ::close(ends[0]);
  return answer;
}

}  // namespace

Answer ask(const std::vector<std::string>& command, std::chrono::milliseconds patience) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  return run(
      [&] {
        ::execvp(arguments.front(), arguments.data());
        return 127;
      },
      patience);
}

Answer ask(const std::function<std::string()>& question, std::chrono::milliseconds patience) {
  return run(
      [&] {
        const std::string text = question();
        return ::write(STDOUT_FILENO, text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1;
      },
      patience);
}

}  // namespace tide::cli
