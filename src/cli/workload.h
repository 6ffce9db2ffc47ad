// What plan, explain and verify work on: groups from a file or a built-in model, laid out and planned.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "tide/layout.h"
#include "tide/plan.h"

namespace tide::cli {

struct Workload {
  Plan plan;
  DType grad_dtype = DType::f32;
  std::vector<Layout> layouts;
  std::vector<bool> resident_shards;
};

// Every function that reads throws Error(invalid_argument | unsupported) naming the option and its value.
class WorkloadOptions {
 public:
  // Adds the options to a command, which outlives this. `several`: --local takes a list, and --landing also "all".
  void add_to(CLI::App& command, bool several);

  std::vector<Group> groups() const;

  // The plans that the options ask for, checked: the one of --plan, or one for each --local and --landing. With
  // --landing all, home only where `groups` are gathered without a cast.
  std::vector<Plan> plans(const std::vector<Group>& groups) const;

  Workload lay_out(const std::vector<Group>& groups, const Plan& plan) const;

  // All of it where one plan is asked for.
  Workload only() const;

 private:
  bool given(const std::string& option) const { return command_->count(option) > 0; }
  LayoutOptions layout_options(int64_t world, int64_t alignment) const;
  std::vector<Layout> layouts(const std::vector<Group>& groups, const LayoutOptions& options) const;
  Plan chosen_fields() const;  // all but local and landing
  std::vector<Landing> chosen_landings(const std::vector<Group>& groups) const;
  std::vector<int32_t> chosen_locals() const;
  Plan planned_before(const std::vector<Group>& groups) const;

  const CLI::App* command_ = nullptr;
  std::string group_, model_, dtype_ = "bf16", cast_, grad_dtype_, plan_;
  std::string nodes_ = "1", landing_ = "resident", ring_depth_ = "3", alignment_ = "256", chunk_bytes_ = "256KiB",
              staging_slots_ = "2", passes_ = "1";
  std::vector<std::string> locals_;
  bool several_ = false;
  bool resident_shards_ = false;
};

}  // namespace tide::cli
