#include "tide/dtype.h"

#include <array>

#include "fmt/format.h"
#include "tide/error.h"

namespace tide {
namespace {

struct Row {
  DType dtype;
  int64_t bytes;
  std::string_view name;
  std::string_view torch_name;
};

constexpr std::array<Row, 12> kRows{{
    {DType::f64, 8, "f64", "float64"},
    {DType::f32, 4, "f32", "float32"},
    {DType::bf16, 2, "bf16", "bfloat16"},
    {DType::f16, 2, "f16", "float16"},
    {DType::f8_e4m3, 1, "f8_e4m3", "float8_e4m3fn"},
    {DType::f8_e5m2, 1, "f8_e5m2", "float8_e5m2"},
    {DType::i64, 8, "i64", "int64"},
    {DType::i32, 4, "i32", "int32"},
    {DType::i16, 2, "i16", "int16"},
    {DType::i8, 1, "i8", "int8"},
    {DType::u8, 1, "u8", "uint8"},
    {DType::boolean, 1, "bool", "bool"},
}};

const Row& row(DType dtype) { return kRows[static_cast<size_t>(dtype)]; }

}  // namespace

int64_t itemsize(DType dtype) { return row(dtype).bytes; }

std::string_view name(DType dtype) { return row(dtype).name; }

DType parse_dtype(std::string_view text) {
  std::string known;
  for (const Row& candidate : kRows) {
    if (text == candidate.name || text == candidate.torch_name) return candidate.dtype;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", candidate.name);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("dtype '{}' is unknown: use one of {}", text.substr(0, 64), known));
}

bool reducible(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

bool castable(DType from, DType to) { return from == to || (reducible(from) && reducible(to)); }

}  // namespace tide
