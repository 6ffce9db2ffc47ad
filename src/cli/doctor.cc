// tide doctor: what this machine can do, what is missing and how to get it.
#include <algorithm>
#include <memory>

#include "cli/commands.h"
#include "cli/findings.h"
#include "cli/json_output.h"
#include "fmt/format.h"

namespace tide::cli {
namespace {

void print(const Finding& finding) {
  fmt::print("{:<8} {:<28} {}", name(finding.standing), finding.what, finding.value);
  if (!finding.lost.empty()) fmt::print("; lost: {}; to get it: {}", finding.lost, finding.advice);
  fmt::print("\n");
}

int run_doctor(bool json) {
  Findings findings;
  // Before anything that starts a thread: the software is asked in forked children.
  look_at_software(findings);
  const auto software = static_cast<int64_t>(findings.size());
  look_at_kernel(findings);
  look_at_memory(findings);
  look_at_processors(findings);
  std::rotate(findings.begin(), findings.begin() + software, findings.end());
  const bool ok = std::none_of(findings.begin(), findings.end(),
                               [](const Finding& finding) { return finding.standing == Standing::broken; });
  if (json) {
    Json list = Json::array();
    for (const Finding& f : findings) {
      list.push_back({{"what", f.what},
                      {"standing", name(f.standing)},
                      {"value", f.value},
                      {"lost", f.lost},
                      {"advice", f.advice}});
    }
    print_json({{"ok", ok}, {"findings", list}});
  } else {
    for (const Finding& finding : findings) print(finding);
    fmt::print("\n{}\n", ok ? "Sessions can run here." : "Sessions cannot run here: see what is broken above.");
  }
  return ok ? 0 : 1;
}

}  // namespace

std::string_view name(Standing standing) {
  switch (standing) {
    case Standing::ok:
      return "ok";
    case Standing::info:
      return "info";
    case Standing::missing:
      return "missing";
    case Standing::broken:
      return "broken";
  }
  return "?";
}

void add_doctor(CLI::App& app, Run& run) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("doctor", "What this machine can do, what is missing and how to get it");
  command->add_flag("--json", *json, "Print JSON");
  command->callback([json, &run] { run = [json] { return run_doctor(*json); }; });
}

}  // namespace tide::cli
