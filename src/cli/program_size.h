// How many operations programs will have, before any is built: what keeps absurd input from taking all memory.
#pragma once

#include "tide/layout.h"
#include "tide/plan.h"

namespace tide::cli {

// An upper bound on the operations of one rank's largest program of a group, operands of sums counted too.
double operation_bound(const Plan& plan, const Layout& layout, DType grad_dtype);

// Throws Error(invalid_argument) that names the group when `operations` are more than `most`.
void check_size(const Layout& layout, double operations, double most);

}  // namespace tide::cli
