// Every byte that the programs of an ensemble can touch, as numbered physical places: windows and shared regions of
// the session, and what callers bind (shards, gradients, outputs), which each rank keeps for a group across calls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tide/verify.h"

namespace tide::verify {

using PlaceId = int32_t;

struct Spot {
  PlaceId place = -1;
  int64_t offset = 0;
};

struct Range {
  PlaceId place = -1;
  int64_t begin = 0;
  int64_t end = 0;
};

class Memory {
 public:
  explicit Memory(const Ensemble& ensemble);

  int32_t places() const { return static_cast<int32_t>(bytes_.size()); }
  int64_t bytes(PlaceId place) const { return bytes_[static_cast<size_t>(place)]; }
  Scope scope(PlaceId place) const { return scopes_[static_cast<size_t>(place)]; }
  std::string name(PlaceId place) const;

  // The landing of the group as `rank` sees it.
  PlaceId landing(int32_t group, int32_t rank) const;
  // Where the rank keeps its shard of a tensor, wherever that is.
  Spot shard(int32_t group, int32_t rank, int64_t param) const;
  PlaceId gradient(int32_t group, int32_t rank, int64_t param) const;
  PlaceId output(int32_t group, int32_t rank) const;

  // The place that `ref` of a program addresses in the window of `window`.
  Spot at(const Program& program, int32_t group, const Ref& ref, int32_t window) const;
  // Where an operation of the program writes: one spot a window that it reaches.
  std::vector<Spot> destinations(const Program& program, int32_t group, const Operation& op) const;

 private:
  PlaceId session(RegionId region, int32_t rank) const;
  PlaceId add(Scope scope, int64_t bytes);

  const Ensemble& ensemble_;
  int32_t world_;
  std::vector<int64_t> bytes_;
  std::vector<Scope> scopes_;
  std::vector<PlaceId> shards_, gradients_, outputs_;  // first of a group
};

// Source bytes of one run of a copy, cast or of one operand of a sum.
int64_t source_row_bytes(const Operation& op);
bool moves(OpKind kind);   // copy, cast, put
bool writes(OpKind kind);  // moves, sum, land, zero

// Calls see(range, write) for every run of bytes that the operation touches.
template <typename See>
void accesses(const Memory& memory, const Program& program, int32_t group, const Operation& op, See&& see) {
  if (!writes(op.kind)) return;
  const int64_t source_bytes = source_row_bytes(op);
  for (int64_t row = 0; row < op.shape.rows; ++row) {
    if (moves(op.kind)) {
      const Spot spot = memory.at(program, group, op.src, program.rank);
      const int64_t begin = spot.offset + row * op.shape.src_pitch;
      see(Range{spot.place, begin, begin + source_bytes}, false);
    }
    for (int32_t s = 0; s < op.source_count; ++s) {
      const Spot spot =
          memory.at(program, group, program.sources[static_cast<size_t>(op.first_source + s)], program.rank);
      see(Range{spot.place, spot.offset, spot.offset + source_bytes}, false);
    }
    for (const Spot& spot : memory.destinations(program, group, op)) {
      const int64_t begin = spot.offset + row * op.shape.dst_pitch;
      see(Range{spot.place, begin, begin + op.shape.row_bytes}, true);
    }
  }
}

}  // namespace tide::verify
