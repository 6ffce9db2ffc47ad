// The builders: one function an algorithm, each in a source file of src/program/ named for its movement.
// All are pure, take well under a millisecond for 300 tensors and 8 ranks, and throw Error(unsupported) only where
// stated.
#pragma once

#include <vector>

#include "tide/layout.h"
#include "tide/plan.h"
#include "tide/program.h"

namespace tide {

// How a gather treats this rank's own pieces.
enum class Pieces : uint8_t {
  move,  // copies or casts them into the landing
  keep,  // they already stand there unchanged (resident landings, home landings): only the hand-shake runs
};

// One node, paper 3.1: each rank writes its pieces to every local landing (one shared write for node-scope landings).
// `group` indexes space.groups. Waits for every local rank's release of the slot before the first write.
// move and keep have the same counters, so each rank chooses alone.
Program all_gather(const Plan& plan, const Space& space, const Layout& layout, int32_t group, int32_t rank,
                   Pieces pieces);

// Tells every local rank that this rank no longer reads the group's landing. Empty for home landings, whose
// next write is the optimizer's and is ordered by the reduce-scatter.
Program release(const Plan& plan, const Space& space, const Layout& layout, int32_t group, int32_t rank);

// One node, paper 4.1 level 1: chunks of every owner's rows are pushed to its staging, and each owner folds the L
// contributions in local-rank order into its packed fp32 output. `present` masks tensors (empty: every trainable one).
Program reduce_scatter(const Plan& plan, const Space& space, const Layout& layout, int32_t rank, DType grad_dtype,
                       const std::vector<bool>& present);

}  // namespace tide
