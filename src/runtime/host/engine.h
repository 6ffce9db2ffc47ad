// Runs programs of one rank in the caller's thread: queues take turns, and when all of them wait for peers the thread
// sleeps until one that matters has signalled.
//
// The engine keeps what outlives a call: the base of every counter. Every wait ends by the deadline. A failure aborts
// the session on every rank before it is thrown, and says where this rank was. Nothing is allocated while a program
// runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fabric/node.h"
#include "runtime/host/alarm.h"
#include "runtime/host/calls.h"
#include "runtime/host/placement.h"
#include "runtime/host/prepared.h"
#include "tide/plan.h"
#include "tide/program.h"

namespace tide::host {

class Engine {
 public:
  // Counters that the node must map: the space's, and one a queue for the alarm.
  static int32_t counters(const Space& space) {
    return static_cast<int32_t>(space.counters.size() + space.queues.size());
  }

  // All arguments outlive the engine. The node is mapped with this placement.
  Engine(fabric::Node& node, const Space& space, const Placement& placement, Calls& calls,
         std::chrono::milliseconds deadline);

  // Runs the program of the call that `calls` has begun. Returns the seconds spent waiting for peers.
  double run(const Prepared& prepared, const Binding& binding);

  // Start of a session region in this rank's view.
  std::byte* address(RegionId region) const { return own_[static_cast<size_t>(region)]; }

 private:
  struct Running {
    const Prepared& prepared;
    const Binding& binding;
  };
  enum class State : uint8_t { blocked, finished };

  bool advance(const Running& running);  // true: every queue has finished
  State advance_queue(const Running& running, size_t queue, bool& moved);
  void execute(const Running& running, const Operation& op);
  void signal(const Operation& op);

  // Sleeps until the run of waits that some queue is at has come in. Throws what ends the session instead.
  void block(const Running& running);
  bool spin(const Running& running) const;
  bool note_missing(const Running& running);  // true: a run has come in already
  bool take_down_arrived();
  bool some_run_arrived() const;

  const Operation* at(const Running& running, size_t queue) const;        // null: the queue has finished
  const Operation* blocking(const Running& running, size_t queue) const;  // past waits that have come in since
  bool ready(const Operation& op) const;                                  // a wait or join
  bool any_ready(const Running& running) const;
  int64_t arrived(const Operation& wait) const;  // increments not taken by earlier waits
  int64_t& consumed(CounterId counter, int32_t from);
  int32_t producer(const Operation& wait) const;

  template <typename Visit>
  void each_destination(const Running& running, const Operation& op, Visit&& visit) const;
  const std::byte* source(const Running& running, Ref ref) const;

  std::string position(const Running& running) const;
  [[noreturn]] void fail(const Running& running, ErrorCode code, const std::string& sentence);

  fabric::Node& node_;
  const Space& space_;
  const Placement& placement_;
  Calls& calls_;
  std::chrono::milliseconds deadline_;
  Alarm alarm_;
  bool oversubscribed_ = false;  // more ranks than processors: spinning would hold up the peer waited for

  std::vector<std::byte*> own_;     // this rank's view of each session region
  std::vector<int64_t> consumed_;   // by counter and producer: increments taken, less the primed ones
  std::vector<size_t> next_;        // by queue: the operation it is at
  std::vector<uint64_t> recorded_;  // by event: the run that recorded it
  std::vector<const std::byte*> operands_;
  // By queue, while asleep: the ranks that the run of waits it is at misses, and the first wait for each.
  struct Missing {
    std::vector<int32_t> ranks;
    std::vector<const Operation*> waits;
  };
  std::vector<Missing> missing_;
  uint64_t run_ = 0;
  double waited_ = 0;
};

}  // namespace tide::host
