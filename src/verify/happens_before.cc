#include "verify/happens_before.h"

#include <algorithm>

#include "verify/memory.h"

namespace tide::verify {
namespace {

void join(Clock& into, const Clock& from) {
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

}  // namespace

bool touches_bytes(const Action& action) {
  return action.kind == ActionKind::use || action.kind == ActionKind::backward || action.kind == ActionKind::consume ||
         action.kind == ActionKind::step;
}

HappensBefore::HappensBefore(const Ensemble& ensemble, const Replay& replay)
    : ensemble_(ensemble),
      replay_(replay),
      tracks_per_rank_(static_cast<int32_t>(ensemble.space.queues.size()) + 1),
      tracks_(static_cast<size_t>(ensemble.world() * tracks_per_rank_)),
      clocks_(tracks_, Clock(tracks_, 0)) {
  // What callers wrote before the script counts as their first event.
  for (int32_t rank = 0; rank < ensemble.world(); ++rank) {
    const size_t own = static_cast<size_t>(caller(rank));
    clocks_[own][own] = 1;
  }
  const size_t instances = ensemble.space.counters.size() * static_cast<size_t>(ensemble.world() * ensemble.world());
  increments_.resize(instances);
  for (size_t c = 0; c < ensemble.space.counters.size(); ++c) {
    for (int32_t at = 0; at < ensemble.world(); ++at) {
      for (int32_t from = 0; from < ensemble.world(); ++from) {
        const int64_t primed = at == from ? 0 : ensemble.space.counters[c].primed;
        increments_[replay.instance(static_cast<CounterId>(c), at, from)].clocks.assign(static_cast<size_t>(primed),
                                                                                        Clock(tracks_, 0));
      }
    }
  }
}

HappensBefore::CallClocks& HappensBefore::of(const Call& call) {
  const size_t index = static_cast<size_t>(call.index);
  if (calls_.size() <= index) calls_.resize(index + 1);
  return calls_[index];
}

int32_t HappensBefore::operation(const Executed& executed) {
  const Operation& op = *executed.op;
  const Call& call = *executed.call;
  const int32_t at = track(call.rank, op.queue);
  Clock& clock = clocks_[static_cast<size_t>(at)];
  CallClocks& marks = of(call);
  const Queue& queue = ensemble_.space.queues[static_cast<size_t>(op.queue)];
  if (executed.first_of_queue && queue.after_caller) join(clock, marks.issued);
  if (op.kind == OpKind::wait) {
    const size_t instance = replay_.instance(op.counter, call.rank, op.to.index);
    Increments& increments = increments_[instance];
    for (int64_t i = 0; i < op.n; ++i) join(clock, increments.clocks[increments.taken++]);
  } else if (op.kind == OpKind::join) {
    join(clock, marks.events[static_cast<size_t>(op.counter)]);
  } else if (op.kind == OpKind::record) {
    marks.events.resize(static_cast<size_t>(call.program->events));
    marks.events[static_cast<size_t>(op.counter)] = clock;
  } else if (op.kind == OpKind::signal) {
    for (int32_t target = 0; target < ensemble_.world(); ++target) {
      const bool reached = op.to.reach == Reach::node ? target != call.rank : target == op.to.index;
      if (reached) increments_[replay_.instance(op.counter, target, call.rank)].clocks.push_back(clock);
    }
  } else {
    ++clock[static_cast<size_t>(at)];
  }
  if (executed.last_of_queue && queue.completes) join(marks.completed, clock);
  return at;
}

int32_t HappensBefore::action(int32_t rank, const Action& action, const Call* call) {
  const int32_t at = caller(rank);
  Clock& clock = clocks_[static_cast<size_t>(at)];
  if (touches_bytes(action)) ++clock[static_cast<size_t>(at)];
  if (call == nullptr) return at;
  CallClocks& marks = of(*call);
  if (action.kind == ActionKind::wait_gather || action.kind == ActionKind::wait_reduce) {
    join(clock, marks.completed);
  } else {
    marks.issued = clock;
    marks.completed = Clock(tracks_, 0);
  }
  return at;
}

std::vector<std::vector<Clock>> data_order(const Ensemble& ensemble, std::span<const Script> scripts) {
  Replay replay(ensemble, scripts);
  struct Record final : Visitor {
    Record(const Ensemble& e, const Replay& r)
        : order(e, r), clocks(static_cast<size_t>(e.world()) * (e.space.queues.size() + 1)) {}
    bool action(int32_t rank, int32_t, const Action& action, const Call* call) override {
      const int32_t track = order.action(rank, action, call);
      if (touches_bytes(action)) clocks[static_cast<size_t>(track)].push_back(order.clock(track));
      return true;
    }
    bool operation(const Executed& executed) override {
      const int32_t track = order.operation(executed);
      if (writes(executed.op->kind)) clocks[static_cast<size_t>(track)].push_back(order.clock(track));
      return true;
    }
    HappensBefore order;
    std::vector<std::vector<Clock>> clocks;
  } record(ensemble, replay);
  if (!replay.run(Order::greedy, record).finished()) return {};
  return std::move(record.clocks);
}

}  // namespace tide::verify
