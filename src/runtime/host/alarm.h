// Who wakes whom: a queue that waits for several ranks is woken once, by the last of them.
//
// With more ranks than processors a wake-up costs more than most of what a rank does between two of them, and all but
// the last of a run of waits would be in vain. So a sleeper notes which ranks each of its queues misses and how many
// they are. A rank that has signalled takes its note down, and the one that takes down the last rings. The notes are
// counters of the engine's own: word `queue` between consumer and producer is the note, the one between the consumer
// and itself the number. Late subtractions from notes of an earlier sleep only make the number smaller, which wakes too
// early and never too late.
#pragma once

#include <cstdint>
#include <vector>

#include "fabric/node.h"
#include "tide/program.h"

namespace tide::host {

class Alarm {
 public:
  // Takes the counters [first, first + queues) of the node.
  Alarm(fabric::Node& node, CounterId first, size_t queues);

  // Consumer: sets a queue's notes for `missing` ranks other than this one. In order: set() for every queue, look at
  // every counter again and take_down() what has come, and sleep unless that returned true. Those looks, and the
  // producers' increments, are sequentially consistent: either the producer finds the note or the sleeper the signal.
  void set(size_t queue, const std::vector<int32_t>& missing);
  bool take_down(size_t queue, int32_t from);  // true: nobody is missing any more
  void clear(size_t queue, const std::vector<int32_t>& missing);

  // Producer: a counter at `at` was incremented; ring() tells everybody signalled since the last one.
  void signalled(int32_t at);
  void ring();

 private:
  std::atomic<uint64_t>& note(size_t queue, int32_t at, int32_t from) const {
    return node_.counter(at, first_ + static_cast<CounterId>(queue), from);
  }
  bool take_down(size_t queue, int32_t at, int32_t from);

  fabric::Node& node_;
  CounterId first_;
  size_t queues_;
  std::vector<uint8_t> signalled_;  // by rank
  bool any_ = false;
};

}  // namespace tide::host
