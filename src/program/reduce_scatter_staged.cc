// Reduce-scatter on one node: gradients are pushed in chunks to their owner's staging and folded there (paper 4.1,
// level 1).
//
// Bytes a rank, G = gradient bytes of one shard: (L-1)G pushed, L*G read and 4/item*G written by the fold.
// Memory: staging_slots * (L-1) * chunk_bytes an owner, whatever the size of the group.
// Rounds: one a chunk; a chunk's push runs ahead of the folds by staging_slots.
//
//   push   wait opened[o]                 owner o has left its previous call       (first chunk)
//          wait drained[o]                owner o has folded chunk i - slots       (later chunks)
//          copy rows of owner o -> its staging block of this rank; signal staged -> o
//   sum    zero the padding of out
//          wait staged[j] for every peer j; sum L sources -> out; signal drained -> node (if a later chunk needs the
//          slot) signal opened -> node          after the last chunk
#include <algorithm>

#include "fmt/format.h"
#include "program/issue.h"
#include "tide/collectives.h"
#include "tide/error.h"

namespace tide {
namespace {

// Chunks of the packed output, [begin, end) in elements, never across the border of a pass.
struct Chunk {
  int64_t begin = 0;
  int64_t end = 0;
};

constexpr int64_t kVectorElements = 16;

int64_t align_up(int64_t value, int64_t alignment) { return (value + alignment - 1) / alignment * alignment; }

std::vector<Chunk> cut(int64_t elements, int64_t chunk_elements, int64_t passes) {
  std::vector<Chunk> chunks;
  const int64_t pass_elements = align_up((elements + passes - 1) / passes, kVectorElements);
  for (int64_t begin = 0; begin < elements;) {
    const int64_t pass_end = std::min(elements, (begin / pass_elements + 1) * pass_elements);
    const int64_t end = std::min(pass_end, begin + chunk_elements);
    chunks.push_back({begin, end});
    begin = end;
  }
  // A call without elements still meets every rank.
  if (chunks.empty()) chunks.push_back({0, 0});
  return chunks;
}

// Walks one owner's segments chunk by chunk.
class Cursor {
 public:
  explicit Cursor(std::vector<Segment> segments) : segments_(std::move(segments)) {}

  // Calls visit(segment) for the parts of the next segments that lie before `end`.
  template <typename Visit>
  void advance(int64_t end, Visit&& visit) {
    while (next_ < segments_.size() && segments_[next_].packed_begin < end) {
      Segment part = segments_[next_];
      part.elements = std::min(part.elements, end - part.packed_begin);
      visit(part);
      segments_[next_].packed_begin += part.elements;
      segments_[next_].param_begin += part.elements;
      segments_[next_].elements -= part.elements;
      if (segments_[next_].elements == 0) ++next_;
    }
  }

 private:
  std::vector<Segment> segments_;
  size_t next_ = 0;
};

class Builder {
 public:
  Builder(const Plan& plan, const Space& space, const Layout& layout, int32_t rank, DType grad_dtype,
          const std::vector<bool>& present)
      : plan_(plan),
        space_(space),
        layout_(layout),
        item_(itemsize(grad_dtype)),
        dtype_(grad_dtype),
        program_(start_program(Collective::reduce_scatter, plan, space, rank)) {
    const auto params = layout.params();
    for (size_t p = 0; p < params.size(); ++p) {
      const bool reduced = params[p].trainable && (present.empty() || present[p]);
      const RegionId region = add_call_region(program_, reduced ? params[p].elements() * item_ : 0, item_);
      if (p == 0) grads_ = region;
    }
    const int64_t elements = packed_elements(layout, present);
    out_ = add_call_region(program_, elements * int64_t{sizeof(float)}, alignof(float));
    chunks_ =
        cut(elements, std::max(plan.chunk_bytes / item_ / kVectorElements, int64_t{1}) * kVectorElements, plan.passes);
    for (int32_t owner = 0; owner < plan.local; ++owner) {
      cursors_.emplace_back(segments(layout, owner, present, 0, elements));
    }
    zero_padding(segments(layout, rank, present, 0, elements), elements);
  }

  Program build() && {
    const size_t slots = static_cast<size_t>(plan_.staging_slots);
    for (size_t i = 0; i < std::min(slots, chunks_.size()); ++i) push(i);
    for (size_t i = 0; i < chunks_.size(); ++i) {
      fold(i);
      if (i + slots < chunks_.size()) push(i + slots);
    }
    if (plan_.local > 1) signal(program_, space_.sum, {Reach::node, 0}, space_.opened);
    return std::move(program_);
  }

 private:
  // Where rank `from` puts chunk i in rank `owner`'s staging.
  int64_t block(size_t i, int32_t owner, int32_t from) const {
    const int64_t slot = static_cast<int64_t>(i) % plan_.staging_slots;
    return (slot * (plan_.local - 1) + (from < owner ? from : from - 1)) * plan_.chunk_bytes;
  }

  Ref gradient(const Segment& segment, int32_t owner) const {
    const ParamLayout& param = layout_.params()[static_cast<size_t>(segment.param)];
    const int64_t element = param.first_row(owner) * param.row_elements + segment.param_begin;
    return {static_cast<RegionId>(grads_ + segment.param), element * item_};
  }

  void zero_padding(const std::vector<Segment>& live, int64_t elements) {
    int64_t from = 0;
    const auto zero = [&](int64_t begin, int64_t end) {
      if (begin == end) return;
      Operation op;
      op.kind = OpKind::zero;
      op.queue = space_.sum;
      op.dst_dtype = DType::f32;
      op.dst = {out_, begin * int64_t{sizeof(float)}};
      op.shape = {1, (end - begin) * int64_t{sizeof(float)}, 0, 0};
      program_.ops.push_back(op);
    };
    for (const Segment& segment : live) {
      zero(from, segment.packed_begin);
      from = segment.packed_begin + segment.elements;
    }
    zero(from, elements);
  }

  void push(size_t i) {
    const Chunk& chunk = chunks_[i];
    // Every rank starts with another owner, so that owners are written to evenly.
    for (int32_t step = 1; step < plan_.local; ++step) {
      const int32_t owner = (program_.rank + step) % plan_.local;
      if (i == 0) wait(program_, space_.push, owner, space_.opened);
      if (i >= static_cast<size_t>(plan_.staging_slots)) wait(program_, space_.push, owner, space_.drained);
      cursors_[static_cast<size_t>(owner)].advance(chunk.end, [&](const Segment& part) {
        Operation op;
        op.kind = OpKind::copy;
        op.queue = space_.push;
        op.to = {Reach::local, owner};
        op.src_dtype = op.dst_dtype = dtype_;
        op.src = gradient(part, owner);
        op.dst = {space_.staging, block(i, owner, program_.rank) + (part.packed_begin - chunk.begin) * item_};
        op.shape = {1, part.elements * item_, 0, 0};
        program_.ops.push_back(op);
      });
      signal(program_, space_.push, {Reach::local, owner}, space_.staged);
    }
  }

  void fold(size_t i) {
    const Chunk& chunk = chunks_[i];
    for (int32_t j = 0; j < plan_.local; ++j) {
      if (j != program_.rank) wait(program_, space_.sum, j, space_.staged);
    }
    cursors_[static_cast<size_t>(program_.rank)].advance(chunk.end, [&](const Segment& part) {
      Operation op;
      op.kind = OpKind::sum;
      op.queue = space_.sum;
      op.src_dtype = dtype_;
      op.dst_dtype = DType::f32;
      op.dst = {out_, part.packed_begin * int64_t{sizeof(float)}};
      op.shape = {1, part.elements * int64_t{sizeof(float)}, 0, 0};
      op.first_source = static_cast<int32_t>(program_.sources.size());
      op.source_count = plan_.local;
      for (int32_t j = 0; j < plan_.local; ++j) {
        program_.sources.push_back(
            j == program_.rank
                ? gradient(part, j)
                : Ref{space_.staging, block(i, program_.rank, j) + (part.packed_begin - chunk.begin) * item_});
      }
      program_.ops.push_back(op);
    });
    const bool slot_needed = i + static_cast<size_t>(plan_.staging_slots) < chunks_.size();
    if (plan_.local > 1 && slot_needed) signal(program_, space_.sum, {Reach::node, 0}, space_.drained);
  }

  const Plan& plan_;
  const Space& space_;
  const Layout& layout_;
  int64_t item_;
  DType dtype_;
  Program program_;
  RegionId grads_ = -1;
  RegionId out_ = -1;
  std::vector<Chunk> chunks_;
  std::vector<Cursor> cursors_;  // one an owner
};

}  // namespace

Program reduce_scatter(const Plan& plan, const Space& space, const Layout& layout, int32_t rank, DType grad_dtype,
                       const std::vector<bool>& present) {
  if (!reducible(grad_dtype)) {
    throw Error(ErrorCode::unsupported,
                fmt::format("gradients of group '{}' are {}: a reduce-scatter takes f32, bf16 or f16",
                            layout.group().name, name(grad_dtype)));
  }
  if (!present.empty() && present.size() != layout.params().size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("present has {} entries for the {} tensors of group '{}': give one a tensor",
                            present.size(), layout.params().size(), layout.group().name));
  }
  return Builder(plan, space, layout, rank, grad_dtype, present).build();
}

}  // namespace tide
