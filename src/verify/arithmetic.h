// The arithmetic of the library, written once and plainly: scalar, one rounding a step, no fused multiply-add.
// What the executor computes with and what every kernel is compared to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tide/dtype.h"

namespace tide::verify {

float widen(const std::byte* element, DType dtype);         // f32, bf16 or f16 to f32, exact
void narrow(float value, std::byte* element, DType dtype);  // round to nearest even; NaN stays NaN

void cast(std::byte* dst, DType dst_dtype, const std::byte* src, DType src_dtype, int64_t elements);

// dst[i] = alpha * fold(sources[.][i]), plus the old dst[i] when accumulating: a left fold in span order from the
// first.
void sum(float* dst, std::span<const std::byte* const> sources, DType dtype, int64_t elements, float alpha,
         bool accumulate);

}  // namespace tide::verify
