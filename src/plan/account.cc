#include "plan/account.h"

#include <algorithm>

#include "tide/error.h"

namespace tide {
namespace {

constexpr int64_t kVectorElements = 16;

int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

// Gradients have the dtype that forward and backward see; a group without such a tensor has none to push.
int64_t grad_itemsize(const Layout& layout) {
  for (const ParamLayout& param : layout.params()) {
    if (param.trainable && reducible(param.gather_dtype)) return itemsize(param.gather_dtype);
  }
  return itemsize(DType::f32);
}

int64_t gather_copies(const Plan& plan, const Layout& layout) {
  if (plan.landing == Landing::home) return 0;
  const auto params = layout.params();
  // Rank 0 has rows of every tensor that has any.
  return std::count_if(params.begin(), params.end(), [](const ParamLayout& param) { return param.elements() > 0; });
}

// The packed output is cut into passes and these into chunks; a segment is pushed in as many parts as it meets chunks.
class Chunks {
 public:
  Chunks(const Plan& plan, const Layout& layout, int64_t item)
      : chunk_(std::max(plan.chunk_bytes / item / kVectorElements, int64_t{1}) * kVectorElements),
        pass_(divide_up(divide_up(layout.packed_grad_elements(), plan.passes), kVectorElements) * kVectorElements) {}

  int64_t parts(const Segment& segment) const {
    return index(segment.packed_begin + segment.elements - 1) - index(segment.packed_begin) + 1;
  }

 private:
  int64_t index(int64_t element) const { return element / pass_ * divide_up(pass_, chunk_) + element % pass_ / chunk_; }

  int64_t chunk_;
  int64_t pass_;
};

int64_t push_copies(const Plan& plan, const Layout& layout, int64_t item) {
  const Chunks chunks(plan, layout, item);
  int64_t total = 0;
  int64_t least = -1;
  for (int64_t owner = 0; owner < plan.local; ++owner) {
    int64_t parts = 0;
    for (const Segment& segment : segments(layout, owner, {}, 0, layout.packed_grad_elements())) {
      parts += chunks.parts(segment);
    }
    total += parts;
    least = least < 0 ? parts : std::min(least, parts);
  }
  // A rank pushes to every owner but itself.
  return total - least;
}

int64_t add(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    throw Error(ErrorCode::invalid_argument, "the groups need more than 2^63 bytes together: plan fewer of them");
  }
  return sum;
}

}  // namespace

Account account(const Plan& plan, const Layout& layout, std::optional<DType> grad_dtype) {
  return {.tensors = static_cast<int64_t>(layout.params().size()),
          .elements = layout.elements(),
          .shard_bytes = layout.packed_shard_bytes(),
          .landing_bytes = layout.landing_bytes(),
          .reduce_output_bytes = layout.packed_grad_elements() * int64_t{sizeof(float)},
          .gather_copies = gather_copies(plan, layout),
          .push_copies = push_copies(plan, layout, grad_dtype ? itemsize(*grad_dtype) : grad_itemsize(layout))};
}

Account operator+(const Account& a, const Account& b) {
  return {.tensors = a.tensors + b.tensors,
          .elements = add(a.elements, b.elements),
          .shard_bytes = add(a.shard_bytes, b.shard_bytes),
          .landing_bytes = add(a.landing_bytes, b.landing_bytes),
          .reduce_output_bytes = add(a.reduce_output_bytes, b.reduce_output_bytes),
          .gather_copies = a.gather_copies + b.gather_copies,
          .push_copies = add(a.push_copies, b.push_copies)};
}

}  // namespace tide
