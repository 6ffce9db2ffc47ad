// tide plan: what groups cost in memory and copies under a plan.
#include "tide/plan.h"

#include <algorithm>
#include <fstream>
#include <memory>
#include <set>

#include "cli/commands.h"
#include "cli/text.h"
#include "cli/workload.h"
#include "fmt/format.h"
#include "plan/account.h"
#include "tide/error.h"

namespace tide::cli {
namespace {

constexpr size_t kNameWidth = 32;

struct Options {
  WorkloadOptions workload;
  std::string output;
  bool json = false;
};

// Bytes of the session on the node, by use.
struct Memory {
  int64_t landings = 0;
  int64_t shards = 0;
  int64_t staging = 0;
};

Memory memory_of(const Plan& plan, const Space& space) {
  Memory memory;
  int64_t together = 0;
  bool fits = true;
  for (size_t r = 0; r < space.regions.size(); ++r) {
    int64_t bytes = 0;
    const int64_t copies = space.regions[r].scope == Scope::rank ? plan.local : 1;
    fits = fits && !__builtin_mul_overflow(space.regions[r].bytes, copies, &bytes) &&
           !__builtin_add_overflow(together, bytes, &together);
    if (!fits) break;
    const auto id = static_cast<RegionId>(r);
    const bool landing = std::any_of(space.groups.begin(), space.groups.end(),
                                     [&](const Space::GroupPlace& place) { return place.landing == id; });
    int64_t& use = id == space.staging ? memory.staging : landing ? memory.landings : memory.shards;
    use += bytes;
  }
  if (!fits) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a session of {} with landing {} needs more than 2^63 bytes: plan smaller groups",
                            plural(plan.local, "rank"), name(plan.landing)));
  }
  return memory;
}

void print_row(const std::string& name, const Account& a) {
  fmt::print("{:<32} {:>7} {:>16} {:>12} {:>12} {:>12} {:>9} {:>9}\n", name, count_text(a.tensors),
             count_text(a.elements), bytes_text(a.shard_bytes), bytes_text(a.landing_bytes),
             bytes_text(a.reduce_output_bytes), count_text(a.gather_copies), count_text(a.push_copies));
}

std::string landings_text(const Plan& plan, const Space& space) {
  std::set<RegionId> landings;
  for (const Space::GroupPlace& place : space.groups) landings.insert(place.landing);
  const auto count = static_cast<int64_t>(landings.size());
  switch (plan.landing) {
    case Landing::ring:
      return fmt::format("{}, shared by the ranks, taken in turn by {}", plural(count, "slot"),
                         plural(static_cast<int64_t>(space.groups.size()), "group"));
    case Landing::private_copy:
      return fmt::format("{} in each rank, taken in turn by {}", plural(count, "slot"),
                         plural(static_cast<int64_t>(space.groups.size()), "group"));
    case Landing::resident:
      return "one a group, shared by the ranks";
    case Landing::home:
      return "one a group, shared by the ranks; the shards live there";
  }
  return "";
}

void print_account(const Workload& work) {
  const Plan& plan = work.plan;
  fmt::print("{} on one node, landing {}, alignment {}, gradients {}\n", plural(plan.local, "rank"), name(plan.landing),
             bytes_text(plan.alignment), name(work.grad_dtype));
  fmt::print("staging: chunks of {}, {} in flight at an owner, {}\n\n", bytes_text(plan.chunk_bytes),
             plan.staging_slots, plan.passes == 1 ? "one pass" : fmt::format("{} passes", plan.passes));
  fmt::print("{:<32} {:>7} {:>16} {:>12} {:>12} {:>12} {:>19}\n", "", "", "", "shards", "landing", "output",
             "copies of a rank");
  fmt::print("{:<32} {:>7} {:>16} {:>12} {:>12} {:>12} {:>9} {:>9}\n", "group", "tensors", "elements", "of a rank",
             "of the group", "of a rank", "gather", "reduce");
  Account total;
  for (const Layout& layout : work.layouts) {
    const Account a = account(plan, layout, work.grad_dtype);
    print_row(shortened(layout.group().name, kNameWidth), a);
    total = total + a;
  }
  print_row("total", total);
  const Space space = make_space(plan, work.layouts, work.resident_shards);
  const Memory memory = memory_of(plan, space);
  fmt::print("\nmemory of the session on the node\n");
  fmt::print("  {:<18} {:>12}  {}\n", "landings", bytes_text(memory.landings), landings_text(plan, space));
  if (memory.shards > 0) fmt::print("  {:<18} {:>12}  in each rank\n", "resident shards", bytes_text(memory.shards));
  fmt::print("  {:<18} {:>12}  {} x {} x {} x {}\n", "staging", bytes_text(memory.staging), plural(plan.local, "rank"),
             plural(plan.staging_slots, "slot"), plural(plan.local - 1, "peer"), bytes_text(plan.chunk_bytes));
  const int64_t together = node_bytes(plan, space);
  fmt::print("  {:<18} {:>12}  {} B\n", "together", bytes_text(together), count_text(together));
}

void write_plan(const std::string& path, const std::string& json) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << json;
  file.close();
  if (!file) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("--output '{}' cannot be written: give a file in a folder that exists and may be written, with "
                    "space left",
                    path));
  }
}

int run_plan(const Options& options) {
  const Workload work = options.workload.only();
  // Refuses what the landing cannot do, and what no machine holds.
  memory_of(work.plan, make_space(work.plan, work.layouts, work.resident_shards));
  const std::string json = to_json(work.plan, work.layouts);
  if (!options.output.empty()) write_plan(options.output, json);
  if (options.json) {
    fmt::print("{}", json);
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
  command->add_option("--output", options->output, "Write the plan (JSON) to this file")->type_name("FILE");
  command->add_flag("--json", options->json, "Print the plan as JSON");
  command->callback([options, &run] { run = [options] { return run_plan(*options); }; });
}

}  // namespace tide::cli
