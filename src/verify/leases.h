// The protocol that a caller keeps with landings and gradients, read off the script alone: gather, wait, use, release;
// backward, reduce, wait, consume; and no two groups in one slot at a time.
#pragma once

#include <vector>

#include "tide/verify.h"
#include "verify/findings.h"

namespace tide::verify {

// Checks the script of `rank`. Returns for each group whether it is still gathered at the end.
std::vector<bool> check_leases(const Ensemble& ensemble, const Script& script, int32_t rank, Findings& findings);

}  // namespace tide::verify
