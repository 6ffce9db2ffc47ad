#include "fabric/launch.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <system_error>

#include "fabric/descriptor.h"
#include "fabric/launcher_store.h"
#include "fabric/os_error.h"
#include "fabric/socket.h"
#include "fmt/format.h"

extern char** environ;

namespace tide::fabric {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::array kEnding = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr std::array kPassed = {SIGUSR1, SIGUSR2};
constexpr int kExecFailed = 127;

// Signals of this thread come through a descriptor while this lives.
class Signals {
 public:
  Signals() {
    sigset_t taken;
    sigemptyset(&taken);
    for (const int number : kEnding) sigaddset(&taken, number);
    for (const int number : kPassed) sigaddset(&taken, number);
    sigaddset(&taken, SIGCHLD);
    descriptor_ = Descriptor(signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!descriptor_) throw os_error("take signals", errno);
    pthread_sigmask(SIG_BLOCK, &taken, &mask_before_);
    // Where it is ignored, the kernel throws exit statuses away.
    struct sigaction by_default {};
    by_default.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &by_default, &child_before_);
  }
  ~Signals() {
    sigaction(SIGCHLD, &child_before_, nullptr);
    pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  const sigset_t& mask_before() const { return mask_before_; }

  // The next signal other than SIGCHLD, if there is one; waits at most `limit` for any.
  std::optional<int> next(milliseconds limit) const {
    pollfd polled{descriptor_.get(), POLLIN, 0};
    poll(&polled, 1, static_cast<int>(limit.count()));
    signalfd_siginfo info{};
    while (read(descriptor_.get(), &info, sizeof(info)) == sizeof(info)) {
      if (info.ssi_signo != SIGCHLD) return static_cast<int>(info.ssi_signo);
    }
    return {};
  }

 private:
  Descriptor descriptor_;
  sigset_t mask_before_{};
  struct sigaction child_before_ {};
};

// Everything that a child needs between fork and exec, where nothing may be allocated.
struct Start {
  std::vector<std::string> environment;
  std::vector<char*> arguments, variables;

  Start(const LaunchOptions& options, int32_t rank, const std::string& store, const std::string& job) {
    const std::array<std::string, 4> own = {fmt::format("TIDE_RANK={}", rank),
                                            fmt::format("TIDE_WORLD={}", options.ranks),
                                            fmt::format("TIDE_STORE={}", store), fmt::format("TIDE_JOB={}", job)};
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string_view text = *variable;
      const std::string_view name = text.substr(0, text.find('=') + 1);
      bool replaced = false;
      for (const std::string& setting : own) replaced = replaced || (!name.empty() && setting.starts_with(name));
      if (!replaced) environment.emplace_back(text);
    }
    environment.insert(environment.end(), own.begin(), own.end());
    for (std::string& variable : environment) variables.push_back(variable.data());
    variables.push_back(nullptr);
    for (const std::string& argument : options.command) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
  }
};

class Job {
 public:
  Job(const LaunchOptions& options, const Signals& signals) : options_(options), signals_(signals) {}

  // Whatever happens, no process is left.
  ~Job() {
    for (Rank& rank : ranks_) {
      if (rank.ended) continue;
      kill(-rank.process, SIGKILL);
      while (waitpid(rank.process, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  void start(const std::string& store) {
    const std::string job = options_.job.empty() ? fmt::format("tide-{}", random_hex(8)) : options_.job;
    Descriptor null(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!null) throw os_error("open /dev/null", errno);
    const bool keep_input = isatty(STDIN_FILENO) == 0;
    for (int32_t r = 0; r < options_.ranks; ++r) {
      start_one(Start(options_, r, store, job), r == 0 && keep_input ? Descriptor() : Descriptor(dup_of(null)));
    }
  }

  int wait() {
    while (running() > 0) {
      if (const std::optional<int> number = signals_.next(next_wait())) pass(*number);
      collect();
      escalate();
    }
    return signal_ != 0 ? 128 + signal_ : status_;
  }

 private:
  struct Rank {
    pid_t process = 0;
    bool ended = false;
  };
  enum class Stage { running, failed, terminated, killed };

  static int dup_of(const Descriptor& descriptor) {
    const int copy = fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 3);
    if (copy < 0) throw os_error("start a rank", errno);
    return copy;
  }

  void start_one(const Start& start, const Descriptor& input) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw os_error("start a rank", errno);
    Descriptor failure(ends[0]), report(ends[1]);
    const pid_t launcher = getpid();
    const pid_t process = fork();
    if (process < 0) throw os_error(fmt::format("start rank {}", ranks_.size()), errno);
    if (process == 0) become(start, input, report, launcher);
    // In both processes, so that neither has to wait for the other to have done it.
    setpgid(process, process);
    ranks_.push_back({process, false});
    report.close();
    int number = 0;
    ssize_t got = 0;
    while ((got = read(failure.get(), &number, sizeof(number))) < 0 && errno == EINTR) {
    }
    if (got != sizeof(number)) return;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("cannot run '{}': {}; give a program that exists and may be run", options_.command.front(),
                            std::generic_category().message(number)));
  }

  // In the child.
  [[noreturn]] void become(const Start& start, const Descriptor& input, const Descriptor& report, pid_t launcher) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(kExecFailed);
    if (input) dup2(input.get(), STDIN_FILENO);
    sigprocmask(SIG_SETMASK, &signals_.mask_before(), nullptr);
    environ = const_cast<char**>(start.variables.data());
    execvp(start.arguments.front(), start.arguments.data());
    const int number = errno;
    (void)!write(report.get(), &number, sizeof(number));
    _exit(kExecFailed);
  }

  size_t running() const {
    size_t count = 0;
    for (const Rank& rank : ranks_) count += rank.ended ? 0 : 1;
    return count;
  }

  milliseconds next_wait() const {
    if (stage_ == Stage::running || stage_ == Stage::killed) return milliseconds(500);
    const auto left = std::chrono::ceil<milliseconds>(next_stage_ - Clock::now());
    return std::clamp(left, milliseconds(0), milliseconds(500));
  }

  void pass(int number) {
    for (const int passed : kPassed) {
      if (number == passed) {
        send(number);
        return;
      }
    }
    if (signal_ != 0) {
      next_stage_ = Clock::now();
      stage_ = Stage::terminated;
      return;
    }
    signal_ = number;
    send(number);
    if (stage_ == Stage::terminated || stage_ == Stage::killed) return;
    stage_ = Stage::failed;
    next_stage_ = Clock::now() + options_.stop_grace;
  }

  void send(int number) const {
    for (const Rank& rank : ranks_) {
      if (!rank.ended) kill(-rank.process, number);
    }
  }

  void collect() {
    for (Rank& rank : ranks_) {
      siginfo_t info{};
      if (rank.ended) continue;
      // Looked at before it is reaped: until then nobody else can get its number, nor that of its group.
      const int looked = waitid(P_PID, static_cast<id_t>(rank.process), &info, WEXITED | WNOHANG | WNOWAIT);
      if (looked != 0 && errno == EINTR) continue;
      if (looked == 0 && info.si_pid == 0) continue;
      // Reaped by a stranger in this process: its status is gone, and nobody can say that it was 0.
      const int status = looked != 0 ? 1 : info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
      if (looked == 0 && (status != 0 || stage_ != Stage::running)) {
        kill(-rank.process, SIGKILL);
      }
      if (looked == 0) waitpid(rank.process, nullptr, 0);
      rank.ended = true;
      if (status == 0) continue;
      if (status_ == 0) status_ = status;
      if (stage_ != Stage::running) continue;
      stage_ = Stage::failed;
      next_stage_ = Clock::now() + options_.failure_grace;
    }
  }

  void escalate() {
    if (stage_ == Stage::running || stage_ == Stage::killed || Clock::now() < next_stage_) return;
    if (stage_ == Stage::failed) {
      send(SIGTERM);
      // A stopped process takes no other signal.
      send(SIGCONT);
      stage_ = Stage::terminated;
      next_stage_ = Clock::now() + options_.stop_grace;
    } else {
      send(SIGKILL);
      stage_ = Stage::killed;
    }
  }

  const LaunchOptions& options_;
  const Signals& signals_;
  std::vector<Rank> ranks_;
  Stage stage_ = Stage::running;
  Clock::time_point next_stage_;
  int status_ = 0;
  int signal_ = 0;
};

}  // namespace

int launch(const LaunchOptions& options) {
  if (options.ranks < 1) {
    throw Error(ErrorCode::invalid_argument, fmt::format("ranks is {}: start at least 1", options.ranks));
  }
  if (options.command.empty() || options.command.front().empty()) {
    throw Error(ErrorCode::invalid_argument, "the command is empty: name a program to run");
  }
  StoreServer store;
  const Signals signals;
  Job job(options, signals);
  job.start(store.address());
  store.serve();
  return job.wait();
}

}  // namespace tide::fabric
