// tide launch: starts the ranks of a job on this machine.
#include "fabric/launch.h"

#include <memory>

#include "cli/commands.h"
#include "fmt/format.h"
#include "tide/error.h"

namespace tide::cli {
namespace {

struct Options {
  int32_t ranks = 0;
  double grace = 10;
  std::string job;
  std::vector<std::string> command;
};

int run_launch(const Options& options) {
  if (options.ranks < 1 || options.ranks > 1024) {
    throw Error(ErrorCode::invalid_argument, fmt::format("--ranks is {}: give 1 to 1024", options.ranks));
  }
  if (!(options.grace >= 0 && options.grace <= 86400)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("--grace is {}: give 0 to 86400 seconds", options.grace));
  }
  fabric::LaunchOptions launch;
  launch.ranks = options.ranks;
  launch.command = options.command;
  launch.job = options.job;
  launch.failure_grace = std::chrono::milliseconds(static_cast<int64_t>(options.grace * 1000));
  return fabric::launch(launch);
}

}  // namespace

void add_launch(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("launch", "Start the ranks of a job on this machine: tide launch --ranks 4 -- CMD");
  command->add_option("--ranks", options->ranks, "Processes to start")->required();
  command->add_option("--grace", options->grace, "Seconds that ranks have to report after the first failure")
      ->capture_default_str();
  command->add_option("--job", options->job, "Name of the job (default: a random one)");
  command->add_option("command", options->command, "Program and arguments, after --")->required();
  command->callback([options, &run] { run = [options] { return run_launch(*options); }; });
}

}  // namespace tide::cli
