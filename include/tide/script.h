// Scripts: what a caller does with collectives over time, the same on every rank.
//
// Prefetch, slot leases, gradient lifetimes and reuse between calls are properties of a script together with the
// programs it calls, and the verifier proves them on that pair.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tide {

enum class ActionKind : uint8_t {
  issue_gather,  // starts the group's all-gather behind everything the caller did so far
  wait_gather,   // the caller continues after that gather
  use,           // the caller reads the whole landing (forward or backward compute)
  release,       // the caller will not read the landing again before the next gather; runs the release program
  backward,      // the caller writes the group's gradients
  issue_reduce,  // starts the reduce-scatter
  wait_reduce,
  consume,   // the caller reads the group's reduced output
  step,      // the optimizer writes this rank's shards of the group
  external,  // something outside the library (an all-reduce, compute); no effect on the session's memory
};
std::string_view name(ActionKind kind);

struct Action {
  ActionKind kind = ActionKind::external;
  int32_t group = 0;
  bool keep = false;        // issue_gather: pieces are kept, not moved
  bool accumulate = false;  // issue_reduce
};

struct Script {
  std::vector<Action> actions;
};

struct StepShape {
  int32_t groups = 1;
  int32_t steps = 1;
  int32_t prefetch = 0;        // gathers issued ahead of the group in use
  bool keep_backward = false;  // the backward gather keeps pieces (resident, home)
  int32_t micro_batches = 1;   // backward passes before a step; later ones accumulate
};

// Training as FSDP2 drives it: forward over the groups in order, backward in reverse, each gathered before and released
// after its use, then reduced; at the end of a step every shard is written.
Script training(const StepShape& shape);

// "gather 0; use 0; ..." one action a line, for people.
std::string to_text(const Script& script);

}  // namespace tide
