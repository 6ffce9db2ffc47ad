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
#include "runtime/host/calls.h"
#include "runtime/host/placement.h"
#include "tide/plan.h"
#include "tide/program.h"

namespace tide::host {

// A program ready to run: checked against the tables it names, its operations split by queue.
class Prepared {
 public:
  // Throws Error(unsupported) for an operation that one node does not have, and Error(check_failed) naming operation
  // and region for a reference outside of its region.
  Prepared(const Space& space, Program program);

  const Program& program() const { return program_; }
  std::span<const int32_t> queue(size_t index) const { return queues_[index]; }
  size_t queues() const { return queues_.size(); }
  int64_t bytes_moved() const { return bytes_moved_; }  // written into windows and shared memory by one run
  size_t call_regions() const { return program_.regions.size() - static_cast<size_t>(program_.first_call_region); }

 private:
  Program program_;
  std::vector<std::vector<int32_t>> queues_;  // indices of operations
  int64_t bytes_moved_ = 0;
};

class Engine {
 public:
  // Counters that the node must map: the space's, and one of the engine's own.
  static int32_t counters(const Space& space) { return static_cast<int32_t>(space.counters.size()) + 1; }

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

  // Sleeps until one of the awaited counters has grown. Throws what ends the session instead.
  void block(const Running& running);
  bool spin(const Running& running) const;
  // A rank tells each peer whether it sleeps for it, so that nobody is woken by a signal it does not wait for. The word
  // is a counter of the engine's own, written by its consumer.
  CounterId attention() const { return static_cast<CounterId>(space_.counters.size()); }
  void attend(const Running& running, bool on);
  void ring_peers();

  const Operation* at(const Running& running, size_t queue) const;  // null: the queue has finished
  bool ready(const Operation& op) const;                            // a wait or join
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
  bool oversubscribed_ = false;  // more ranks than processors: spinning would hold up the peer waited for

  std::vector<std::byte*> own_;        // this rank's view of each session region
  std::vector<int64_t> consumed_;      // by counter and producer: increments taken, less the primed ones
  std::vector<size_t> next_;           // by queue: the operation it is at
  std::vector<uint64_t> recorded_;     // by event: the run that recorded it
  std::vector<uint8_t> ring_pending_;  // by rank
  std::vector<const std::byte*> operands_;
  bool rings_pending_ = false;
  uint64_t run_ = 0;
  double waited_ = 0;
};

}  // namespace tide::host
