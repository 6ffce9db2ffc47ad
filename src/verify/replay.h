// Steps all ranks of an ensemble through their scripts: the one machine behind the verifier and the executor.
//
// Each rank has a caller, which takes the script's actions in order, and the session's queues, which take operations in
// order. Issuing an action appends the program's operations to the queues; waiting for it lets the caller pass once
// every queue that completes the call has run them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tide/verify.h"

namespace tide::verify {

enum class Order : uint8_t {
  greedy,  // round robin over callers and queues, each as far as it gets
  issue,   // each rank does one thing at a time, operations where they are issued (law 4)
  seeded,  // one step of a random caller or queue at a time
};

// One program of one rank started by one action.
struct Call {
  int32_t index = 0;     // unique in the replay
  int32_t sequence = 0;  // calls of this rank before it: equal at all ranks for what belongs together
  int32_t rank = 0;
  int32_t group = 0;
  int32_t action = 0;       // position in the rank's script
  bool accumulate = false;  // of the action
  const Program* program = nullptr;
  std::vector<int64_t> left;    // operations not yet executed, one a queue
  std::vector<bool> started;    // one a queue: an operation was executed
  std::vector<bool> recorded;   // one an event
  std::vector<bool> completes;  // one a queue: a wait for the call waits for it
};

struct Executed {
  const Call* call = nullptr;
  int64_t index = 0;  // of the operation in the program
  const Operation* op = nullptr;
  bool first_of_queue = false;  // the call's first on this queue
  bool last_of_queue = false;
  int64_t value = 0;  // wait: what the counter had to reach; signal: what it is now at the first target
};

class Visitor {
 public:
  virtual ~Visitor() = default;
  // Called as each happens; false ends the replay. `call` is the call that an issue or a release starts, or that a wait
  // waited for; null otherwise.
  virtual bool action(int32_t rank, int32_t position, const Action& action, const Call* call) = 0;
  virtual bool operation(const Executed& executed) = 0;
};

struct Blocked {
  int32_t rank = 0;
  std::string queue;
  int64_t operation = 0;  // index in the program, or of the action for the caller
  std::string sentence;   // what it waits for
};

struct Outcome {
  bool stopped = false;  // by the visitor
  std::vector<Blocked> blocked;
  int64_t operations = 0;
  bool finished() const { return !stopped && blocked.empty(); }
};

// The program that an action runs at `rank`; null for actions that run none.
// Throws Error(invalid_argument) for a group or a kept gather that the ensemble has no program for.
const Program* program_of(const Ensemble& ensemble, const Action& action, int32_t rank);

class Replay {
 public:
  // `scripts`: one, or one a rank. Both arguments outlive the replay.
  Replay(const Ensemble& ensemble, std::span<const Script> scripts);

  Outcome run(Order order, Visitor& visitor, uint64_t seed = 0);

  // Increments of counter `counter` from `from` at `at`, primed ones included, that no wait took; after run().
  int64_t outstanding(CounterId counter, int32_t at, int32_t from) const;
  size_t instance(CounterId counter, int32_t at, int32_t from) const;
  size_t instances() const { return instance(static_cast<CounterId>(ensemble_.space.counters.size()), 0, 0); }
  const Script& script(int32_t rank) const;

 private:
  struct Item {
    int32_t call = 0;
    int64_t op = 0;
  };
  struct Fifo {
    std::vector<Item> items;
    size_t head = 0;
  };
  struct Rank {
    size_t position = 0;   // next action
    int32_t sequence = 0;  // of the next call
    std::vector<Fifo> queues;
    Fifo strict;                                    // issue order over all queues (Order::issue)
    std::vector<int32_t> last_gather, last_reduce;  // call index a group, -1: none
  };
  struct Instance {
    int64_t value = 0;
    int64_t taken = 0;
  };

  void reset();
  bool step_caller(int32_t rank, Order order, Visitor& visitor);
  bool step_queue(int32_t rank, size_t queue, Visitor& visitor);
  bool step_strict(int32_t rank, Visitor& visitor);
  bool runnable(const Call& call, const Operation& op) const;
  void execute(Call& call, int64_t index, Visitor& visitor);
  bool complete(const Call& call) const;
  int32_t start(int32_t rank, int32_t position, const Action& action, const Program* program, Order order);
  int32_t awaited(int32_t rank, const Action& action) const;
  Blocked blocked_operation(const Item& item) const;
  void collect_blocked(Order order);

  const Ensemble& ensemble_;
  std::span<const Script> scripts_;
  int32_t world_;
  std::vector<Rank> ranks_;
  std::vector<Call> calls_;
  std::vector<Instance> counters_;
  Outcome outcome_;
};

}  // namespace tide::verify
