#include "verify/symbolic.h"

#include <algorithm>

#include "fmt/format.h"

namespace tide::verify {
namespace {

constexpr int64_t kFloat = sizeof(float);

}  // namespace

Symbolic::Symbolic(const Ensemble& ensemble, const Memory& memory, Findings& findings)
    : ensemble_(ensemble),
      memory_(memory),
      findings_(findings),
      contents_(memory.places()),
      views_(static_cast<size_t>(ensemble.world()), std::vector<GroupView>(ensemble.layouts.size())) {
  for (int32_t rank = 0; rank < ensemble.world(); ++rank) {
    for (size_t g = 0; g < ensemble.layouts.size(); ++g) write_shards(rank, static_cast<int32_t>(g));
  }
}

void Symbolic::fail(const Executed& executed, std::string law, const std::string& what) {
  const Call& call = *executed.call;
  findings_.add(std::move(law), call.rank, ensemble_.space.queues[static_cast<size_t>(executed.op->queue)].name,
                executed.index,
                fmt::format("operation {} ({}) of the {} of group {} (action {}) {}", executed.index,
                            name(executed.op->kind), name(call.program->collective), call.group, call.action, what));
}

void Symbolic::fail(int32_t rank, int32_t position, std::string law, const std::string& what) {
  findings_.add(std::move(law), rank, "caller", position, fmt::format("action {} {}", position, what));
}

void Symbolic::write_shards(int32_t rank, int32_t group) {
  const auto params = ensemble_.layouts[static_cast<size_t>(group)].params();
  for (size_t p = 0; p < params.size(); ++p) {
    const Spot spot = memory_.shard(group, rank, static_cast<int64_t>(p));
    Content content;
    content.made = Made::shard;
    content.dtype = params[p].shard_dtype;
    content.group = group;
    content.param = static_cast<int32_t>(p);
    content.rank = rank;
    content.version = view(rank, group).version;
    const int64_t bytes = params[p].valid_elements(rank) * itemsize(params[p].shard_dtype);
    contents_.write({spot.place, spot.offset, spot.offset + bytes}, content);
  }
}

void Symbolic::write_gradients(int32_t rank, int32_t group) {
  const auto params = ensemble_.layouts[static_cast<size_t>(group)].params();
  for (size_t p = 0; p < params.size(); ++p) {
    const PlaceId place = memory_.gradient(group, rank, static_cast<int64_t>(p));
    Content content;
    content.made = Made::gradient;
    content.dtype = ensemble_.grad_dtype;
    content.group = group;
    content.param = static_cast<int32_t>(p);
    content.rank = rank;
    content.version = view(rank, group).backward;
    contents_.write({place, 0, memory_.bytes(place)}, content);
  }
}

void Symbolic::action(int32_t rank, int32_t position, const Action& action) {
  GroupView& group = view(rank, action.group);
  switch (action.kind) {
    case ActionKind::step:
      ++group.version;
      write_shards(rank, action.group);
      break;
    case ActionKind::backward:
      ++group.backward;
      write_gradients(rank, action.group);
      break;
    case ActionKind::issue_reduce:
      if (!action.accumulate) group.parts.clear();
      group.parts.push_back(group.backward);
      break;
    case ActionKind::use:
      check_landing(rank, position, action.group);
      break;
    case ActionKind::consume:
      check_output(rank, position, action.group);
      break;
    case ActionKind::issue_gather:
    case ActionKind::wait_gather:
    case ActionKind::release:
    case ActionKind::wait_reduce:
    case ActionKind::external:
      break;
  }
}

void Symbolic::operation(const Executed& executed) {
  switch (executed.op->kind) {
    case OpKind::copy:
    case OpKind::cast:
      return move(executed);
    case OpKind::sum:
      return sum(executed);
    case OpKind::zero:
      accesses(memory_, *executed.call->program, executed.call->group, *executed.op, [&](const Range& range, bool) {
        Content zero;
        zero.made = Made::zero;
        zero.call = executed.call->sequence;
        contents_.write(range, zero);
      });
      return;
    default:
      return;
  }
}

// What an operand holds; bytes that no operation of this call wrote are reported (law 5) and count as garbage.
std::vector<Symbolic::Piece> Symbolic::pieces(const Executed& executed, const Range& range) {
  std::vector<Piece> result;
  bool reported = false;
  contents_.read(range, [&](int64_t begin, int64_t end, const Content* content) {
    Piece piece{begin - range.begin, end - range.begin, {}};
    std::string why;
    if (content == nullptr) {
      why = "nobody wrote";
    } else if (content->call != Content::kCaller && content->call != executed.call->sequence &&
               memory_.scope(range.place) != Scope::call) {
      why = fmt::format("only call {} wrote, it is call {}", content->call, executed.call->sequence);
    } else {
      piece.content = *content;
    }
    if (!why.empty() && !reported) {
      reported = true;
      fail(executed, "law 5",
           fmt::format("reads bytes [{}, {}) of {}, which {}", begin, end, memory_.name(range.place), why));
    }
    result.push_back(piece);
  });
  return result;
}

void Symbolic::move(const Executed& executed) {
  const Operation& op = *executed.op;
  const Program& program = *executed.call->program;
  const int64_t source_bytes = source_row_bytes(op);
  const int64_t src_item = op.kind == OpKind::cast ? itemsize(op.src_dtype) : 1;
  const int64_t dst_item = op.kind == OpKind::cast ? itemsize(op.dst_dtype) : 1;
  const Spot source = memory_.at(program, executed.call->group, op.src, program.rank);
  const std::vector<Spot> spots = memory_.destinations(program, executed.call->group, op);
  for (int64_t row = 0; row < op.shape.rows; ++row) {
    const int64_t from = source.offset + row * op.shape.src_pitch;
    for (Piece& piece : pieces(executed, {source.place, from, from + source_bytes})) {
      Content& content = piece.content;
      if (op.kind == OpKind::cast && content.made != Made::zero) {
        const bool whole = content.made == Made::shard && content.dtype == op.src_dtype && content.whole() &&
                           piece.begin % src_item == 0 && piece.end % src_item == 0;
        if (!whole) content.made = Made::garbage;
        content.origin = content.origin / src_item * dst_item;
        content.dtype = op.dst_dtype;
      }
      content.call = executed.call->sequence;
      for (const Spot& spot : spots) {
        const int64_t to = spot.offset + row * op.shape.dst_pitch;
        contents_.write({spot.place, to + piece.begin / src_item * dst_item, to + piece.end / src_item * dst_item},
                        content);
      }
    }
  }
}

void Symbolic::sum(const Executed& executed) {
  const Operation& op = *executed.op;
  const Program& program = *executed.call->program;
  const int32_t group = executed.call->group;
  const int64_t item = itemsize(op.src_dtype);
  const int64_t elements = op.shape.row_bytes / kFloat;
  const bool accumulate = executed.call->accumulate;
  std::vector<std::vector<Piece>> operands;
  std::vector<int64_t> cuts{0, elements};
  bool torn = false;
  const auto cut = [&](const std::vector<Piece>& parts, int64_t bytes) {
    for (const Piece& piece : parts) {
      torn = torn || piece.begin % bytes != 0;
      cuts.push_back(piece.begin / bytes);
    }
  };
  for (int32_t s = 0; s < op.source_count; ++s) {
    const Ref& ref = program.sources[static_cast<size_t>(op.first_source + s)];
    const Spot spot = memory_.at(program, group, ref, program.rank);
    operands.push_back(pieces(executed, {spot.place, spot.offset, spot.offset + elements * item}));
    cut(operands.back(), item);
  }
  const Spot to = memory_.at(program, group, op.dst, program.rank);
  std::vector<Piece> base;
  if (accumulate) {
    base = pieces(executed, {to.place, to.offset, to.offset + op.shape.row_bytes});
    cut(base, kFloat);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());

  std::vector<size_t> at(operands.size() + 1, 0);
  const auto content_at = [&](const std::vector<Piece>& parts, size_t& index, int64_t byte) {
    while (parts[index].end <= byte) ++index;
    return parts[index].content.from(byte - parts[index].begin);
  };
  for (size_t c = 0; c + 1 < cuts.size(); ++c) {
    Content result;
    result.made = torn ? Made::garbage : Made::partial;
    result.dtype = DType::f32;
    result.call = executed.call->sequence;
    Term term;
    for (size_t s = 0; s < operands.size(); ++s) {
      const Content content = content_at(operands[s], at[s], cuts[c] * item);
      const bool sound = content.made == Made::gradient && content.whole() && content.dtype == op.src_dtype;
      const int64_t element = content.origin / item;
      if (s == 0) result.origin = element * kFloat;
      term.contributions.push_back({sound ? content.made : Made::garbage, content.dtype, content.group, content.param,
                                    content.rank, content.version, element - result.origin / kFloat});
    }
    if (accumulate) {
      const Content old = content_at(base, at.back(), cuts[c] * kFloat);
      const bool sound = old.made == Made::partial && old.origin == result.origin;
      term.base = sound ? old.term : Term::kBadBase;
    }
    result.term = terms_.intern(std::move(term));
    contents_.write({to.place, to.offset + cuts[c] * kFloat, to.offset + cuts[c + 1] * kFloat}, result);
  }
}

void Symbolic::check_landing(int32_t rank, int32_t position, int32_t group) {
  const Layout& layout = ensemble_.layouts[static_cast<size_t>(group)];
  const PlaceId place = memory_.landing(group, rank);
  const auto params = layout.params();
  for (size_t p = 0; p < params.size(); ++p) {
    const ParamLayout& param = params[p];
    const int64_t item = itemsize(param.gather_dtype);
    for (int32_t owner = 0; owner < ensemble_.world(); ++owner) {
      const int64_t start = param.landing(owner);
      bool reported = false;
      const Range range{place, start, start + param.valid_elements(owner) * item};
      contents_.read(range, [&](int64_t begin, int64_t end, const Content* content) {
        const bool right = content != nullptr && content->made == Made::shard && content->group == group &&
                           content->param == static_cast<int32_t>(p) && content->rank == owner &&
                           content->version == view(rank, group).version && content->dtype == param.gather_dtype &&
                           content->origin == begin - start;
        if (right || reported) return;
        reported = true;
        fail(rank, position, "landing",
             fmt::format("uses '{}' of group {} and finds in bytes [{}, {}) of the landing {} instead of element {} of "
                         "version {} of rank {}'s shard",
                         layout.group().tensors[p].name, group, begin, end,
                         content == nullptr ? "bytes nobody wrote" : describe(*content), (begin - start) / item,
                         view(rank, group).version, owner));
      });
    }
  }
}

TermId Symbolic::expected(int32_t group, int64_t param, const std::vector<int32_t>& parts) {
  TermId id = Term::kNoBase;
  for (const int32_t backward : parts) {
    Term term;
    term.base = id;
    for (int32_t rank = 0; rank < ensemble_.world(); ++rank) {
      term.contributions.push_back(
          {Made::gradient, ensemble_.grad_dtype, group, static_cast<int32_t>(param), rank, backward, 0});
    }
    id = terms_.intern(std::move(term));
  }
  return id;
}

void Symbolic::check_output(int32_t rank, int32_t position, int32_t group) {
  const Layout& layout = ensemble_.layouts[static_cast<size_t>(group)];
  const std::vector<bool>& present = ensemble_.programs[static_cast<size_t>(group)].present;
  const PlaceId place = memory_.output(group, rank);
  const std::vector<int32_t>& parts = view(rank, group).parts;
  if (parts.empty()) {
    fail(rank, position, "contribution", fmt::format("consumes group {}, which was never reduced", group));
    return;
  }
  const int64_t elements = packed_elements(layout, present);
  const auto padding = [&](int64_t from, int64_t to) {
    contents_.read({place, from * kFloat, to * kFloat}, [&](int64_t begin, int64_t, const Content* content) {
      if (content != nullptr && content->made == Made::zero) return;
      fail(rank, position, "contribution",
           fmt::format("consumes group {} and finds in padding element {} {} instead of zeros", group, begin / kFloat,
                       content == nullptr ? "bytes nobody wrote" : describe(*content)));
    });
  };
  int64_t at = 0;
  for (const Segment& segment : segments(layout, rank, present, 0, elements)) {
    padding(at, segment.packed_begin);
    at = segment.packed_begin + segment.elements;
    const ParamLayout& param = layout.params()[static_cast<size_t>(segment.param)];
    const int64_t first = param.first_row(rank) * param.row_elements + segment.param_begin;
    const TermId wanted = expected(group, segment.param, parts);
    bool reported = false;
    const auto wrong = [&](int64_t element, const std::string& why) {
      if (reported) return;
      reported = true;
      fail(rank, position, "contribution",
           fmt::format("consumes '{}' of group {}: in the output of element {}, {}",
                       layout.group().tensors[static_cast<size_t>(segment.param)].name, group, element, why));
    };
    const Range range{place, segment.packed_begin * kFloat, at * kFloat};
    contents_.read(range, [&](int64_t begin, int64_t, const Content* content) {
      const int64_t element = first + (begin - range.begin) / kFloat;
      if (content == nullptr) return wrong(element, "nobody wrote");
      if (content->made != Made::partial) return wrong(element, "stand " + describe(*content));
      if (content->term != wanted) return wrong(element, terms_.difference(content->term, wanted));
      if (content->origin != element * kFloat) {
        return wrong(element, fmt::format("the sum is that of element {}", content->element()));
      }
    });
  }
  padding(at, elements);
}

}  // namespace tide::verify
