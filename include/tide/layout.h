// Where the bytes of a parameter group stand: shards, landings and packed gradients.
//
// Paper section 2.1 and equation 2. A parameter p with dim-0 extent D and trailing product K is sharded over N ranks
// in R = ceil(D/N) padded rows; its shard has s = R*K*itemsize bytes; rank r's shard stands in the landing at
// base_p + r*s_p, so that the unsharded tensor is contiguous there. All sizes and offsets are 64-bit bytes unless
// a name says elements or rows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tide/dtype.h"

namespace tide {

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;  // empty: a 0-dim tensor, held as one row of one element
  DType dtype = DType::f32;    // of the sharded parameter
  bool trainable = true;       // takes part in the reduce-scatter
};

struct Group {
  std::string name;
  std::vector<TensorSpec> tensors;
};

struct LayoutOptions {
  int64_t world = 1;        // N
  int64_t alignment = 256;  // A: landing bases are multiples of it; 1 gives the paper's formulas
  bool cast = false;        // gather floating tensors as `gather_dtype`
  DType gather_dtype = DType::bf16;
};

struct ParamLayout {
  int64_t rows = 0;          // D (1 for a 0-dim tensor)
  int64_t row_elements = 0;  // K
  int64_t padded_rows = 0;   // R, rows a rank
  DType shard_dtype = DType::f32;
  DType gather_dtype = DType::f32;
  bool trainable = true;
  int64_t row_bytes = 0;            // K * itemsize(gather_dtype)
  int64_t shard_bytes = 0;          // s = R * row_bytes
  int64_t landing_base = 0;         // base_p, bytes from the start of the group's landing
  int64_t packed_shard_base = 0;    // offset in a rank's packed shard region, 16-byte aligned; shard_dtype bytes
  int64_t packed_grad_element = 0;  // first element in the reduce-scatter's packed output, stock FSDP2's packing
                                    // over all trainable tensors; -1 for a frozen tensor

  // First row of rank r and how many of its rows exist (0 for an empty shard; < padded_rows in the last one).
  int64_t first_row(int64_t rank) const;
  int64_t valid_rows(int64_t rank) const;
  int64_t valid_elements(int64_t rank) const { return valid_rows(rank) * row_elements; }
  int64_t padded_elements() const { return padded_rows * row_elements; }
  int64_t elements() const { return rows * row_elements; }
  // Landing(p, r), paper equation 2, with the aligned base.
  int64_t landing(int64_t rank) const { return landing_base + rank * shard_bytes; }
};

class Layout {
 public:
  // Checks `group` and lays it out. Throws Error(invalid_argument) naming tensor, field and value for an empty name, a
  // duplicate name, a negative extent, a size that overflows 63 bits, world < 1 or an alignment that is not a power
  // of two.
  Layout(const Group& group, const LayoutOptions& options);

  const Group& group() const { return group_; }
  const LayoutOptions& options() const { return options_; }
  int64_t world() const { return options_.world; }
  std::span<const ParamLayout> params() const { return params_; }

  int64_t landing_bytes() const { return landing_bytes_; }                // of the whole group, with padding
  int64_t packed_shard_bytes() const { return packed_shard_bytes_; }      // one rank's shards, shard_dtype, 16-aligned
  int64_t packed_grad_elements() const { return packed_grad_elements_; }  // one rank's fp32 output, trainable only
  int64_t elements() const;                                               // of the group, unsharded, without padding

 private:
  Group group_;
  LayoutOptions options_;
  std::vector<ParamLayout> params_;
  int64_t landing_bytes_ = 0;
  int64_t packed_shard_bytes_ = 0;
  int64_t packed_grad_elements_ = 0;
};

// One contiguous run of the packed fp32 output of one rank, as elements: the pieces of the reduce-scatter's work.
struct Segment {
  int64_t param = 0;         // index in the group
  int64_t packed_begin = 0;  // first element in the packed output
  int64_t param_begin = 0;   // first element within the rank's shard of the parameter
  int64_t elements = 0;      // elements that exist on that rank; padding is not part of a segment
};

// The segments of `rank`'s output that fall in packed elements [begin, end), in order, over the tensors whose bit in
// `present` is set (empty: every trainable tensor). With a mask the packing is over the present tensors only, as
// FSDP2 packs the parameters that have a gradient.
std::vector<Segment> segments(const Layout& layout, int64_t rank, const std::vector<bool>& present, int64_t begin,
                              int64_t end);

// Elements of one rank's packed output over the present tensors (see segments()).
int64_t packed_elements(const Layout& layout, const std::vector<bool>& present);

}  // namespace tide
