// The verifier: proves a script over the programs of all ranks, or names the operation and the law that breaks.
//
// Checked: laws 1 to 6 of docs/design.md; no deadlock, in any interleaving and in strict issue order; no two
// unordered accesses to the same byte, one of them a write; no access outside a region; every landing byte used is the
// right shard's current byte; every reduced element holds each rank's contribution exactly once and nothing else.
// Single-threaded, no I/O; memory grows with the operations of one script.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tide/collectives.h"
#include "tide/layout.h"
#include "tide/plan.h"
#include "tide/program.h"
#include "tide/script.h"

namespace tide {

// The programs of every rank for every group, and the tables they name: what a script runs against.
struct Ensemble {
  Plan plan;
  std::vector<Layout> layouts;  // one a group
  Space space;
  DType grad_dtype = DType::f32;
  struct GroupPrograms {
    std::vector<Program> gather_move, gather_keep, release, reduce;  // one a rank; keep only where the landing can
    std::vector<bool> present;  // tensors that the reduce programs were built for (empty: every trainable one)
  };
  std::vector<GroupPrograms> programs;  // one a group

  int32_t world() const { return plan.nodes * plan.local; }
};

// Builds all of them with the library's own builders.
Ensemble make_ensemble(const Plan& plan, std::vector<Layout> layouts, const std::vector<bool>& resident_shards,
                       DType grad_dtype);

struct Violation {
  std::string law;  // "law 2", "race", "deadlock", "bounds", "landing", "contribution", "lease"
  int32_t rank = -1;
  std::string queue;       // "caller" for the script's own actions
  int64_t operation = -1;  // index in the rank's program, or of the action
  std::string sentence;    // what breaks, in words a person can follow
};

struct Report {
  std::vector<Violation> violations;  // at most `limit`, in order of discovery
  int64_t operations = 0;             // executed over all ranks
  int64_t accesses = 0;               // byte ranges checked for races
  bool ok() const { return violations.empty(); }
};

// Throws Error(invalid_argument) for a script that names a group, or keeps pieces, that the ensemble has no program
// for.
Report verify_script(const Ensemble& ensemble, const Script& script, int32_t limit = 8);

// The same with a script of its own for each rank: what happens when callers disagree.
Report verify_script(const Ensemble& ensemble, std::span<const Script> scripts, int32_t limit = 8);

}  // namespace tide
