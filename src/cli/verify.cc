// tide verify: proves training scripts over the programs of all ranks.
#include "tide/verify.h"

#include <unistd.h>

#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/workload.h"
#include "fmt/format.h"
#include "tide/error.h"
#include "verify/mutate.h"

namespace tide::cli {
namespace {

struct Options {
  WorkloadOptions workload;
  std::string groups = "sample";
  StepShape step{1, 2, 1, false, 1};
  bool faults = false, json = false;
};

struct FaultCount {
  int64_t made = 0, caught = 0, harmless = 0;
  std::string missed;  // the first that nothing caught
};

struct Outcome {
  int32_t local = 0;
  Landing landing = Landing::resident;
  std::vector<std::string> groups;
  Report report;
  std::map<std::string, FaultCount> faults;
  double seconds = 0;
  bool ok() const {
    if (!report.ok()) return false;
    for (const auto& [fault, count] : faults) {
      if (!count.missed.empty()) return false;
    }
    return true;
  }
};

// The first and the last groups stand for the rest: the blocks of a model have equal shapes.
void sample(Workload& work) {
  if (work.layouts.size() <= 3) return;
  std::vector<Layout> few{work.layouts[0], work.layouts[1], work.layouts.back()};
  work.layouts = std::move(few);
  work.resident_shards.resize(3);
}

FaultCount try_fault(const Ensemble& ensemble, const Script& script, verify::Fault fault) {
  FaultCount count;
  for (const uint64_t choice : {uint64_t{0}, uint64_t{7}, uint64_t{1000003}}) {
    const auto mutant = verify::inject(ensemble, script, fault, choice);
    if (!mutant) continue;
    ++count.made;
    if (!verify_script(mutant->ensemble, mutant->scripts, 1).ok()) {
      ++count.caught;
    } else if (verify::may_be_harmless(fault)) {
      ++count.harmless;
    } else if (count.missed.empty()) {
      count.missed = mutant->what;
    }
  }
  return count;
}

Outcome verify_one(const Options& options, int32_t local, Landing landing) {
  const auto start = std::chrono::steady_clock::now();
  Outcome outcome;
  outcome.local = local;
  Workload work = options.workload.resolve(local, landing);
  outcome.landing = work.plan.landing;  // a plan file brings its own
  if (options.groups == "sample") sample(work);
  for (const Layout& layout : work.layouts) outcome.groups.push_back(layout.group().name);
  StepShape step = options.step;
  step.groups = static_cast<int32_t>(work.layouts.size());
  const bool slots = outcome.landing == Landing::ring || outcome.landing == Landing::private_copy;
  // A caller with a ring of d slots holds one group and can have d - 1 ahead.
  if (slots) step.prefetch = std::min(step.prefetch, work.plan.ring_depth - 1);
  step.keep_backward = !slots;
  const Ensemble ensemble = make_ensemble(work.plan, work.layouts, work.resident_shards, work.grad_dtype);
  const Script script = training(step);
  outcome.report = verify_script(ensemble, script);
  for (int32_t f = 0; options.faults && outcome.report.ok() && f < verify::kFaults; ++f) {
    const auto fault = static_cast<verify::Fault>(f);
    const FaultCount count = try_fault(ensemble, script, fault);
    if (count.made > 0) outcome.faults.emplace(verify::name(fault), count);
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

nlohmann::ordered_json to_json(const Outcome& outcome) {
  nlohmann::ordered_json violations = nlohmann::ordered_json::array();
  for (const Violation& v : outcome.report.violations) {
    violations.push_back(
        {{"law", v.law}, {"rank", v.rank}, {"queue", v.queue}, {"operation", v.operation}, {"sentence", v.sentence}});
  }
  nlohmann::ordered_json faults = nlohmann::ordered_json::object();
  for (const auto& [fault, count] : outcome.faults) {
    faults[fault] = {
        {"made", count.made}, {"caught", count.caught}, {"harmless", count.harmless}, {"missed", count.missed}};
  }
  return {{"local", outcome.local},
          {"landing", name(outcome.landing)},
          {"groups", outcome.groups},
          {"ok", outcome.ok()},
          {"operations", outcome.report.operations},
          {"accesses", outcome.report.accesses},
          {"seconds", outcome.seconds},
          {"violations", violations},
          {"faults", faults}};
}

void print(const Outcome& outcome) {
  fmt::print("{:>4} ranks  {:<9} {:>3} groups  {:>10} operations  {:>10} accesses  {:>7.2f} s  {}\n", outcome.local,
             name(outcome.landing), outcome.groups.size(), outcome.report.operations, outcome.report.accesses,
             outcome.seconds, outcome.ok() ? "ok" : "BROKEN");
  for (const Violation& v : outcome.report.violations) {
    fmt::print("     {}: rank {}, queue {}, operation {}: {}\n", v.law, v.rank, v.queue, v.operation, v.sentence);
  }
  for (const auto& [fault, count] : outcome.faults) {
    fmt::print("     fault {:<18} {} made, {} caught, {} proved harmless{}\n", fault, count.made, count.caught,
               count.harmless, count.missed.empty() ? "" : ", MISSED " + count.missed);
  }
}

int run_verify(const Options& options) {
  if (options.groups != "sample" && options.groups != "all") {
    throw Error(ErrorCode::invalid_argument, fmt::format("--groups is '{}': give sample or all", options.groups));
  }
  std::vector<Landing> landings{Landing::ring, Landing::resident, Landing::private_copy};
  if (!options.workload.every_landing()) landings = {options.workload.landing()};
  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  bool ok = true;
  for (const int32_t local : options.workload.locals()) {
    for (const Landing landing : landings) {
      if (terminal) fmt::print(stderr, "\rverifying {} ranks, {} ... ", local, name(landing));
      const Outcome outcome = verify_one(options, local, landing);
      if (terminal) fmt::print(stderr, "\r\033[K");
      ok = ok && outcome.ok();
      if (options.json) {
        results.push_back(to_json(outcome));
      } else {
        print(outcome);
      }
    }
  }
  if (options.json) fmt::print("{}\n", nlohmann::ordered_json{{"ok", ok}, {"results", results}}.dump(2));
  return ok ? 0 : 1;
}

}  // namespace

void add_verify(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("verify", "Prove a training script over the programs of all ranks");
  options->workload.add_to(*command, true);
  command->add_option("--groups", options->groups, "all, or sample: the first two and the last")->capture_default_str();
  command->add_option("--steps", options->step.steps, "Training steps in the script")->capture_default_str();
  command->add_option("--prefetch", options->step.prefetch, "Gathers issued ahead (less where a ring is shorter)")
      ->capture_default_str();
  command->add_option("--micro-batches", options->step.micro_batches, "Backward passes a step; later ones accumulate")
      ->capture_default_str();
  command->add_flag("--faults", options->faults, "Also inject faults of every kind and see each of them caught");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options, &run] { run = [options] { return run_verify(*options); }; });
}

}  // namespace tide::cli
