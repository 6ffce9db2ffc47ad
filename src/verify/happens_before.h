// Vector clocks over the callers and queues of all ranks, driven by a replay.
//
// A track's own component counts the data events on it (operations that touch bytes, actions that touch bytes), so two
// programs that differ only in signals and waits can be compared by the clocks of their data events.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "verify/replay.h"

namespace tide::verify {

using Clock = std::vector<uint32_t>;  // one component a track

// A data event: the `count`-th on its track.
struct Epoch {
  int32_t track = -1;
  uint32_t count = 0;
};

class HappensBefore {
 public:
  HappensBefore(const Ensemble& ensemble, const Replay& replay);

  int32_t track(int32_t rank, QueueId queue) const { return rank * tracks_per_rank_ + queue; }
  int32_t caller(int32_t rank) const { return rank * tracks_per_rank_ + tracks_per_rank_ - 1; }

  // In the order of the replay. Both return the track on which it happened; its clock is then that of the event.
  int32_t operation(const Executed& executed);
  int32_t action(int32_t rank, const Action& action, const Call* call);

  const Clock& clock(int32_t track) const { return clocks_[static_cast<size_t>(track)]; }
  Epoch epoch(int32_t track) const { return {track, clock(track)[static_cast<size_t>(track)]}; }
  bool before(const Epoch& event, int32_t track) const {
    return clocks_[static_cast<size_t>(track)][static_cast<size_t>(event.track)] >= event.count;
  }

 private:
  struct CallClocks {
    Clock issued;
    Clock completed;  // of every operation on a queue that completes the call
    std::vector<Clock> events;
  };
  struct Increments {
    std::vector<Clock> clocks;
    size_t taken = 0;
  };

  CallClocks& of(const Call& call);

  const Ensemble& ensemble_;
  const Replay& replay_;
  int32_t tracks_per_rank_;
  size_t tracks_;
  std::vector<Clock> clocks_;
  std::vector<CallClocks> calls_;
  std::vector<Increments> increments_;
};

bool touches_bytes(const Action& action);

// The clock of every data event of a greedy run, by track: two ensembles with equal orders of equal data events allow
// the same executions. Empty when the run deadlocks.
std::vector<std::vector<Clock>> data_order(const Ensemble& ensemble, std::span<const Script> scripts);

}  // namespace tide::verify
