#include "verify/mutate.h"

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <utility>

#include "fmt/format.h"
#include "verify/memory.h"

namespace tide::verify {
namespace {

using Programs = Ensemble::GroupPrograms;
using List = std::vector<Program> Programs::*;

List list_of(const Action& action) {
  if (action.kind == ActionKind::issue_gather) return action.keep ? &Programs::gather_keep : &Programs::gather_move;
  if (action.kind == ActionKind::release) return &Programs::release;
  if (action.kind == ActionKind::issue_reduce) return &Programs::reduce;
  return nullptr;
}

// An operation of a program that the script runs.
struct Site {
  size_t group = 0;
  List list = nullptr;
  size_t rank = 0;
  size_t index = 0;

  Program& program(Ensemble& ensemble) const { return (ensemble.programs[group].*list)[rank]; }
  const Program& program(const Ensemble& ensemble) const { return (ensemble.programs[group].*list)[rank]; }
};

using Accept = std::function<bool(const Program&, size_t)>;

std::vector<Site> sites(const Ensemble& ensemble, const Script& script, const Accept& accept) {
  std::vector<std::pair<size_t, List>> used;
  for (const Action& action : script.actions) {
    const std::pair<size_t, List> entry{static_cast<size_t>(action.group), list_of(action)};
    if (entry.second != nullptr && std::find(used.begin(), used.end(), entry) == used.end()) used.push_back(entry);
  }
  std::vector<Site> found;
  for (const auto& [group, list] : used) {
    const std::vector<Program>& programs = ensemble.programs[group].*list;
    for (size_t rank = 0; rank < programs.size(); ++rank) {
      for (size_t i = 0; i < programs[rank].ops.size(); ++i) {
        if (accept(programs[rank], i)) found.push_back({group, list, rank, i});
      }
    }
  }
  return found;
}

bool carries_bytes(const Operation& op) { return moves(op.kind) || op.kind == OpKind::sum; }

// The nearest operation of the same queue before or behind `index`; -1 if there is none.
int64_t neighbour(const Program& program, size_t index, int64_t step) {
  for (int64_t i = static_cast<int64_t>(index) + step; i >= 0 && i < static_cast<int64_t>(program.ops.size());
       i += step) {
    if (program.ops[static_cast<size_t>(i)].queue == program.ops[index].queue) return i;
  }
  return -1;
}

bool announces(const Program& program, size_t i) {
  if (program.ops[i].kind != OpKind::signal) return false;
  const int64_t before = neighbour(program, i, -1);
  return before >= 0 && carries_bytes(program.ops[static_cast<size_t>(before)]);
}

bool guards(const Program& program, size_t i) {
  if (program.ops[i].kind != OpKind::wait) return false;
  const int64_t behind = neighbour(program, i, 1);
  return behind >= 0 && carries_bytes(program.ops[static_cast<size_t>(behind)]);
}

Accept of_kind(OpKind kind) {
  return [kind](const Program& program, size_t i) { return program.ops[i].kind == kind; };
}

bool is_move(const Program& program, size_t i) { return moves(program.ops[i].kind); }

bool changes_sources(const Program& program, size_t i) {
  return program.ops[i].kind == OpKind::sum && program.ops[i].source_count > 1;
}

bool to_peer(const Program& program, size_t i) {
  return moves(program.ops[i].kind) && program.ops[i].to.reach == Reach::local;
}

void erase(Program& program, size_t i) { program.ops.erase(program.ops.begin() + static_cast<int64_t>(i)); }

// The operation's sources, moved to the end of the table where they can grow.
std::vector<Ref> take_sources(const Program& program, const Operation& op) {
  const auto first = program.sources.begin() + op.first_source;
  return {first, first + op.source_count};
}

void put_sources(Program& program, Operation& op, const std::vector<Ref>& sources) {
  op.first_source = static_cast<int32_t>(program.sources.size());
  op.source_count = static_cast<int32_t>(sources.size());
  program.sources.insert(program.sources.end(), sources.begin(), sources.end());
}

void break_operation(Program& program, size_t i, Fault fault, uint64_t choice) {
  Operation& op = program.ops[i];
  const int64_t item = itemsize(op.dst_dtype);
  std::vector<Ref> sources = take_sources(program, op);
  const size_t pick = sources.size() > 1 ? choice % (sources.size() - 1) : 0;
  switch (fault) {
    case Fault::repeat_signal: {
      const Operation again = op;
      program.ops.insert(program.ops.begin() + static_cast<int64_t>(i), again);
      break;
    }
    case Fault::early_signal:
      std::swap(op, program.ops[static_cast<size_t>(neighbour(program, i, -1))]);
      break;
    case Fault::late_wait:
      std::swap(op, program.ops[static_cast<size_t>(neighbour(program, i, 1))]);
      break;
    case Fault::shorten_copy:
      op.shape.row_bytes -= item;
      break;
    case Fault::shift_source:
      op.src.offset += op.src.offset >= itemsize(op.src_dtype) ? -itemsize(op.src_dtype) : itemsize(op.src_dtype);
      break;
    case Fault::shift_destination:
      op.dst.offset += item;
      break;
    case Fault::wrong_peer:
      op.to.index = (op.to.index + 1) % program.local;
      break;
    case Fault::out_of_bounds:
      op.dst.offset += program.regions[static_cast<size_t>(op.dst.region)].bytes;
      break;
    case Fault::drop_source:
      sources.erase(sources.begin() + static_cast<int64_t>(pick));
      put_sources(program, op, sources);
      break;
    case Fault::repeat_source:
      sources.insert(sources.begin() + static_cast<int64_t>(pick), sources[pick]);
      put_sources(program, op, sources);
      break;
    case Fault::swap_sources:
      std::swap(sources[pick], sources[pick + 1]);
      put_sources(program, op, sources);
      break;
    default:
      erase(program, i);
      break;
  }
}

std::vector<Site> places(const Ensemble& ensemble, const Script& script, Fault fault) {
  switch (fault) {
    case Fault::drop_wait:
      return sites(ensemble, script, of_kind(OpKind::wait));
    case Fault::drop_signal:
    case Fault::repeat_signal:
      return sites(ensemble, script, of_kind(OpKind::signal));
    case Fault::early_signal:
      return sites(ensemble, script, announces);
    case Fault::late_wait:
      return sites(ensemble, script, guards);
    case Fault::drop_copy:
    case Fault::shorten_copy:
    case Fault::shift_source:
    case Fault::shift_destination:
    case Fault::out_of_bounds:
      return sites(ensemble, script, is_move);
    case Fault::wrong_peer:
      return sites(ensemble, script, to_peer);
    case Fault::drop_sum:
      return sites(ensemble, script, of_kind(OpKind::sum));
    case Fault::drop_zero:
      return sites(ensemble, script, of_kind(OpKind::zero));
    case Fault::drop_source:
    case Fault::repeat_source:
    case Fault::swap_sources:
      return sites(ensemble, script, changes_sources);
    default:
      return {};
  }
}

std::string_view spelled(List list) {
  if (list == &Programs::release) return "release";
  if (list == &Programs::reduce) return "reduce-scatter";
  return list == &Programs::gather_keep ? "kept all-gather" : "all-gather";
}

std::optional<Mutant> in_program(const Ensemble& ensemble, const Script& script, Fault fault, uint64_t choice) {
  const std::vector<Site> all = places(ensemble, script, fault);
  if (all.empty()) return std::nullopt;
  const Site& site = all[choice % all.size()];
  Mutant mutant{ensemble, std::vector<Script>(static_cast<size_t>(ensemble.world()), script), ""};
  const Operation& op = site.program(ensemble).ops[site.index];
  mutant.what = fmt::format("{}: operation {} ({}) of the {} of group {} of rank {}", name(fault), site.index,
                            tide::name(op.kind), spelled(site.list), site.group, site.rank);
  break_operation(site.program(mutant.ensemble), site.index, fault, choice / all.size());
  return mutant;
}

std::optional<Mutant> without_handshake(const Ensemble& ensemble, const Script& script, uint64_t choice) {
  std::set<std::pair<CounterId, size_t>> pairs;  // counter, signalling rank
  for (const Site& site : sites(ensemble, script, of_kind(OpKind::signal))) {
    pairs.emplace(site.program(ensemble).ops[site.index].counter, site.rank);
  }
  if (pairs.empty()) return std::nullopt;
  const auto [counter, from] = *std::next(pairs.begin(), static_cast<int64_t>(choice % pairs.size()));
  Mutant mutant{ensemble, std::vector<Script>(static_cast<size_t>(ensemble.world()), script), ""};
  mutant.what = fmt::format("{}: counter '{}' from rank {}", name(Fault::drop_handshake),
                            ensemble.space.counters[static_cast<size_t>(counter)].name, from);
  for (Programs& programs : mutant.ensemble.programs) {
    for (const List list : {&Programs::gather_move, &Programs::gather_keep, &Programs::release, &Programs::reduce}) {
      for (Program& program : programs.*list) {
        std::erase_if(program.ops, [&, id = counter, sender = static_cast<int32_t>(from)](const Operation& op) {
          if (op.kind == OpKind::signal) return op.counter == id && program.rank == sender;
          return op.kind == OpKind::wait && op.counter == id && op.to.index == sender;
        });
      }
    }
  }
  return mutant;
}

// Positions i for which `from` of a group stands at i and `to`, the next such of the group, at the returned second.
std::vector<std::pair<size_t, size_t>> spans(const Script& script, ActionKind from, ActionKind to) {
  std::vector<std::pair<size_t, size_t>> found;
  for (size_t i = 0; i < script.actions.size(); ++i) {
    if (script.actions[i].kind != from) continue;
    for (size_t j = i + 1; j < script.actions.size(); ++j) {
      if (script.actions[j].kind != to || script.actions[j].group != script.actions[i].group) continue;
      found.emplace_back(i, j);
      break;
    }
  }
  return found;
}

void move_before(Script& script, size_t moved, size_t before) {
  const Action action = script.actions[moved];
  script.actions.erase(script.actions.begin() + static_cast<int64_t>(moved));
  script.actions.insert(script.actions.begin() + static_cast<int64_t>(before), action);
}

std::vector<std::pair<size_t, size_t>> neighbours_of_kind(const Script& script, ActionKind kind) {
  std::vector<std::pair<size_t, size_t>> found;
  for (size_t i = 0; i < script.actions.size(); ++i) {
    if (script.actions[i].kind != kind) continue;
    for (size_t j = i + 1; j < script.actions.size(); ++j) {
      if (script.actions[j].kind != kind) continue;
      if (script.actions[j].group != script.actions[i].group) found.emplace_back(i, j);
      break;
    }
  }
  return found;
}

// Gathers that move pieces which a step changed since the gather before.
std::vector<std::pair<size_t, size_t>> moved_after_step(const Ensemble& ensemble, const Script& script) {
  std::vector<std::pair<size_t, size_t>> found;
  if (ensemble.plan.landing != Landing::resident) return found;
  std::set<int32_t> stepped;
  for (size_t i = 0; i < script.actions.size(); ++i) {
    const Action& action = script.actions[i];
    if (action.kind == ActionKind::step) stepped.insert(action.group);
    if (action.kind != ActionKind::issue_gather || stepped.erase(action.group) == 0 || action.keep) continue;
    if (ensemble.layouts[static_cast<size_t>(action.group)].elements() > 0) found.emplace_back(i, i);
  }
  return found;
}

std::optional<Mutant> in_script(const Ensemble& ensemble, const Script& script, Fault fault, uint64_t choice) {
  std::vector<std::pair<size_t, size_t>> all;
  switch (fault) {
    case Fault::early_release:
      all = spans(script, ActionKind::use, ActionKind::release);
      break;
    case Fault::early_reduce:
      all = spans(script, ActionKind::backward, ActionKind::issue_reduce);
      break;
    case Fault::early_consume:
      all = spans(script, ActionKind::wait_reduce, ActionKind::consume);
      break;
    case Fault::stale_keep:
      all = moved_after_step(ensemble, script);
      break;
    case Fault::skip_call:
      if (ensemble.world() > 1) all = spans(script, ActionKind::issue_reduce, ActionKind::wait_reduce);
      break;
    default:
      if (ensemble.world() > 1) all = neighbours_of_kind(script, ActionKind::issue_reduce);
      break;
  }
  if (all.empty()) return std::nullopt;
  const auto [first, second] = all[choice % all.size()];
  Mutant mutant{ensemble, std::vector<Script>(static_cast<size_t>(ensemble.world()), script), ""};
  const auto spell = [&](size_t i) {
    return fmt::format("{} '{} {}'", i, name(script.actions[i].kind), script.actions[i].group);
  };
  mutant.what = fmt::format("{}: actions {} and {}", name(fault), spell(first), spell(second));
  const bool alone = fault == Fault::swap_calls || fault == Fault::skip_call;
  const size_t culprit = (choice / all.size()) % mutant.scripts.size();
  for (size_t rank = 0; rank < mutant.scripts.size(); ++rank) {
    if (alone && rank != culprit) continue;
    Script& changed = mutant.scripts[rank];
    if (fault == Fault::swap_calls) {
      std::swap(changed.actions[first].group, changed.actions[second].group);
    } else if (fault == Fault::skip_call) {
      changed.actions.erase(changed.actions.begin() + static_cast<int64_t>(second));
      changed.actions.erase(changed.actions.begin() + static_cast<int64_t>(first));
    } else if (fault == Fault::stale_keep) {
      changed.actions[first].keep = true;
    } else {
      move_before(changed, second, first);
    }
  }
  return mutant;
}

constexpr std::array<std::string_view, kFaults> kNames = {
    "drop wait",    "drop signal",   "repeat signal", "drop handshake",    "early signal", "late wait",
    "drop copy",    "shorten copy",  "shift source",  "shift destination", "wrong peer",   "out of bounds",
    "drop sum",     "drop zero",     "drop source",   "repeat source",     "swap sources", "early release",
    "early reduce", "early consume", "stale keep",    "swap calls",        "skip call",
};

}  // namespace

std::string_view name(Fault fault) { return kNames[static_cast<size_t>(fault)]; }

bool may_be_harmless(Fault fault) {
  return fault == Fault::drop_handshake || fault == Fault::early_signal || fault == Fault::late_wait;
}

std::optional<Mutant> inject(const Ensemble& ensemble, const Script& script, Fault fault, uint64_t choice) {
  if (fault == Fault::drop_handshake) return without_handshake(ensemble, script, choice);
  if (fault >= Fault::early_release) return in_script(ensemble, script, fault, choice);
  return in_program(ensemble, script, fault, choice);
}

}  // namespace tide::verify
