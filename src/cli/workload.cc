#include "cli/workload.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "cli/text.h"
#include "fmt/format.h"
#include "layout/json_field.h"
#include "tide/error.h"
#include "tide/group_file.h"
#include "tide/models.h"

namespace tide::cli {
namespace {

constexpr int64_t kMostRanks = 1024;
constexpr int32_t kMostInt = std::numeric_limits<int32_t>::max();

int32_t small(std::string_view option, std::string_view text, int64_t least, int64_t most = kMostInt) {
  return static_cast<int32_t>(parse_whole(option, text, least, most));
}

// What the layouts of a plan must be made for, which has to be known before the plan can be checked against them. Only
// a first look: parse_plan() judges the file.
struct Outline {
  int64_t local = 1;
  int64_t alignment = 1;
};
Outline outline_of(std::string_view plan) {
  Outline outline;
  const nlohmann::json parsed = parse_json(plan, "the plan");
  const auto read = [&](const char* field, int64_t most, int64_t& value) {
    if (!parsed.is_object() || !parsed.contains(field) || !parsed[field].is_number_integer()) return;
    const auto found = parsed[field].get<int64_t>();
    if (found >= 1 && found <= most) value = found;
  };
  read("local", kMostRanks, outline.local);
  read("alignment", int64_t{1} << 30, outline.alignment);
  if ((outline.alignment & (outline.alignment - 1)) != 0) outline.alignment = 1;
  return outline;
}

}  // namespace

void WorkloadOptions::add_to(CLI::App& command, bool several) {
  command_ = &command;
  several_ = several;
  command.add_option("--group", group_, "Group file (JSON)")->type_name("FILE");
  command.add_option("--model", model_, "Built-in model: see tide models")->type_name("NAME");
  command.add_option("--dtype", dtype_, "Type of a built-in model's shards")->capture_default_str()->type_name("TYPE");
  command.add_option("--cast", cast_, "Gather floating tensors as this type")->type_name("TYPE");
  command.add_option("--grad-dtype", grad_dtype_, "Type of the gradients: f32, bf16 or f16 (default: as gathered)")
      ->type_name("TYPE");
  command.add_option("--nodes", nodes_, "Nodes; this form covers one")->capture_default_str()->type_name("M");
  auto* local = command.add_option("--local", locals_,
                                   several ? "Ranks on the node, one or several values" : "Ranks on the node");
  local->type_name("L");
  if (!several) local->expected(1);
  command
      .add_option("--landing", landing_,
                  several ? "ring, resident, home, private, or all of them" : "ring, resident, home or private")
      ->capture_default_str()
      ->type_name("NAME");
  command.add_option("--ring-depth", ring_depth_, "Slots of ring and private landings")
      ->capture_default_str()
      ->type_name("N");
  command.add_option("--alignment", alignment_, "Alignment of tensors in a landing; 1 packs them")
      ->capture_default_str()
      ->type_name("BYTES");
  command.add_option("--chunk-bytes", chunk_bytes_, "Staging of one contribution")
      ->capture_default_str()
      ->type_name("BYTES");
  command.add_option("--staging-slots", staging_slots_, "Chunks in flight at an owner")
      ->capture_default_str()
      ->type_name("N");
  command.add_option("--passes", passes_, "Sweeps that a reduce-scatter is cut into")
      ->capture_default_str()
      ->type_name("N");
  command.add_flag("--resident-shards", resident_shards_, "Shards live in the session's memory");
  command
      .add_option("--plan", plan_, "Plan of tide plan --output for these groups, in place of the options that make one")
      ->type_name("FILE");
}

std::vector<Group> WorkloadOptions::groups() const {
  if (given("--group") == given("--model")) {
    throw Error(ErrorCode::invalid_argument, given("--group")
                                                 ? "both --group and --model are given: use one of them"
                                                 : "no groups are given: use --group FILE or --model NAME");
  }
  if (given("--model")) return model_groups(model_, parse_dtype(dtype_));
  if (given("--dtype")) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("--dtype is '{}' beside --group: a group file has its own types, leave it out", excerpt(dtype_)));
  }
  std::vector<Group> groups = parse_groups(read_file(group_));
  if (groups.empty()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("--group '{}' holds no group: add one", excerpt(group_)));
  }
  return groups;
}

LayoutOptions WorkloadOptions::layout_options(int64_t world, int64_t alignment) const {
  LayoutOptions options{world, alignment, !cast_.empty(), DType::bf16};
  if (options.cast) options.gather_dtype = parse_dtype(cast_);
  return options;
}

std::vector<Layout> WorkloadOptions::layouts(const std::vector<Group>& groups, const LayoutOptions& options) const {
  std::vector<Layout> layouts;
  for (const Group& group : groups) layouts.emplace_back(group, options);
  return layouts;
}

Plan WorkloadOptions::chosen_fields() const {
  Plan plan;
  plan.ring_depth = small("--ring-depth", ring_depth_, 1);
  plan.alignment = parse_bytes("--alignment", alignment_);
  plan.chunk_bytes = parse_bytes("--chunk-bytes", chunk_bytes_);
  plan.staging_slots = small("--staging-slots", staging_slots_, 1);
  plan.passes = small("--passes", passes_, 1);
  check(plan);
  return plan;
}

std::vector<Landing> WorkloadOptions::chosen_landings(const std::vector<Group>& groups) const {
  if (!several_ || landing_ != "all") return {parse_landing(landing_)};
  std::vector<Landing> all{Landing::ring, Landing::resident, Landing::private_copy};
  for (const Layout& layout : layouts(groups, layout_options(1, 1))) {
    for (const ParamLayout& param : layout.params()) {
      if (param.shard_dtype != param.gather_dtype) return all;
    }
  }
  all.push_back(Landing::home);
  return all;
}

std::vector<int32_t> WorkloadOptions::chosen_locals() const {
  if (locals_.empty()) {
    throw Error(ErrorCode::invalid_argument, "--local is missing: say how many ranks the node has");
  }
  std::vector<int32_t> locals;
  for (const std::string& text : locals_) locals.push_back(small("--local", text, 1, kMostRanks));
  return locals;
}

// Options beside --plan may repeat what the plan says and nothing else: neither is silently left aside.
Plan WorkloadOptions::planned_before(const std::vector<Group>& groups) const {
  const std::string text = read_file(plan_);
  const Outline outline = outline_of(text);
  const Plan plan = parse_plan(text, layouts(groups, layout_options(outline.local, outline.alignment)));
  const Plan chosen = chosen_fields();
  const auto same = [&](const std::string& option, std::string_view value, std::string_view planned, bool equal) {
    if (!given(option) || equal) return;
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is {}, but plan '{}' says {}: leave one of them out",
                                                         option, excerpt(value), excerpt(plan_), planned));
  };
  const auto number = [&](const std::string& option, int64_t value, int64_t planned) {
    same(option, std::to_string(value), std::to_string(planned), value == planned);
  };
  if (!locals_.empty()) {
    for (const int32_t local : chosen_locals()) number("--local", local, plan.local);
  }
  same("--landing", landing_, name(plan.landing), landing_ == name(plan.landing));
  number("--ring-depth", chosen.ring_depth, plan.ring_depth);
  number("--alignment", chosen.alignment, plan.alignment);
  number("--chunk-bytes", chosen.chunk_bytes, plan.chunk_bytes);
  number("--staging-slots", chosen.staging_slots, plan.staging_slots);
  number("--passes", chosen.passes, plan.passes);
  return plan;
}

std::vector<Plan> WorkloadOptions::plans(const std::vector<Group>& groups) const {
  const int32_t nodes = small("--nodes", nodes_, 1);
  if (nodes != 1) {
    throw Error(ErrorCode::unsupported, fmt::format("--nodes is {}: this form covers one node, use --nodes 1", nodes));
  }
  if (given("--plan")) return {planned_before(groups)};
  std::vector<Plan> plans;
  Plan plan = chosen_fields();
  for (const int32_t local : chosen_locals()) {
    for (const Landing landing : chosen_landings(groups)) {
      plan.local = local;
      plan.landing = landing;
      plans.push_back(plan);
    }
  }
  return plans;
}

Workload WorkloadOptions::lay_out(const std::vector<Group>& groups, const Plan& plan) const {
  Workload work;
  work.plan = plan;
  work.layouts = layouts(groups, layout_options(plan.local, plan.alignment));
  work.resident_shards.assign(work.layouts.size(), resident_shards_);
  if (given("--grad-dtype")) {
    work.grad_dtype = parse_dtype(grad_dtype_);
    if (!reducible(work.grad_dtype)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("--grad-dtype is {}: a reduce-scatter takes f32, bf16 or f16", excerpt(grad_dtype_)));
    }
    return work;
  }
  for (const Layout& layout : work.layouts) {
    for (const ParamLayout& param : layout.params()) {
      if (!param.trainable || !reducible(param.gather_dtype)) continue;
      work.grad_dtype = param.gather_dtype;
      return work;
    }
  }
  return work;
}

Workload WorkloadOptions::only() const {
  const std::vector<Group> all = groups();
  return lay_out(all, plans(all).front());
}

}  // namespace tide::cli
