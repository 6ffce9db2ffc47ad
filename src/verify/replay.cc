#include "verify/replay.h"

#include <random>

#include "fmt/format.h"
#include "tide/error.h"

namespace tide::verify {
namespace {

bool starts_call(ActionKind kind) {
  return kind == ActionKind::issue_gather || kind == ActionKind::release || kind == ActionKind::issue_reduce;
}

}  // namespace

const Program* program_of(const Ensemble& ensemble, const Action& action, int32_t rank) {
  if (action.group < 0 || static_cast<size_t>(action.group) >= ensemble.programs.size()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("the script has '{} {}', the ensemble has {} groups: name one",
                                                         name(action.kind), action.group, ensemble.programs.size()));
  }
  const Ensemble::GroupPrograms& programs = ensemble.programs[static_cast<size_t>(action.group)];
  const std::vector<Program>* list = nullptr;
  if (action.kind == ActionKind::issue_gather) list = action.keep ? &programs.gather_keep : &programs.gather_move;
  if (action.kind == ActionKind::release) list = &programs.release;
  if (action.kind == ActionKind::issue_reduce) list = &programs.reduce;
  if (list == nullptr) return nullptr;
  if (list->size() != static_cast<size_t>(ensemble.world())) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the script has '{} {}{}', the ensemble has {} such programs for {} ranks: a landing '{}' "
                            "needs another script",
                            name(action.kind), action.group, action.keep ? " keep" : "", list->size(), ensemble.world(),
                            name(ensemble.plan.landing)));
  }
  return &(*list)[static_cast<size_t>(rank)];
}

Replay::Replay(const Ensemble& ensemble, std::span<const Script> scripts)
    : ensemble_(ensemble), scripts_(scripts), world_(ensemble.world()) {
  if (scripts.size() != 1 && scripts.size() != static_cast<size_t>(world_)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} scripts for {} ranks: give one, or one a rank", scripts.size(), world_));
  }
  for (int32_t rank = 0; rank < world_; ++rank) {
    for (const Action& action : script(rank).actions) program_of(ensemble, action, rank);
  }
}

const Script& Replay::script(int32_t rank) const {
  return scripts_.size() == 1 ? scripts_[0] : scripts_[static_cast<size_t>(rank)];
}

size_t Replay::instance(CounterId counter, int32_t at, int32_t from) const {
  return (static_cast<size_t>(counter) * static_cast<size_t>(world_) + static_cast<size_t>(at)) *
             static_cast<size_t>(world_) +
         static_cast<size_t>(from);
}

int64_t Replay::outstanding(CounterId counter, int32_t at, int32_t from) const {
  const Instance& instance_at = counters_[instance(counter, at, from)];
  return instance_at.value - instance_at.taken;
}

void Replay::reset() {
  outcome_ = {};
  calls_.clear();
  size_t calls = 0;
  ranks_.assign(static_cast<size_t>(world_), {});
  for (int32_t rank = 0; rank < world_; ++rank) {
    Rank& state = ranks_[static_cast<size_t>(rank)];
    state.queues.resize(ensemble_.space.queues.size());
    state.last_gather.assign(ensemble_.programs.size(), -1);
    state.last_reduce.assign(ensemble_.programs.size(), -1);
    for (const Action& action : script(rank).actions) calls += starts_call(action.kind) ? 1 : 0;
  }
  // Visitors hold pointers to calls while the list grows.
  calls_.reserve(calls);
  counters_.assign(instances(), {});
  for (size_t c = 0; c < ensemble_.space.counters.size(); ++c) {
    for (int32_t at = 0; at < world_; ++at) {
      for (int32_t from = 0; from < world_; ++from) {
        if (at == from) continue;
        counters_[instance(static_cast<CounterId>(c), at, from)].value = ensemble_.space.counters[c].primed;
      }
    }
  }
}

bool Replay::complete(const Call& call) const {
  for (size_t q = 0; q < call.left.size(); ++q) {
    if (call.completes[q] && call.left[q] > 0) return false;
  }
  return true;
}

int32_t Replay::awaited(int32_t rank, const Action& action) const {
  const Rank& state = ranks_[static_cast<size_t>(rank)];
  if (action.kind == ActionKind::wait_gather) return state.last_gather[static_cast<size_t>(action.group)];
  if (action.kind == ActionKind::wait_reduce) return state.last_reduce[static_cast<size_t>(action.group)];
  return -1;
}

int32_t Replay::start(int32_t rank, int32_t position, const Action& action, const Program* program, Order order) {
  Rank& state = ranks_[static_cast<size_t>(rank)];
  Call call;
  call.index = static_cast<int32_t>(calls_.size());
  call.sequence = state.sequence++;
  call.rank = rank;
  call.group = action.group;
  call.action = position;
  call.accumulate = action.accumulate;
  call.program = program;
  call.left.assign(state.queues.size(), 0);
  call.started.assign(state.queues.size(), false);
  call.recorded.assign(static_cast<size_t>(program->events), false);
  for (const Queue& queue : ensemble_.space.queues) call.completes.push_back(queue.completes);
  for (size_t i = 0; i < program->ops.size(); ++i) {
    const size_t queue = static_cast<size_t>(program->ops[i].queue);
    ++call.left[queue];
    Fifo& fifo = order == Order::issue ? state.strict : state.queues[queue];
    fifo.items.push_back({call.index, static_cast<int64_t>(i)});
  }
  if (action.kind == ActionKind::issue_gather) state.last_gather[static_cast<size_t>(action.group)] = call.index;
  if (action.kind == ActionKind::issue_reduce) state.last_reduce[static_cast<size_t>(action.group)] = call.index;
  calls_.push_back(std::move(call));
  return calls_.back().index;
}

bool Replay::step_caller(int32_t rank, Order order, Visitor& visitor) {
  Rank& state = ranks_[static_cast<size_t>(rank)];
  const std::vector<Action>& actions = script(rank).actions;
  if (state.position == actions.size()) return false;
  if (order == Order::issue && state.strict.head < state.strict.items.size()) return false;
  const int32_t position = static_cast<int32_t>(state.position);
  const Action& action = actions[state.position];
  int32_t call = awaited(rank, action);
  if (call >= 0 && !complete(calls_[static_cast<size_t>(call)])) return false;
  const Program* program = program_of(ensemble_, action, rank);
  if (program != nullptr) call = start(rank, position, action, program, order);
  ++state.position;
  if (!visitor.action(rank, position, action, call < 0 ? nullptr : &calls_[static_cast<size_t>(call)])) {
    outcome_.stopped = true;
  }
  return true;
}

bool Replay::runnable(const Call& call, const Operation& op) const {
  if (op.kind == OpKind::join) return call.recorded[static_cast<size_t>(op.counter)];
  if (op.kind != OpKind::wait) return true;
  const Instance& counter = counters_[instance(op.counter, call.rank, op.to.index)];
  return counter.value - counter.taken >= op.n;
}

void Replay::execute(Call& call, int64_t index, Visitor& visitor) {
  const Operation& op = call.program->ops[static_cast<size_t>(index)];
  const size_t queue = static_cast<size_t>(op.queue);
  Executed executed;
  executed.call = &call;
  executed.index = index;
  executed.op = &op;
  executed.first_of_queue = !call.started[queue];
  executed.last_of_queue = call.left[queue] == 1;
  call.started[queue] = true;
  --call.left[queue];
  if (op.kind == OpKind::wait) {
    Instance& counter = counters_[instance(op.counter, call.rank, op.to.index)];
    counter.taken += op.n;
    executed.value = counter.taken;
  } else if (op.kind == OpKind::signal) {
    for (int32_t at = 0; at < world_; ++at) {
      const bool reached = op.to.reach == Reach::node ? at != call.rank : at == op.to.index;
      if (!reached) continue;
      const int64_t value = counters_[instance(op.counter, at, call.rank)].value += op.n;
      if (executed.value == 0) executed.value = value;
    }
  } else if (op.kind == OpKind::record) {
    call.recorded[static_cast<size_t>(op.counter)] = true;
  }
  ++outcome_.operations;
  if (!visitor.operation(executed)) outcome_.stopped = true;
}

bool Replay::step_queue(int32_t rank, size_t queue, Visitor& visitor) {
  Fifo& fifo = ranks_[static_cast<size_t>(rank)].queues[queue];
  if (fifo.head == fifo.items.size()) return false;
  const Item item = fifo.items[fifo.head];
  Call& call = calls_[static_cast<size_t>(item.call)];
  if (!runnable(call, call.program->ops[static_cast<size_t>(item.op)])) return false;
  ++fifo.head;
  execute(call, item.op, visitor);
  return true;
}

bool Replay::step_strict(int32_t rank, Visitor& visitor) {
  Fifo& fifo = ranks_[static_cast<size_t>(rank)].strict;
  if (fifo.head == fifo.items.size()) return step_caller(rank, Order::issue, visitor);
  const Item item = fifo.items[fifo.head];
  Call& call = calls_[static_cast<size_t>(item.call)];
  if (!runnable(call, call.program->ops[static_cast<size_t>(item.op)])) return false;
  ++fifo.head;
  execute(call, item.op, visitor);
  return true;
}

Blocked Replay::blocked_operation(const Item& item) const {
  const Call& call = calls_[static_cast<size_t>(item.call)];
  const Operation& op = call.program->ops[static_cast<size_t>(item.op)];
  Blocked blocked{call.rank, ensemble_.space.queues[static_cast<size_t>(op.queue)].name, item.op, ""};
  const std::string where = fmt::format("operation {} of the {} of group {} (action {})", item.op,
                                        name(call.program->collective), call.group, call.action);
  if (op.kind == OpKind::join) {
    blocked.sentence = fmt::format("{} joins event {}, which is not recorded", where, op.counter);
  } else {
    const Instance& counter = counters_[instance(op.counter, call.rank, op.to.index)];
    blocked.sentence = fmt::format("{} waits until counter '{}' from rank {} is {}, it is {}", where,
                                   ensemble_.space.counters[static_cast<size_t>(op.counter)].name, op.to.index,
                                   counter.taken + op.n, counter.value);
  }
  return blocked;
}

void Replay::collect_blocked(Order order) {
  for (int32_t rank = 0; rank < world_; ++rank) {
    const Rank& state = ranks_[static_cast<size_t>(rank)];
    const Fifo& strict = state.strict;
    if (strict.head < strict.items.size()) outcome_.blocked.push_back(blocked_operation(strict.items[strict.head]));
    for (const Fifo& fifo : state.queues) {
      if (fifo.head < fifo.items.size()) outcome_.blocked.push_back(blocked_operation(fifo.items[fifo.head]));
    }
    if (order == Order::issue || state.position == script(rank).actions.size()) continue;
    const Action& action = script(rank).actions[state.position];
    outcome_.blocked.push_back(
        {rank, "caller", static_cast<int64_t>(state.position),
         fmt::format("'{} {}' waits for a call that cannot end", name(action.kind), action.group)});
  }
}

Outcome Replay::run(Order order, Visitor& visitor, uint64_t seed) {
  reset();
  const size_t queues = ensemble_.space.queues.size();
  bool progress = true;
  if (order == Order::seeded) {
    std::mt19937_64 random(seed);
    const size_t tracks = queues + 1;
    const size_t all = static_cast<size_t>(world_) * tracks;
    while (progress && !outcome_.stopped) {
      progress = false;
      const size_t first = random() % all;
      for (size_t i = 0; i < all && !progress; ++i) {
        const size_t track = (first + i) % all;
        const int32_t rank = static_cast<int32_t>(track / tracks);
        const size_t queue = track % tracks;
        progress = queue == queues ? step_caller(rank, order, visitor) : step_queue(rank, queue, visitor);
      }
    }
  }
  while (progress && !outcome_.stopped) {
    progress = false;
    for (int32_t rank = 0; rank < world_ && !outcome_.stopped; ++rank) {
      if (order == Order::issue) {
        while (!outcome_.stopped && step_strict(rank, visitor)) progress = true;
        continue;
      }
      while (!outcome_.stopped && step_caller(rank, order, visitor)) progress = true;
      for (size_t q = 0; q < queues && !outcome_.stopped; ++q) {
        while (!outcome_.stopped && step_queue(rank, q, visitor)) progress = true;
      }
    }
  }
  if (!outcome_.stopped) collect_blocked(order);
  return outcome_;
}

}  // namespace tide::verify
