// tide plan: what groups cost in memory and copies under a plan.
#include <cstdio>
#include <fstream>
#include <memory>

#include "cli/commands.h"
#include "cli/text.h"
#include "cli/workload.h"
#include "fmt/format.h"
#include "plan/account.h"
#include "tide/error.h"

namespace tide::cli {
namespace {

struct Options {
  WorkloadOptions workload;
  std::string output;
  bool json = false;
};

void print_row(const std::string& name, const Account& a) {
  fmt::print("{:<28} {:>7} {:>16} {:>12} {:>12} {:>12} {:>8} {:>8}\n", name.substr(0, 28), a.tensors,
             count_text(a.elements), bytes_text(a.shard_bytes), bytes_text(a.landing_bytes),
             bytes_text(a.reduce_output_bytes), a.gather_copies, a.push_copies);
}

void print_account(const Workload& work) {
  const Plan& plan = work.plan;
  fmt::print("{} rank{} on one node, landing {}, alignment {}, staging {} x {}, passes {}\n\n", plan.local,
             plan.local == 1 ? "" : "s", name(plan.landing), plan.alignment, plan.staging_slots,
             bytes_text(plan.chunk_bytes), plan.passes);
  fmt::print("{:<28} {:>7} {:>16} {:>12} {:>12} {:>12} {:>8} {:>8}\n", "group", "tensors", "elements", "shards",
             "landing", "output", "copies", "pushes");
  Account total;
  for (const Layout& layout : work.layouts) {
    const Account a = account(plan, layout);
    print_row(layout.group().name, a);
    total = total + a;
  }
  print_row("total", total);
  const Space space = make_space(plan, work.layouts, work.resident_shards);
  const int64_t staging = space.regions[static_cast<size_t>(space.staging)].bytes * plan.local;
  fmt::print("\nmemory of the session on the node: {} (staging {}, landings and shards {})\n",
             bytes_text(node_bytes(plan, space)), bytes_text(staging), bytes_text(node_bytes(plan, space) - staging));
}

int run_plan(const Options& options) {
  const Workload work = options.workload.resolve(options.workload.locals()[0], options.workload.landing());
  make_space(work.plan, work.layouts, work.resident_shards);  // refuses what the landing cannot do
  const std::string json = to_json(work.plan, work.layouts);
  if (!options.output.empty()) {
    std::ofstream file(options.output, std::ios::binary | std::ios::trunc);
    file << json << '\n';
    file.close();
    if (!file) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("--output '{}' cannot be written: check the folder and its permissions", options.output));
    }
  }
  if (options.json) {
    fmt::print("{}\n", json);
  } else {
    print_account(work);
  }
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("plan", "What groups cost in memory and copies, and a plan file for them");
  options->workload.add_to(*command, false);
  command->add_option("--output", options->output, "Write the plan (JSON) to this file");
  command->add_flag("--json", options->json, "Print the plan as JSON");
  command->callback([options, &run] { run = [options] { return run_plan(*options); }; });
}

}  // namespace tide::cli
