// Where a session's regions stand: rank-scope ones at the same offset in every rank's window, node-scope ones in the
// memory that the ranks share.
#pragma once

#include <cstdint>
#include <vector>

#include "tide/plan.h"

namespace tide::host {

struct Placement {
  int64_t window_bytes = 0;      // of each rank
  int64_t shared_bytes = 0;      // of the node
  std::vector<int64_t> offsets;  // one a region of the space, in the window or in the shared memory by its scope
};

// Packs the regions in order, each at its own alignment. Both memories have at least a page.
Placement place(const Space& space);

}  // namespace tide::host
