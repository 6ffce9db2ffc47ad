#include "cli/program_size.h"

#include <algorithm>
#include <cmath>

#include "fmt/format.h"
#include "tide/error.h"

namespace tide::cli {

double operation_bound(const Plan& plan, const Layout& layout, DType grad_dtype) {
  const double tensors = static_cast<double>(layout.params().size());
  const double local = plan.local;
  const double packed = static_cast<double>(layout.packed_grad_elements());
  const double chunk = static_cast<double>(plan.chunk_bytes) / static_cast<double>(itemsize(grad_dtype));
  const double chunks = packed / chunk + std::min<double>(plan.passes, packed / 16) + 1;
  // Each owner's tensors are cut once a chunk at most; a rank pushes to L-1 owners and sums L operands for itself.
  const double pieces = tensors + chunks;
  return local * (2 * pieces + 4 * chunks) + 2 * tensors;
}

void check_size(const Layout& layout, double operations, double most) {
  if (operations <= most) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("group '{}' needs up to {:.3g} operations, more than {:.0g}: give a larger --chunk-bytes, fewer "
                  "--passes, fewer ranks or a smaller group",
                  layout.group().name, operations, most));
}

}  // namespace tide::cli
