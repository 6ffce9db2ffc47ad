// tide launch: starts the ranks of a job on this machine.
#include "fabric/launch.h"

#include <csignal>
#include <ctime>
#include <memory>

#include "cli/commands.h"
#include "cli/text.h"
#include "fmt/format.h"
#include "tide/error.h"

namespace tide::cli {
namespace {

constexpr double kMostSeconds = 1e7;

struct Options {
  std::string ranks, deadline = "0", grace = "10", job;
  std::vector<std::string> command;
};

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// Sends this process SIGTERM once, which ends the job as a user's would.
class Alarm {
 public:
  explicit Alarm(std::chrono::milliseconds after) {
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGTERM;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer_) != 0) {
      throw Error(ErrorCode::system, "no timer is left for --deadline: raise ulimit -i, or leave it out");
    }
    itimerspec due{};
    due.it_value.tv_sec = static_cast<time_t>(after.count() / 1000);
    due.it_value.tv_nsec = static_cast<long>(after.count() % 1000) * 1'000'000;
    timer_settime(timer_, 0, &due, nullptr);
  }
  ~Alarm() { timer_delete(timer_); }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  bool expired() const {
    itimerspec left{};
    timer_gettime(timer_, &left);
    return left.it_value.tv_sec == 0 && left.it_value.tv_nsec == 0;
  }

 private:
  timer_t timer_{};
};

int run_launch(const Options& options) {
  fabric::LaunchOptions launch;
  launch.ranks = static_cast<int32_t>(parse_whole("--ranks", options.ranks, 1, 1024));
  launch.command = options.command;
  launch.job = options.job;
  launch.failure_grace = milliseconds(parse_seconds("--grace", options.grace, kMostSeconds));
  const auto deadline = milliseconds(parse_seconds("--deadline", options.deadline, kMostSeconds));
  if (deadline.count() == 0) return fabric::launch(launch);
  const Alarm alarm(deadline);
  const int status = fabric::launch(launch);
  if (status != 128 + SIGTERM || !alarm.expired()) return status;
  throw Error(ErrorCode::timeout,
              fmt::format("the job ran longer than --deadline {} s and was ended: give it more time",
                          excerpt(options.deadline)));
}

}  // namespace

void add_launch(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("launch", "Start the ranks of a job on this machine: tide launch --ranks 4 -- CMD ARG...");
  command->add_option("--ranks", options->ranks, "Processes to start")->required()->type_name("N");
  command->add_option("--deadline", options->deadline, "Seconds after which the job is ended; 0 for none")
      ->capture_default_str()
      ->type_name("S");
  command->add_option("--grace", options->grace, "Seconds that ranks have to report after the first failure")
      ->capture_default_str()
      ->type_name("S");
  command->add_option("--job", options->job, "Name of the job (default: a random one)")->type_name("NAME");
  command->add_option("command", options->command, "Program and arguments, after --")->required();
  command->callback([options, &run] { run = [options] { return run_launch(*options); }; });
}

}  // namespace tide::cli
