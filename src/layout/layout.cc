#include "tide/layout.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <unordered_set>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tide/error.h"

namespace tide {
namespace {

// Sizes beyond this could overflow once padded and aligned.
constexpr int64_t kMostBytes = std::numeric_limits<int64_t>::max() / 4;
constexpr int64_t kPackedAlignment = 16;
constexpr int64_t kMostWorld = std::numeric_limits<int32_t>::max();

[[noreturn]] void refuse(const Group& group, const TensorSpec& tensor, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, fmt::format("tensor '{}' of group '{}': {}", tensor.name, group.name, what));
}

int64_t multiply(const Group& group, const TensorSpec& tensor, int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || product > kMostBytes) {
    refuse(group, tensor,
           fmt::format("shape [{}] needs more than 2^61 bytes over all ranks: make it smaller",
                       fmt::join(tensor.shape, ", ")));
  }
  return product;
}

int64_t align_up(int64_t value, int64_t alignment) { return (value + alignment - 1) / alignment * alignment; }

ParamLayout lay_out(const Group& group, const TensorSpec& tensor, const LayoutOptions& options) {
  ParamLayout param;
  param.shard_dtype = tensor.dtype;
  param.gather_dtype = options.cast && reducible(tensor.dtype) ? options.gather_dtype : tensor.dtype;
  param.trainable = tensor.trainable;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    if (tensor.shape[d] < 0) {
      refuse(group, tensor, fmt::format("shape[{}] is {}: give extents of 0 or more", d, tensor.shape[d]));
    }
  }
  param.rows = tensor.shape.empty() ? 1 : tensor.shape[0];
  param.row_elements = 1;
  for (size_t d = 1; d < tensor.shape.size(); ++d) {
    param.row_elements = multiply(group, tensor, param.row_elements, tensor.shape[d]);
  }
  param.padded_rows = param.rows / options.world + (param.rows % options.world != 0 ? 1 : 0);
  multiply(group, tensor, param.rows, 1);  // extents alone may be huge where another extent is 0
  const int64_t padded = multiply(group, tensor, param.padded_rows, param.row_elements);
  multiply(group, tensor, param.row_elements, 8);  // a row may be huge where there is none of it
  // Shards, landings and fp32 outputs over all ranks: all bounded by 8-byte elements.
  multiply(group, tensor, multiply(group, tensor, padded, options.world), 8);
  param.row_bytes = param.row_elements * itemsize(param.gather_dtype);
  param.shard_bytes = padded * itemsize(param.gather_dtype);
  return param;
}

}  // namespace

int64_t ParamLayout::first_row(int64_t rank) const { return std::min(rank * padded_rows, rows); }

int64_t ParamLayout::valid_rows(int64_t rank) const { return first_row(rank + 1) - first_row(rank); }

Layout::Layout(const Group& group, const LayoutOptions& options) : group_(group), options_(options) {
  if (options.world < 1 || options.world > kMostWorld) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("world is {} for group '{}': give 1 to 2^31-1 ranks", options.world, group.name));
  }
  if (options.alignment < 1 || !std::has_single_bit(static_cast<uint64_t>(options.alignment)) ||
      options.alignment > (int64_t{1} << 30)) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("alignment is {} for group '{}': give a power of two up to 2^30", options.alignment, group.name));
  }
  if (options.cast && !reducible(options.gather_dtype)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("gather dtype is {} for group '{}': give f32, bf16 or f16",
                                                         name(options.gather_dtype), group.name));
  }
  if (group.name.empty()) {
    throw Error(ErrorCode::invalid_argument, "a group has an empty name: name every group");
  }
  std::unordered_set<std::string_view> names;
  for (const TensorSpec& tensor : group_.tensors) {
    if (tensor.name.empty()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("a tensor of group '{}' has an empty name: name every tensor", group.name));
    }
    if (!names.insert(tensor.name).second) refuse(group, tensor, "the name is used twice: names must differ");
    ParamLayout param = lay_out(group_, tensor, options_);
    param.landing_base = align_up(landing_bytes_, options_.alignment);
    landing_bytes_ = param.landing_base + options_.world * param.shard_bytes;
    param.packed_shard_base = align_up(packed_shard_bytes_, kPackedAlignment);
    packed_shard_bytes_ = param.packed_shard_base + param.padded_elements() * itemsize(param.shard_dtype);
    param.packed_grad_element = param.trainable ? packed_grad_elements_ : -1;
    if (param.trainable) packed_grad_elements_ += param.padded_elements();
    const int64_t packed_grad_bytes = packed_grad_elements_ * int64_t{sizeof(float)};
    if (std::max({landing_bytes_, packed_shard_bytes_, packed_grad_bytes}) > kMostBytes) {
      refuse(group, tensor, "the group needs more than 2^61 bytes up to here: split it");
    }
    params_.push_back(param);
  }
}

int64_t Layout::elements() const {
  int64_t total = 0;
  for (const ParamLayout& param : params_) total += param.elements();
  return total;
}

std::vector<Segment> segments(const Layout& layout, int64_t rank, const std::vector<bool>& present, int64_t begin,
                              int64_t end) {
  std::vector<Segment> result;
  int64_t packed = 0;
  const auto params = layout.params();
  for (size_t p = 0; p < params.size() && packed < end; ++p) {
    if (!params[p].trainable || (!present.empty() && !present[p])) continue;
    const int64_t from = std::max(begin, packed);
    const int64_t to = std::min(end, packed + params[p].valid_elements(rank));
    if (from < to) result.push_back({static_cast<int64_t>(p), from, from - packed, to - from});
    packed += params[p].padded_elements();
  }
  return result;
}

int64_t packed_elements(const Layout& layout, const std::vector<bool>& present) {
  int64_t packed = 0;
  const auto params = layout.params();
  for (size_t p = 0; p < params.size(); ++p) {
    if (params[p].trainable && (present.empty() || present[p])) packed += params[p].padded_elements();
  }
  return packed;
}

}  // namespace tide
