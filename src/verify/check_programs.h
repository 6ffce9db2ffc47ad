// What can be said of programs before anything runs: the tables they name (law 1), counts (law 3), puts (law 6) and
// bounds. The replay relies on it.
#pragma once

#include "tide/verify.h"
#include "verify/findings.h"
#include "verify/memory.h"

namespace tide::verify {

void check_programs(const Ensemble& ensemble, const Memory& memory, Findings& findings);

}  // namespace tide::verify
