// A program ready to run: checked against the tables it names, its operations split by queue.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tide/plan.h"
#include "tide/program.h"

namespace tide::host {

class Prepared {
 public:
  // Throws Error(unsupported) for an operation that one node does not have, and Error(check_failed) naming operation
  // and region for a reference outside of its region.
  Prepared(const Space& space, Program program);

  const Program& program() const { return program_; }
  std::span<const int32_t> queue(size_t index) const { return queues_[index]; }
  size_t queues() const { return queues_.size(); }
  int64_t bytes_moved() const { return bytes_moved_; }  // written into windows and shared memory by one run
  size_t call_regions() const { return program_.regions.size() - static_cast<size_t>(program_.first_call_region); }

 private:
  Program program_;
  std::vector<std::vector<int32_t>> queues_;  // indices of operations
  int64_t bytes_moved_ = 0;
};

}  // namespace tide::host
