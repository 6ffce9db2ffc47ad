// A program as a Graphviz graph.
#pragma once

#include <string>

#include "cli/program_text.h"
#include "tide/plan.h"

namespace tide::cli {

// Queues are clusters of boxes in order; counters are ellipses at the peers that they come from or go to; events are
// diamonds between queues. At most `limit` operations, the rest counted.
std::string program_dot(const ProgramText& text, const Space& space, int64_t limit);

}  // namespace tide::cli
