// Violations in order of discovery, up to a limit.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tide/verify.h"

namespace tide::verify {

class Findings {
 public:
  explicit Findings(int32_t limit) : limit_(limit > 0 ? static_cast<size_t>(limit) : 0) {}

  void add(std::string law, int32_t rank, std::string queue, int64_t operation, std::string sentence) {
    if (full()) return;
    list_.push_back({std::move(law), rank, std::move(queue), operation, std::move(sentence)});
  }
  bool full() const { return list_.size() >= limit_; }
  bool empty() const { return list_.empty(); }
  std::vector<Violation> take() && { return std::move(list_); }

 private:
  size_t limit_;
  std::vector<Violation> list_;
};

}  // namespace tide::verify
