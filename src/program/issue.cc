#include "program/issue.h"

#include "fmt/format.h"
#include "tide/error.h"

namespace tide {

Program start_program(Collective collective, const Plan& plan, const Space& space, int32_t rank) {
  if (plan.nodes != 1) {
    throw Error(ErrorCode::unsupported,
                fmt::format("nodes is {}: this form builds programs for one node, set nodes to 1", plan.nodes));
  }
  if (rank < 0 || rank >= plan.local) {
    throw Error(ErrorCode::invalid_argument, fmt::format("rank is {}: give a rank from 0 to {}", rank, plan.local - 1));
  }
  Program program;
  program.collective = collective;
  program.nodes = plan.nodes;
  program.local = plan.local;
  program.rank = rank;
  program.regions = space.regions;
  program.first_call_region = static_cast<RegionId>(space.regions.size());
  return program;
}

RegionId add_call_region(Program& program, int64_t bytes, int64_t alignment) {
  program.regions.push_back({Scope::call, bytes, alignment});
  return static_cast<RegionId>(program.regions.size() - 1);
}

void signal(Program& program, QueueId queue, Target to, CounterId counter) {
  Operation op;
  op.kind = OpKind::signal;
  op.queue = queue;
  op.to = to;
  op.counter = counter;
  op.n = 1;
  program.ops.push_back(op);
}

void wait(Program& program, QueueId queue, int32_t from_local, CounterId counter) {
  Operation op;
  op.kind = OpKind::wait;
  op.queue = queue;
  op.to = {Reach::local, from_local};
  op.counter = counter;
  op.n = 1;
  program.ops.push_back(op);
}

}  // namespace tide
