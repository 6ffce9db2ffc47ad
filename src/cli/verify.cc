// tide verify: proves training scripts over the programs of all ranks.
#include "tide/verify.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>

#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/program_size.h"
#include "cli/text.h"
#include "cli/workload.h"
#include "fmt/format.h"
#include "tide/error.h"
#include "verify/mutate.h"

namespace tide::cli {
namespace {

constexpr double kMostOperations = 8e6;  // of all programs of a configuration
constexpr int64_t kMostPasses = 1000;    // forward and backward, in a script

struct Options {
  WorkloadOptions workload;
  std::string groups = "sample", steps = "2", prefetch, micro_batches = "1";
  bool faults = false, json = false;
};

struct FaultCount {
  int64_t made = 0, caught = 0, harmless = 0;
  std::string missed;  // the first that nothing caught
};

struct Outcome {
  Plan plan;
  DType grad_dtype = DType::f32;
  std::vector<std::string> groups;
  StepShape step;
  Report report;
  std::map<std::string, FaultCount> faults;
  double seconds = 0;
  bool ok() const {
    return report.ok() &&
           std::all_of(faults.begin(), faults.end(), [](const auto& fault) { return fault.second.missed.empty(); });
  }
};

// A line that is written over, on a terminal only.
class Progress {
 public:
  void show(const std::string& what) const {
    if (terminal_) fmt::print(stderr, "\r\033[K{}", what);
  }
  void clear() const {
    if (terminal_) fmt::print(stderr, "\r\033[K");
  }

 private:
  bool terminal_ = ::isatty(STDERR_FILENO) != 0;
};

bool takes_slots(Landing landing) { return landing == Landing::ring || landing == Landing::private_copy; }

// The root and the first block stand for the rest, since the blocks of a model have equal shapes. Where landings are
// taken in turn, enough blocks that one of them meets a slot which another has used.
size_t sample_size(const Plan& plan) {
  return takes_slots(plan.landing) ? static_cast<size_t>(plan.ring_depth) + 1 : 2;
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

StepShape script_shape(const Options& options, const Plan& plan, size_t groups) {
  StepShape step;
  step.groups = static_cast<int32_t>(groups);
  step.steps = static_cast<int32_t>(parse_whole("--steps", options.steps, 1, kMostPasses));
  step.micro_batches =
      static_cast<int32_t>(parse_whole("--micro-batches", options.micro_batches, 1, kMostPasses / step.steps));
  if (options.prefetch.empty()) {
    // A caller with a ring of one slot can have nothing ahead of the group that it holds.
    step.prefetch = takes_slots(plan.landing) && plan.ring_depth == 1 ? 0 : 1;
  } else {
    step.prefetch = static_cast<int32_t>(parse_whole("--prefetch", options.prefetch, 0, 1 << 20));
  }
  step.keep_backward = !takes_slots(plan.landing);
  return step;
}

Outcome verify_one(const Options& options, const std::vector<Group>& groups, const Plan& plan,
                   const Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  const std::string what = fmt::format("{}, {}", plural(plan.local, "rank"), name(plan.landing));
  progress.show(fmt::format("building the programs of {}", what));
  Workload work = options.workload.lay_out(groups, plan);
  const size_t most = options.groups == "sample" ? sample_size(plan) : work.layouts.size();
  if (work.layouts.size() > most)
    work.layouts.erase(work.layouts.begin() + static_cast<int64_t>(most), work.layouts.end());
  work.resident_shards.resize(work.layouts.size());
  double operations = 0;
  for (const Layout& layout : work.layouts) {
    operations += plan.local * operation_bound(plan, layout, work.grad_dtype);
    check_size(layout, operations, kMostOperations);
  }
  Outcome outcome;
  outcome.plan = plan;
  outcome.grad_dtype = work.grad_dtype;
  outcome.step = script_shape(options, plan, work.layouts.size());
  for (const Layout& layout : work.layouts) outcome.groups.push_back(layout.group().name);
  const Ensemble ensemble = make_ensemble(plan, std::move(work.layouts), work.resident_shards, work.grad_dtype);
  const Script script = training(outcome.step);
  progress.show(fmt::format("verifying {}", what));
  outcome.report = verify_script(ensemble, script);
  for (int32_t f = 0; options.faults && outcome.report.ok() && f < verify::kFaults; ++f) {
    const auto fault = static_cast<verify::Fault>(f);
    progress.show(fmt::format("injecting {} into {}", verify::name(fault), what));
    const FaultCount count = try_fault(ensemble, script, fault);
    if (count.made > 0) outcome.faults.emplace(verify::name(fault), count);
  }
  progress.clear();
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

Json to_json(const Outcome& outcome) {
  Json violations = Json::array();
  for (const Violation& v : outcome.report.violations) {
    violations.push_back(
        {{"law", v.law}, {"rank", v.rank}, {"queue", v.queue}, {"operation", v.operation}, {"sentence", v.sentence}});
  }
  Json faults = Json::object();
  for (const auto& [fault, count] : outcome.faults) {
    faults[fault] = {
        {"made", count.made}, {"caught", count.caught}, {"harmless", count.harmless}, {"missed", count.missed}};
  }
  return {{"local", outcome.plan.local},
          {"landing", name(outcome.plan.landing)},
          {"grad_dtype", name(outcome.grad_dtype)},
          {"groups", outcome.groups},
          {"steps", outcome.step.steps},
          {"prefetch", outcome.step.prefetch},
          {"micro_batches", outcome.step.micro_batches},
          {"ok", outcome.ok()},
          {"operations", outcome.report.operations},
          {"accesses", outcome.report.accesses},
          {"seconds", outcome.seconds},
          {"violations", violations},
          {"faults", faults}};
}

void print(const Outcome& outcome) {
  fmt::print("{:>10}  {:<8}  {:>10}  prefetch {}  {:>12} operations  {:>12} accesses  {:>7.2f} s  {}\n",
             plural(outcome.plan.local, "rank"), name(outcome.plan.landing),
             plural(static_cast<int64_t>(outcome.groups.size()), "group"), outcome.step.prefetch,
             count_text(outcome.report.operations), count_text(outcome.report.accesses), outcome.seconds,
             outcome.ok()          ? "ok"
             : outcome.report.ok() ? "a fault was missed"
                                   : plural(static_cast<int64_t>(outcome.report.violations.size()), "violation"));
  for (const Violation& v : outcome.report.violations) {
    fmt::print("    {}: rank {}, queue {}, operation {}: {}\n", v.law, v.rank, v.queue, v.operation, v.sentence);
  }
  for (const auto& [fault, count] : outcome.faults) {
    fmt::print("    fault {:<18} {} made, {} caught, {} proved harmless{}\n", fault, count.made, count.caught,
               count.harmless, count.missed.empty() ? "" : ", MISSED: " + count.missed);
  }
}

int run_verify(const Options& options) {
  if (options.groups != "sample" && options.groups != "all") {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--groups is '{}': give sample or all", excerpt(options.groups)));
  }
  const std::vector<Group> groups = options.workload.groups();
  const Progress progress;
  Json results = Json::array();
  bool ok = true;
  for (const Plan& plan : options.workload.plans(groups)) {
    const Outcome outcome = verify_one(options, groups, plan, progress);
    ok = ok && outcome.ok();
    if (options.json) {
      results.push_back(to_json(outcome));
    } else {
      print(outcome);
    }
  }
  if (options.json) print_json({{"ok", ok}, {"results", results}});
  return ok ? 0 : 1;
}

}  // namespace

void add_verify(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("verify", "Prove a training script over the programs of all ranks");
  options->workload.add_to(*command, true);
  command->add_option("--groups", options->groups, "all, or sample: the root, and as many blocks as show all there is")
      ->capture_default_str()
      ->type_name("WHICH");
  command->add_option("--steps", options->steps, "Training steps in the script")->capture_default_str()->type_name("N");
  command
      ->add_option("--prefetch", options->prefetch, "Gathers issued ahead (default: 1, or 0 where there is one slot)")
      ->type_name("N");
  command->add_option("--micro-batches", options->micro_batches, "Backward passes a step; later ones accumulate")
      ->capture_default_str()
      ->type_name("N");
  command->add_flag("--faults", options->faults, "Also inject faults of every kind and see each of them caught");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options, &run] { run = [options] { return run_verify(*options); }; });
}

}  // namespace tide::cli
