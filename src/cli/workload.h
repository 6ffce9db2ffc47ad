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

class WorkloadOptions {
 public:
  // Adds the options to a command. `several_locals`: --local takes a list.
  void add_to(CLI::App& command, bool several_locals);

  const std::vector<int32_t>& locals() const { return locals_; }
  Landing landing() const { return parse_landing(landing_); }
  bool every_landing() const { return landing_ == "all"; }

  // Reads, lays out and plans for `local` ranks. Throws Error(invalid_argument | unsupported) naming the option.
  Workload resolve(int32_t local, Landing landing) const;

 private:
  std::vector<Group> read_groups() const;
  Plan read_plan(int32_t local, Landing landing) const;

  std::string group_, model_, dtype_ = "bf16", landing_ = "resident", chunk_ = "256KiB", grad_dtype_, cast_, plan_;
  int32_t nodes_ = 1;
  std::vector<int32_t> locals_;
  int32_t ring_depth_ = 3, staging_slots_ = 2, passes_ = 1;
  int64_t alignment_ = 256;
  bool resident_shards_ = false;
  CLI::App* command_ = nullptr;
};

}  // namespace tide::cli
