// The arithmetic of the host runtime: copies, casts and ordered sums. Vectorised with run-time dispatch, and bit-equal
// to the scalar reference in src/verify/arithmetic.h on every target, for any alignment and length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tide/dtype.h"

namespace tide::host {

void copy(std::byte* dst, const std::byte* src, int64_t bytes);

// dst[i] = round-to-nearest-even(src[i]) for any castable pair. `elements` of each.
void cast(std::byte* dst, DType dst_dtype, const std::byte* src, DType src_dtype, int64_t elements);

// dst[i] = alpha * (((s0[i] + s1[i]) + s2[i]) + ...), in fp32 (then + the old dst[i] when accumulating), sources
// widened, left fold in span order starting from the first source. alpha is applied even when it is 1 (no effect on the
// bits).
void sum(float* dst, std::span<const std::byte* const> sources, DType dtype, int64_t elements, float alpha,
         bool accumulate);

// Clears flush-to-zero and denormals-are-zero and sets round-to-nearest for its life.
class FloatEnvironment {
 public:
  FloatEnvironment();
  ~FloatEnvironment();
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  uint32_t saved_ = 0;
};

}  // namespace tide::host
