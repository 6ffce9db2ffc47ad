// What a plan makes of groups, in numbers that people compare.
#pragma once

#include <optional>
#include <span>

#include "tide/plan.h"

namespace tide {

// Of one group. Bytes of shards and output are one rank's; copies are the most that any rank issues in a call.
struct Account {
  int64_t tensors = 0;
  int64_t elements = 0;
  int64_t shard_bytes = 0;          // packed shards
  int64_t landing_bytes = 0;        // one landing of the group
  int64_t reduce_output_bytes = 0;  // packed fp32 output
  int64_t gather_copies = 0;        // copies and casts of a gather that moves its pieces
  int64_t push_copies = 0;          // pushes of a reduce-scatter of every trainable tensor
};
// Gradients are of the type that tensors are gathered in, where `grad_dtype` names no other.
Account account(const Plan& plan, const Layout& layout, std::optional<DType> grad_dtype = {});

// Throws Error(invalid_argument) for a sum that overflows 63 bits.
Account operator+(const Account& a, const Account& b);

}  // namespace tide
