// Appends operations to a program, so that builders read as the movement they describe.
#pragma once

#include "tide/plan.h"
#include "tide/program.h"

namespace tide {

// A program of `rank` with the session's regions in its table; throws Error(unsupported) for more than one node and
// Error(invalid_argument) for a rank outside the world.
Program start_program(Collective collective, const Plan& plan, const Space& space, int32_t rank);

// Adds a region that each call's Binding supplies.
RegionId add_call_region(Program& program, int64_t bytes, int64_t alignment);

void signal(Program& program, QueueId queue, Target to, CounterId counter);
void wait(Program& program, QueueId queue, int32_t from_local, CounterId counter);

}  // namespace tide
