// The `tide` command. Errors are one line on stderr that says what to do; status 2 is bad input, 1 a failed check or
// run.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <string>
#include <system_error>

#include "cli/commands.h"
#include "cli/text.h"
#include "fmt/format.h"
#include "tide/error.h"
#include "tide/version.h"

namespace tide::cli {
namespace {

int complain(std::string sentence, int status) {
  for (char& c : sentence) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) c = byte == '\n' ? ' ' : '?';
  }
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

std::string command_names(const CLI::App& app) {
  std::string names;
  for (const CLI::App* one : app.get_subcommands([](const CLI::App*) { return true; })) {
    names += (names.empty() ? "" : ", ") + one->get_name();
  }
  return names;
}

// CLI11's complaints as one sentence with option, value and what to do.
std::string sentence_of(const CLI::ParseError& error, const CLI::App& app) {
  std::string unknown;
  for (const std::string& argument : app.remaining(true)) {
    if (unknown.empty() && argument != "--") unknown = excerpt(argument);
  }
  const auto chosen = app.get_subcommands();
  if (chosen.empty()) {
    if (unknown.empty()) return fmt::format("no command is given: use one of {} (see tide --help)", command_names(app));
    return fmt::format("'{}' is not {}: use one of {} (see tide --help)", unknown,
                       unknown[0] == '-' ? "an option of tide" : "a command", command_names(app));
  }
  const std::string& command = chosen.front()->get_name();
  if (!unknown.empty()) {
    return fmt::format("'{}' is not {} of tide {}: see tide {} --help{}", unknown,
                       unknown[0] == '-' ? "an option" : "an argument", command, command,
                       command == "launch" ? ", and put -- before the program" : "");
  }
  std::string sentence = excerpt(error.what());
  while (!sentence.empty() && (sentence.back() == ' ' || sentence.back() == '.')) sentence.pop_back();
  return fmt::format("{}: see tide {} --help", sentence, command);
}

// What was printed may still be in a buffer, and the disk full.
int finish_output(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  return complain(fmt::format("standard output cannot be written ({}): give it more space or another place",
                              std::generic_category().message(errno)),
                  1);
}

int run_command(int argc, char** argv) {
  CLI::App app("Layout-aware collectives for sharded training: plans, programs, proofs and launches.", "tide");
  app.set_version_flag("--version", std::string("tide ") + TIDE_VERSION, "Print the version and exit");
  app.require_subcommand(1);
  app.footer("Sizes take units: 262144, 256KiB, 1MiB. Exit status: 0 success, 1 a check or run failed, 2 bad input.");
  Run run;
  add_plan(app, run);
  add_explain(app, run);
  add_verify(app, run);
  add_models(app, run);
  add_launch(app, run);
  add_doctor(app, run);
  try {
    app.parse(argc, argv);
    return finish_output(run());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return finish_output(app.exit(error));
    return complain(sentence_of(error, app), 2);
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
