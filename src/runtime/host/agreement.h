// What the ranks of a session must agree on before they start, and the sentence that names the first difference.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tide/error.h"
#include "tide/layout.h"
#include "tide/plan.h"
#include "tide/session.h"

namespace tide::host {

struct RegisteredGroup {
  Group group;
  GroupOptions options;
};

// This rank's plan and groups as text for its peers.
std::string describe(const Plan& plan, std::span<const RegisteredGroup> groups);

// Compares what all ranks described, by rank, and returns rank 0's plan. The result is the same on every rank: throws
// Error(mismatch) naming group, tensor, field, both values and both ranks at the first difference, or naming the rank
// whose description this version cannot read.
Plan agree(std::span<const std::string> descriptions);

// After local work that may fail on one rank only: throws the first failure, by rank, on every rank.
std::string describe_success();
std::string describe_failure(const Error& error);
void agree_on_success(std::span<const std::string> outcomes);

}  // namespace tide::host
