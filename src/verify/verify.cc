#include "tide/verify.h"

#include "fmt/format.h"
#include "verify/access_map.h"
#include "verify/check_programs.h"
#include "verify/findings.h"
#include "verify/happens_before.h"
#include "verify/leases.h"
#include "verify/memory.h"
#include "verify/replay.h"
#include "verify/symbolic.h"

namespace tide {
namespace verify {
namespace {

// Watches one greedy run: order, races, contents and who produces and consumes each counter.
class Watcher final : public Visitor {
 public:
  Watcher(const Ensemble& ensemble, const Memory& memory, const Replay& replay, Findings& findings)
      : ensemble_(ensemble),
        memory_(memory),
        replay_(replay),
        findings_(findings),
        order_(ensemble, replay),
        uses_(memory.places()),
        symbolic_(ensemble, memory, findings),
        history_(static_cast<size_t>(ensemble.world()) * (ensemble.space.queues.size() + 1)),
        ends_(replay.instances()) {
    for (int32_t rank = 0; rank < ensemble.world(); ++rank) {
      remember(order_.caller(rank), {-1, -1});
      for (size_t g = 0; g < ensemble.layouts.size(); ++g) touch_shards(rank, static_cast<int32_t>(g));
    }
  }

  int64_t checked() const { return checked_; }

  bool action(int32_t rank, int32_t position, const Action& action, const Call* call) override {
    const int32_t track = order_.action(rank, action, call);
    if (touches_bytes(action)) remember(track, {position, -1});
    switch (action.kind) {
      case ActionKind::use:
        touch_landing(rank, action.group);
        break;
      case ActionKind::consume:
        touch_place(memory_.output(action.group, rank), false, track);
        break;
      case ActionKind::step:
        touch_shards(rank, action.group);
        break;
      case ActionKind::backward:
        for (int64_t p = 0; p < params(action.group); ++p) {
          touch_place(memory_.gradient(action.group, rank, p), true, track);
        }
        break;
      default:
        break;
    }
    symbolic_.action(rank, position, action);
    return !findings_.full();
  }

  bool operation(const Executed& executed) override {
    const Operation& op = *executed.op;
    const Call& call = *executed.call;
    counter_ends(executed);
    const int32_t track = order_.operation(executed);
    if (writes(op.kind)) remember(track, {call.action, executed.index});
    accesses(memory_, *call.program, call.group, op,
             [&](const Range& range, bool write) { touch(range, write, track); });
    symbolic_.operation(executed);
    return !findings_.full();
  }

 private:
  struct Event {
    int32_t action = -1;
    int64_t operation = -1;  // -1: the action itself
  };
  struct Ends {
    QueueId producer = -1;
    QueueId consumer = -1;
  };

  int64_t params(int32_t group) const {
    return static_cast<int64_t>(ensemble_.layouts[static_cast<size_t>(group)].params().size());
  }

  // A track's data events number from 1.
  void remember(int32_t track, const Event& event) { history_[static_cast<size_t>(track)].push_back(event); }

  int32_t tracks_per_rank() const { return static_cast<int32_t>(ensemble_.space.queues.size()) + 1; }

  std::string queue_name(int32_t track) const {
    const size_t queue = static_cast<size_t>(track % tracks_per_rank());
    return queue == ensemble_.space.queues.size() ? "caller" : ensemble_.space.queues[queue].name;
  }

  std::string event_name(const Epoch& epoch) const {
    const int32_t rank = epoch.track / tracks_per_rank();
    const Event& event = history_[static_cast<size_t>(epoch.track)][epoch.count - 1];
    if (event.action < 0) return fmt::format("rank {}'s initial values", rank);
    const Action& action = replay_.script(rank).actions[static_cast<size_t>(event.action)];
    if (event.operation < 0) {
      return fmt::format("rank {}'s action {} '{} {}'", rank, event.action, name(action.kind), action.group);
    }
    const Operation& op = program_of(ensemble_, action, rank)->ops[static_cast<size_t>(event.operation)];
    return fmt::format("rank {}'s operation {} ({} on queue {}) of action {} '{} {}'", rank, event.operation,
                       name(op.kind), queue_name(epoch.track), event.action, name(action.kind), action.group);
  }

  void touch(const Range& range, bool write, int32_t track) {
    if (range.begin >= range.end) return;
    ++checked_;
    const AccessMap::Conflict conflict = uses_.enter(range, write, track, order_);
    if (conflict.earlier.track < 0) return;
    const Epoch now = order_.epoch(track);
    const Event& event = history_[static_cast<size_t>(track)].back();
    findings_.add("race", track / tracks_per_rank(), queue_name(track),
                  event.operation >= 0 ? event.operation : event.action,
                  fmt::format("{} {} byte {} of {} without being ordered after {}, which {} it", event_name(now),
                              write ? "writes" : "reads", conflict.byte, memory_.name(range.place),
                              event_name(conflict.earlier), conflict.earlier_writes ? "writes" : "reads"));
  }

  void touch_place(PlaceId place, bool write, int32_t track) { touch({place, 0, memory_.bytes(place)}, write, track); }

  void touch_landing(int32_t rank, int32_t group) {
    const PlaceId place = memory_.landing(group, rank);
    for (const ParamLayout& param : ensemble_.layouts[static_cast<size_t>(group)].params()) {
      touch({place, param.landing_base, param.landing_base + param.elements() * itemsize(param.gather_dtype)}, false,
            order_.caller(rank));
    }
  }

  void touch_shards(int32_t rank, int32_t group) {
    const auto layout = ensemble_.layouts[static_cast<size_t>(group)].params();
    for (size_t p = 0; p < layout.size(); ++p) {
      const Spot spot = memory_.shard(group, rank, static_cast<int64_t>(p));
      const int64_t bytes = layout[p].valid_elements(rank) * itemsize(layout[p].shard_dtype);
      touch({spot.place, spot.offset, spot.offset + bytes}, true, order_.caller(rank));
    }
  }

  void fail(const Executed& executed, const std::string& what) {
    const Call& call = *executed.call;
    findings_.add("law 2", call.rank, ensemble_.space.queues[static_cast<size_t>(executed.op->queue)].name,
                  executed.index,
                  fmt::format("operation {} ({}) of the {} of group {} (action {}) {}", executed.index,
                              name(executed.op->kind), name(call.program->collective), call.group, call.action, what));
  }

  void end(const Executed& executed, QueueId& known, int32_t at, int32_t from, std::string_view verb) {
    const QueueId queue = executed.op->queue;
    if (known < 0) known = queue;
    if (known == queue) return;
    const auto& queues = ensemble_.space.queues;
    fail(executed, fmt::format("{} counter '{}' from rank {} at rank {} on queue {}, others do on queue {}", verb,
                               ensemble_.space.counters[static_cast<size_t>(executed.op->counter)].name, from, at,
                               queues[static_cast<size_t>(queue)].name, queues[static_cast<size_t>(known)].name));
  }

  void counter_ends(const Executed& executed) {
    const Operation& op = *executed.op;
    const int32_t rank = executed.call->rank;
    if (op.kind == OpKind::wait) {
      end(executed, ends_[replay_.instance(op.counter, rank, op.to.index)].consumer, rank, op.to.index, "awaits");
    }
    if (op.kind != OpKind::signal) return;
    for (int32_t at = 0; at < ensemble_.world(); ++at) {
      const bool reached = op.to.reach == Reach::node ? at != rank : at == op.to.index;
      if (reached) end(executed, ends_[replay_.instance(op.counter, at, rank)].producer, at, rank, "signals");
    }
  }

  const Ensemble& ensemble_;
  const Memory& memory_;
  const Replay& replay_;
  Findings& findings_;
  HappensBefore order_;
  AccessMap uses_;
  Symbolic symbolic_;
  std::vector<std::vector<Event>> history_;
  std::vector<Ends> ends_;
  int64_t checked_ = 0;
};

class Bystander final : public Visitor {
 public:
  bool action(int32_t, int32_t, const Action&, const Call*) override { return true; }
  bool operation(const Executed&) override { return true; }
};

void report_blocked(const Outcome& outcome, const std::string& law, const std::string& run, Findings& findings) {
  for (const Blocked& blocked : outcome.blocked) {
    findings.add(law, blocked.rank, blocked.queue, blocked.operation,
                 fmt::format("{}rank {}, {}: {}", run, blocked.rank, blocked.queue, blocked.sentence));
  }
}

// Every increment is awaited but for the credits that a session starts with; and those are back, unless a group is
// still gathered.
void check_balance(const Ensemble& ensemble, const Replay& replay, const std::vector<std::vector<bool>>& leased,
                   Findings& findings) {
  for (size_t c = 0; c < ensemble.space.counters.size(); ++c) {
    const CounterId id = static_cast<CounterId>(c);
    const Counter& counter = ensemble.space.counters[c];
    const auto holds = [&](int32_t rank) {
      for (size_t g = 0; g < ensemble.space.groups.size(); ++g) {
        if (ensemble.space.groups[g].released == id && leased[static_cast<size_t>(rank)][g]) return true;
      }
      return false;
    };
    for (int32_t at = 0; at < ensemble.world(); ++at) {
      for (int32_t from = 0; from < ensemble.world(); ++from) {
        if (at == from) continue;
        const int64_t left = replay.outstanding(id, at, from);
        if (left == counter.primed || (left < counter.primed && (holds(at) || holds(from)))) continue;
        findings.add("law 2", at, "", -1,
                     fmt::format("counter '{}' from rank {} at rank {} ends with {} increments that nobody awaits, it "
                                 "started with {}",
                                 counter.name, from, at, left, counter.primed));
      }
    }
  }
}

}  // namespace
}  // namespace verify

Report verify_script(const Ensemble& ensemble, std::span<const Script> scripts, int32_t limit) {
  verify::Findings findings(limit);
  const verify::Memory memory(ensemble);
  Report report;
  // Checks the scripts' groups before anything indexes with them.
  verify::Replay replay(ensemble, scripts);
  verify::check_programs(ensemble, memory, findings);
  if (!findings.empty()) {
    report.violations = std::move(findings).take();
    return report;
  }
  std::vector<std::vector<bool>> leased;
  for (int32_t rank = 0; rank < ensemble.world(); ++rank) {
    if (rank > 0 && scripts.size() == 1) {
      leased.push_back(leased.back());
      continue;
    }
    leased.push_back(verify::check_leases(ensemble, replay.script(rank), rank, findings));
  }
  verify::Watcher watcher(ensemble, memory, replay, findings);
  const verify::Outcome outcome = replay.run(verify::Order::greedy, watcher);
  report.operations = outcome.operations;
  report.accesses = watcher.checked();
  verify::report_blocked(outcome, "deadlock", "", findings);
  if (outcome.finished()) {
    verify::check_balance(ensemble, replay, leased, findings);
    verify::Bystander bystander;
    const verify::Outcome strict = replay.run(verify::Order::issue, bystander);
    verify::report_blocked(strict, "law 4", "in issue order, ", findings);
  }
  report.violations = std::move(findings).take();
  return report;
}

Report verify_script(const Ensemble& ensemble, const Script& script, int32_t limit) {
  return verify_script(ensemble, std::span<const Script>(&script, 1), limit);
}

}  // namespace tide
