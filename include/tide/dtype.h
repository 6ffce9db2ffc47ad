// Element types that TIDE moves and, for the floating ones it reduces, adds.
#pragma once

#include <cstdint>
#include <string_view>

namespace tide {

enum class DType : uint8_t { f64, f32, bf16, f16, f8_e4m3, f8_e5m2, i64, i32, i16, i8, u8, boolean };

// Bytes of one element.
int64_t itemsize(DType dtype);

// "f32", "bf16", ...: the spelling of group and plan files.
std::string_view name(DType dtype);

// The dtype spelled `text`, also accepting PyTorch's names ("float32", "bfloat16", ...).
// Throws Error(invalid_argument) naming `text` and the accepted spellings.
DType parse_dtype(std::string_view text);

// Can be an input of the fp32 reduction: f32, bf16, f16.
bool reducible(DType dtype);

// A gather may convert `from` to `to`: equal types, or any pair of f32, bf16 and f16.
bool castable(DType from, DType to);

}  // namespace tide
