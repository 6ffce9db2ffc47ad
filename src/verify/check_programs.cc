#include "verify/check_programs.h"

#include <algorithm>
#include <set>
#include <vector>

#include "fmt/format.h"

namespace tide::verify {
namespace {

bool same(const Region& a, const Region& b) {
  return a.scope == b.scope && a.bytes == b.bytes && a.alignment == b.alignment;
}

class ProgramCheck {
 public:
  ProgramCheck(const Ensemble& ensemble, const Memory& memory, Findings& findings, const Program& program,
               Collective collective, int32_t group, int32_t rank)
      : ensemble_(ensemble),
        memory_(memory),
        findings_(findings),
        program_(program),
        collective_(collective),
        group_(group),
        rank_(rank) {}

  void run() {
    if (!tables()) return;
    for (index_ = 0; index_ < static_cast<int64_t>(program_.ops.size()) && !findings_.full(); ++index_) {
      operation(program_.ops[static_cast<size_t>(index_)]);
    }
  }

 private:
  bool fail(std::string law, const std::string& what) {
    std::string queue;
    if (index_ >= 0) {
      const QueueId id = program_.ops[static_cast<size_t>(index_)].queue;
      const auto& queues = ensemble_.space.queues;
      queue = id >= 0 && static_cast<size_t>(id) < queues.size() ? queues[static_cast<size_t>(id)].name
                                                                 : fmt::format("queue {}", id);
    }
    const std::string place =
        index_ < 0 ? fmt::format("the {} of group {}", name(collective_), group_)
                   : fmt::format("operation {} ({}) of the {} of group {}", index_,
                                 name(program_.ops[static_cast<size_t>(index_)].kind), name(collective_), group_);
    findings_.add(std::move(law), rank_, queue, index_, place + " " + what);
    return false;
  }

  bool tables() {
    const Space& space = ensemble_.space;
    if (program_.collective != collective_ || program_.rank != rank_ || program_.local != ensemble_.plan.local ||
        program_.nodes != ensemble_.plan.nodes) {
      return fail("law 1", fmt::format("is a {} of rank {} of {} x {}", name(program_.collective), program_.rank,
                                       program_.nodes, program_.local));
    }
    const size_t session = space.regions.size();
    if (program_.first_call_region != static_cast<RegionId>(session) || program_.regions.size() < session) {
      return fail("law 1", fmt::format("has call regions from {}, the session has {} regions",
                                       program_.first_call_region, session));
    }
    for (size_t i = 0; i < session; ++i) {
      if (!same(program_.regions[i], space.regions[i])) {
        return fail("law 1", fmt::format("describes region {} otherwise than the session", i));
      }
    }
    if (program_.events < 0) return fail("law 1", fmt::format("has {} events", program_.events));
    return call_regions();
  }

  bool call_regions() {
    const size_t params = ensemble_.layouts[static_cast<size_t>(group_)].params().size();
    const size_t count = program_.regions.size() - static_cast<size_t>(program_.first_call_region);
    const bool binds_nothing = collective_ == Collective::all_gather && count == 0;
    const size_t expected = collective_ == Collective::all_gather ? params
                            : collective_ == Collective::release  ? 0
                                                                  : params + 1;
    if (!binds_nothing && count != expected) {
      return fail("law 1", fmt::format("has {} call regions, a binding supplies {}", count, expected));
    }
    for (size_t k = 0; k < count; ++k) {
      const RegionId id = program_.first_call_region + static_cast<RegionId>(k);
      const Region& region = program_.regions[static_cast<size_t>(id)];
      const PlaceId place = memory_.at(program_, group_, {id, 0}, rank_).place;
      if (region.scope != Scope::call || region.bytes > memory_.bytes(place)) {
        return fail("bounds", fmt::format("takes {} bytes of {}, which has {}", region.bytes, memory_.name(place),
                                          memory_.bytes(place)));
      }
    }
    return true;
  }

  bool operation(const Operation& op) {
    if (op.queue < 0 || static_cast<size_t>(op.queue) >= ensemble_.space.queues.size()) {
      return fail("law 1", fmt::format("names queue {} of {}", op.queue, ensemble_.space.queues.size()));
    }
    switch (op.kind) {
      case OpKind::signal:
      case OpKind::wait:
        return counter(op);
      case OpKind::record:
      case OpKind::join:
        return event(op);
      case OpKind::put:
        if (op.shape.rows != 1) return fail("law 6", fmt::format("puts {} ranges, a put is one", op.shape.rows));
        [[fallthrough]];
      case OpKind::land:
        return fail("law 1", "needs several nodes, the plan has one");
      case OpKind::copy:
      case OpKind::cast:
      case OpKind::sum:
      case OpKind::zero:
        return data(op);
    }
    return fail("law 1", "is of no known kind");
  }

  bool event(const Operation& op) {
    if (op.counter < 0 || op.counter >= program_.events) {
      return fail("law 1", fmt::format("names event {} of {}", op.counter, program_.events));
    }
    if (op.kind == OpKind::join) return true;
    if (!recorded_.insert(op.counter).second) {
      return fail("law 2", fmt::format("records event {} a second time", op.counter));
    }
    return true;
  }

  bool local(int32_t index) const { return index >= 0 && index < program_.local; }

  bool counter(const Operation& op) {
    if (op.counter < 0 || static_cast<size_t>(op.counter) >= ensemble_.space.counters.size()) {
      return fail("law 1", fmt::format("names counter {} of {}", op.counter, ensemble_.space.counters.size()));
    }
    const bool wait = op.kind == OpKind::wait;
    const bool peer = op.to.reach == Reach::local && local(op.to.index) && op.to.index != rank_;
    if (!peer && (wait || op.to.reach != Reach::node)) {
      return fail("law 1", fmt::format("addresses {} {}, a counter stands between two ranks of the node",
                                       name(op.to.reach), op.to.index));
    }
    if (op.n < 1) return fail("law 3", fmt::format("has n {}: counters only grow", op.n));
    if (!wait && op.n != 1) return fail("law 2", fmt::format("adds {}, a signal is one increment", op.n));
    return true;
  }

  bool data(const Operation& op) {
    if (op.to.reach == Reach::rail || (op.to.reach == Reach::local && !local(op.to.index))) {
      return fail("law 1",
                  fmt::format("writes to {} {} of {} local ranks", name(op.to.reach), op.to.index, program_.local));
    }
    const Shape& shape = op.shape;
    if (shape.rows < 0 || shape.row_bytes < 0) {
      return fail("bounds", fmt::format("has {} runs of {} bytes", shape.rows, shape.row_bytes));
    }
    if (op.kind == OpKind::cast && !castable(op.src_dtype, op.dst_dtype)) {
      return fail("law 1", fmt::format("casts {} to {}", name(op.src_dtype), name(op.dst_dtype)));
    }
    if (op.kind == OpKind::sum && !sum(op)) return false;
    if (op.kind == OpKind::cast && shape.row_bytes % itemsize(op.dst_dtype) != 0) {
      return fail("bounds", fmt::format("has {} bytes a run, which are no whole elements", shape.row_bytes));
    }
    const bool pitched = shape.rows > 1;
    if (pitched && shape.dst_pitch < shape.row_bytes) {
      return fail("bounds", fmt::format("writes runs of {} bytes every {} bytes", shape.row_bytes, shape.dst_pitch));
    }
    if (pitched && moves(op.kind) && shape.src_pitch < source_row_bytes(op)) {
      return fail("bounds",
                  fmt::format("reads runs of {} bytes every {} bytes", source_row_bytes(op), shape.src_pitch));
    }
    return ranges(op);
  }

  bool sum(const Operation& op) {
    if (!reducible(op.src_dtype) || op.dst_dtype != DType::f32 || op.to.reach != Reach::self) {
      return fail("law 1", fmt::format("sums {} into {} at {}, a sum is into f32 at the rank itself",
                                       name(op.src_dtype), name(op.dst_dtype), name(op.to.reach)));
    }
    if (op.shape.rows != 1 || op.shape.row_bytes % int64_t{sizeof(float)} != 0) {
      return fail("bounds", fmt::format("has {} runs of {} bytes, a sum is one run of whole elements", op.shape.rows,
                                        op.shape.row_bytes));
    }
    const int64_t end = int64_t{op.first_source} + op.source_count;
    if (op.first_source < 0 || op.source_count < 1 || end > static_cast<int64_t>(program_.sources.size())) {
      return fail("law 1", fmt::format("sums sources {} to {} of {}", op.first_source, end, program_.sources.size()));
    }
    return true;
  }

  bool region(const Ref& ref) {
    if (ref.region >= 0 && static_cast<size_t>(ref.region) < program_.regions.size()) return true;
    return fail("law 1", fmt::format("names region {} of {}", ref.region, program_.regions.size()));
  }

  bool ranges(const Operation& op) {
    if (!region(op.dst) || (moves(op.kind) && !region(op.src))) return false;
    for (int32_t s = 0; s < op.source_count; ++s) {
      if (!region(program_.sources[static_cast<size_t>(op.first_source + s)])) return false;
    }
    if (op.to.reach != Reach::self && op.dst.region >= program_.first_call_region) {
      return fail("law 1", fmt::format("writes to {} {}, but its destination belongs to this call", name(op.to.reach),
                                       op.to.index));
    }
    std::vector<Range> reads;
    std::vector<Range> written;
    bool inside = true;
    accesses(memory_, program_, group_, op, [&](const Range& range, bool write) {
      if (!inside) return;
      if (range.begin < 0 || range.end > memory_.bytes(range.place)) {
        inside =
            fail("bounds", fmt::format("{} bytes [{}, {}) of {}, which has {}", write ? "writes" : "reads", range.begin,
                                       range.end, memory_.name(range.place), memory_.bytes(range.place)));
      }
      (write ? written : reads).push_back(range);
    });
    if (!inside) return false;
    for (const Range& read : reads) {
      for (const Range& write : written) {
        if (read.place != write.place || read.begin >= write.end || write.begin >= read.end) continue;
        return fail("bounds", fmt::format("reads and writes bytes of {} around {}", memory_.name(read.place),
                                          std::max(read.begin, write.begin)));
      }
    }
    return true;
  }

  const Ensemble& ensemble_;
  const Memory& memory_;
  Findings& findings_;
  const Program& program_;
  Collective collective_;
  int32_t group_;
  int32_t rank_;
  std::set<CounterId> recorded_;
  int64_t index_ = -1;  // of the operation in hand; -1: the program as a whole
};

}  // namespace

void check_programs(const Ensemble& ensemble, const Memory& memory, Findings& findings) {
  for (size_t g = 0; g < ensemble.programs.size(); ++g) {
    const auto all = [&](const std::vector<Program>& programs, Collective collective) {
      for (size_t rank = 0; rank < programs.size() && !findings.full(); ++rank) {
        ProgramCheck(ensemble, memory, findings, programs[rank], collective, static_cast<int32_t>(g),
                     static_cast<int32_t>(rank))
            .run();
      }
    };
    all(ensemble.programs[g].gather_move, Collective::all_gather);
    all(ensemble.programs[g].gather_keep, Collective::all_gather);
    all(ensemble.programs[g].release, Collective::release);
    all(ensemble.programs[g].reduce, Collective::reduce_scatter);
  }
}

}  // namespace tide::verify
