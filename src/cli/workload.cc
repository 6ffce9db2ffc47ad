#include "cli/workload.h"

#include "cli/text.h"
#include "fmt/format.h"
#include "tide/error.h"
#include "tide/group_file.h"
#include "tide/models.h"

namespace tide::cli {
namespace {

constexpr int32_t kMostRanks = 1024;

}  // namespace

void WorkloadOptions::add_to(CLI::App& command, bool several_locals) {
  command_ = &command;
  command.add_option("--group", group_, "Group file (JSON)");
  command.add_option("--model", model_, "Built-in model: see tide models");
  command.add_option("--dtype", dtype_, "Type of a built-in model's shards")->capture_default_str();
  command.add_option("--cast", cast_, "Gather floating tensors as this type");
  command.add_option("--grad-dtype", grad_dtype_, "Type of the gradients: f32, bf16 or f16 (default: as gathered)");
  command.add_option("--nodes", nodes_, "Nodes; this form covers one")->capture_default_str();
  auto* local = command.add_option("--local", locals_,
                                   several_locals ? "Ranks on the node, one or several values" : "Ranks on the node");
  local->required();
  if (!several_locals) local->expected(1);
  command
      .add_option("--landing", landing_,
                  several_locals ? "ring, resident, home, private or all" : "ring, resident, home or private")
      ->capture_default_str();
  command.add_option("--ring-depth", ring_depth_, "Slots of ring and private landings")->capture_default_str();
  command.add_option("--alignment", alignment_, "Alignment of landings in bytes; 1 packs them")->capture_default_str();
  command.add_option("--chunk-bytes", chunk_, "Staging of one contribution")->capture_default_str();
  command.add_option("--staging-slots", staging_slots_, "Chunks in flight at an owner")->capture_default_str();
  command.add_option("--passes", passes_, "Sweeps that a reduce-scatter is cut into")->capture_default_str();
  command.add_flag("--resident-shards", resident_shards_, "Shards live in the session's memory");
  command.add_option("--plan", plan_, "Plan file for these groups, in place of the options that make one");
}

std::vector<Group> WorkloadOptions::read_groups() const {
  if (group_.empty() == model_.empty()) {
    throw Error(ErrorCode::invalid_argument, group_.empty() ? "no groups are given: use --group FILE or --model NAME"
                                                            : "both --group and --model are given: use one of them");
  }
  if (!model_.empty()) return model_groups(model_, parse_dtype(dtype_));
  return parse_groups(read_file(group_));
}

Plan WorkloadOptions::read_plan(int32_t local, Landing landing) const {
  if (nodes_ != 1) {
    throw Error(ErrorCode::unsupported, fmt::format("--nodes is {}: this form covers one node, use --nodes 1", nodes_));
  }
  if (local < 1 || local > kMostRanks) {
    throw Error(ErrorCode::invalid_argument, fmt::format("--local is {}: give 1 to {} ranks", local, kMostRanks));
  }
  Plan plan;
  plan.local = local;
  plan.landing = landing;
  plan.ring_depth = ring_depth_;
  plan.alignment = alignment_;
  plan.chunk_bytes = parse_bytes("--chunk-bytes", chunk_);
  plan.staging_slots = staging_slots_;
  plan.passes = passes_;
  check(plan);
  return plan;
}

Workload WorkloadOptions::resolve(int32_t local, Landing landing) const {
  Workload work;
  work.plan = read_plan(local, landing);
  LayoutOptions options{local, work.plan.alignment, !cast_.empty(), DType::bf16};
  if (options.cast) options.gather_dtype = parse_dtype(cast_);
  for (const Group& group : read_groups()) work.layouts.emplace_back(group, options);
  work.resident_shards.assign(work.layouts.size(), resident_shards_);
  if (!plan_.empty()) {
    work.plan = parse_plan(read_file(plan_), work.layouts);
    if (work.plan.local != local) {
      throw Error(ErrorCode::invalid_argument, fmt::format("plan '{}' is for local {}, --local is {}: give the same",
                                                           plan_, work.plan.local, local));
    }
  }
  work.grad_dtype = DType::f32;
  for (const Layout& layout : work.layouts) {
    for (const ParamLayout& param : layout.params()) {
      if (param.trainable && reducible(param.gather_dtype)) work.grad_dtype = param.gather_dtype;
    }
  }
  if (!grad_dtype_.empty()) {
    work.grad_dtype = parse_dtype(grad_dtype_);
    if (!reducible(work.grad_dtype)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("--grad-dtype is {}: a reduce-scatter takes f32, bf16 or f16", grad_dtype_));
    }
  }
  return work;
}

}  // namespace tide::cli
