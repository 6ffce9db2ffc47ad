// The `tide` command. Errors are one line on stderr that says what to do; status 2 is bad input, 1 a failed check or
// run.
#include <algorithm>
#include <exception>
#include <string>

#include "cli/commands.h"
#include "fmt/format.h"
#include "tide/error.h"
#include "tide/version.h"

namespace tide::cli {
namespace {

int complain(std::string sentence, int status) {
  std::replace(sentence.begin(), sentence.end(), '\n', ' ');
  fmt::print(stderr, "tide: {}\n", sentence);
  return status;
}

int status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
    case ErrorCode::unsupported:
    case ErrorCode::mismatch:
      return 2;
    default:
      return 1;
  }
}

bool known(const CLI::App& app, const std::string& command) {
  const auto all = app.get_subcommands([](const CLI::App*) { return true; });
  return std::any_of(all.begin(), all.end(), [&](const CLI::App* one) { return one->get_name() == command; });
}

int run_command(int argc, char** argv) {
  CLI::App app("Layout-aware collectives for sharded training: plans, programs, proofs and launches.", "tide");
  app.set_version_flag("--version", std::string("tide ") + TIDE_VERSION);
  app.require_subcommand(1);
  Run run;
  add_plan(app, run);
  add_explain(app, run);
  add_verify(app, run);
  add_models(app, run);
  add_launch(app, run);
  add_doctor(app, run);
  try {
    if (argc > 1 && argv[1][0] != '-' && !known(app, argv[1])) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("'{}' is no command: see tide --help for those there are", argv[1]));
    }
    app.parse(argc, argv);
    return run();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);
    return complain(fmt::format("{} (see tide --help)", error.what()), 2);
  } catch (const Error& error) {
    return complain(error.what(), status_of(error.code()));
  } catch (const std::bad_alloc&) {
    return complain("out of memory: use a smaller group, fewer ranks or larger chunks", 1);
  } catch (const std::exception& error) {
    return complain(error.what(), 1);
  }
}

}  // namespace
}  // namespace tide::cli

int main(int argc, char** argv) { return tide::cli::run_command(argc, argv); }
