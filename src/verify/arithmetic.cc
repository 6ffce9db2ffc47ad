#include "verify/arithmetic.h"

#include <bit>
#include <cstring>

#include "fmt/format.h"
#include "tide/error.h"

namespace tide::verify {
namespace {

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

float from_f16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t exponent = (half >> 10) & 0x1FU;
  uint32_t mantissa = half & 0x3FFU;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  if (mantissa == 0) return std::bit_cast<float>(sign);
  // Subnormal: mantissa * 2^-24, normal in f32.
  uint32_t biased = 113;
  while ((mantissa & 0x400U) == 0) {
    mantissa <<= 1;
    --biased;
  }
  return std::bit_cast<float>(sign | (biased << 23) | ((mantissa & 0x3FFU) << 13));
}

// `value` / 2^shift, rounded to nearest even.
uint32_t shift_round(uint32_t value, uint32_t shift) {
  const uint32_t kept = value >> shift;
  const uint32_t rest = value & ((1U << shift) - 1);
  const uint32_t half = 1U << (shift - 1);
  return kept + ((rest > half || (rest == half && (kept & 1U) != 0)) ? 1U : 0U);
}

uint16_t to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x1FFU));
  const uint32_t exponent = magnitude >> 23;
  if (exponent >= 143) return static_cast<uint16_t>(sign | 0x7C00U);  // 2^16 and above
  // A carry out of the mantissa moves into the exponent, up to infinity.
  if (exponent >= 113) return static_cast<uint16_t>(sign | shift_round(magnitude - (112U << 23), 13));
  if (exponent < 102) return static_cast<uint16_t>(sign);  // below half of the smallest subnormal
  const uint32_t mantissa = (magnitude & 0x7FFFFFU) | 0x800000U;
  return static_cast<uint16_t>(sign | shift_round(mantissa, 126 - exponent));
}

uint16_t to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>(shift_round(bits, 16));
}

[[noreturn]] void refuse(DType dtype) {
  throw Error(ErrorCode::unsupported, fmt::format("no arithmetic on {}: use f32, bf16 or f16", tide::name(dtype)));
}

}  // namespace

float widen(const std::byte* element, DType dtype) {
  switch (dtype) {
    case DType::f32:
      return load<float>(element);
    case DType::bf16:
      return std::bit_cast<float>(static_cast<uint32_t>(load<uint16_t>(element)) << 16);
    case DType::f16:
      return from_f16(load<uint16_t>(element));
    default:
      refuse(dtype);
  }
}

void narrow(float value, std::byte* element, DType dtype) {
  switch (dtype) {
    case DType::f32:
      return store(element, value);
    case DType::bf16:
      return store(element, to_bf16(value));
    case DType::f16:
      return store(element, to_f16(value));
    default:
      refuse(dtype);
  }
}

void cast(std::byte* dst, DType dst_dtype, const std::byte* src, DType src_dtype, int64_t elements) {
  const int64_t dst_item = itemsize(dst_dtype);
  const int64_t src_item = itemsize(src_dtype);
  if (dst_dtype == src_dtype) {
    if (elements > 0) std::memcpy(dst, src, static_cast<size_t>(elements * src_item));
    return;
  }
  for (int64_t i = 0; i < elements; ++i) narrow(widen(src + i * src_item, src_dtype), dst + i * dst_item, dst_dtype);
}

void sum(float* dst, std::span<const std::byte* const> sources, DType dtype, int64_t elements, float alpha,
         bool accumulate) {
  if (sources.empty()) throw Error(ErrorCode::invalid_argument, "sum of 0 sources: give at least one");
  const int64_t item = itemsize(dtype);
  for (int64_t i = 0; i < elements; ++i) {
    float fold = widen(sources[0] + i * item, dtype);
    for (size_t s = 1; s < sources.size(); ++s) fold = fold + widen(sources[s] + i * item, dtype);
    const float scaled = alpha * fold;
    dst[i] = accumulate ? dst[i] + scaled : scaled;
  }
}

}  // namespace tide::verify
