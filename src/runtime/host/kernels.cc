// One source, compiled once for every instruction set and chosen at run time.
//
// Conversions are integer arithmetic of our own: the library's differ by version and by target (some flush, some
// truncate), and these bits are promised to be the same everywhere.
#include "runtime/host/kernels.h"

#include <cstring>

#include "fmt/format.h"
#include "tide/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/host/kernels.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which includes this file again for every target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tide::host {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Memory of any alignment. One lane goes through memcpy, because there the library dereferences on some targets.
template <class D>
HWY_INLINE hn::Vec<D> load_bytes(D d, const std::byte* from) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    hn::TFromD<D> lane;
    std::memcpy(&lane, from, sizeof(lane));
    return hn::Set(d, lane);
  } else {
    return hn::LoadU(d, reinterpret_cast<const hn::TFromD<D>*>(from));
  }
}
template <class D>
HWY_INLINE void store_bytes(D d, hn::Vec<D> v, std::byte* to) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    const hn::TFromD<D> lane = hn::GetLane(v);
    std::memcpy(to, &lane, sizeof(lane));
    (void)d;
  } else {
    hn::StoreU(v, d, reinterpret_cast<hn::TFromD<D>*>(to));
  }
}

// An element type as it stands in memory, and its way to and from vectors of f32.
struct F32 {
  static constexpr size_t kBytes = 4;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    return load_bytes(d, from);
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> v, std::byte* to) {
    store_bytes(d, v, to);
  }
};

struct Bf16 {
  static constexpr size_t kBytes = 2;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    const hn::RebindToUnsigned<D> du;
    const hn::Rebind<uint16_t, D> d16;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, load_bytes(d16, from))));
  }
  template <class D>
  static HWY_INLINE void store(D /*d*/, hn::Vec<D> v, std::byte* to) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const hn::Rebind<uint16_t, D> d16;
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFF))));
    // Rounding could carry a NaN into infinity; it keeps its payload and becomes quiet instead.
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40));
    const auto magnitude = hn::BitCast(di, hn::And(bits, hn::Set(du, 0x7FFFFFFF)));
    const auto is_nan = hn::RebindMask(du, hn::Gt(magnitude, hn::Set(di, 0x7F800000)));
    const auto result = hn::IfThenElse(is_nan, quiet, rounded);
    store_bytes(d16, hn::DemoteTo(d16, hn::BitCast(di, result)), to);
  }
};

struct F16 {
  static constexpr size_t kBytes = 2;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const hn::Rebind<uint16_t, D> d16;
    const auto half = hn::PromoteTo(du, load_bytes(d16, from));
    const auto magnitude = hn::And(half, hn::Set(du, 0x7FFF));
    const auto sign = hn::ShiftLeft<16>(hn::Xor(half, magnitude));
    const auto signed_magnitude = hn::BitCast(di, magnitude);
    // Exponent bias 127 - 15, once more to bring infinity and NaN from exponent 31 to 255.
    const auto bias = hn::Set(du, 112U << 23);
    const auto special = hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, 0x7BFF)));
    auto wide = hn::Add(hn::ShiftLeft<13>(magnitude), bias);
    wide = hn::Add(wide, hn::IfThenElseZero(special, bias));
    // Subnormals count units of 2^-24; both steps are exact and meet no subnormal f32.
    const auto counted = hn::Mul(hn::ConvertTo(d, signed_magnitude), hn::Set(d, 0x1p-24F));
    const auto subnormal = hn::RebindMask(du, hn::Lt(signed_magnitude, hn::Set(di, 0x0400)));
    wide = hn::IfThenElse(subnormal, hn::BitCast(du, counted), wide);
    return hn::BitCast(d, hn::Or(wide, sign));
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> v, std::byte* to) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const hn::Rebind<uint16_t, D> d16;
    const auto bits = hn::BitCast(du, v);
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFF));
    const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
    const auto signed_magnitude = hn::BitCast(di, magnitude);

    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
    const auto carried = hn::ShiftRight<13>(hn::Add(magnitude, hn::Add(odd, hn::Set(du, 0xFFF))));
    // Signed, since magnitudes below the normal range go negative here and are replaced below.
    const auto rebased = hn::Sub(hn::BitCast(di, carried), hn::Set(di, 112 << 10));
    auto result = hn::Min(rebased, hn::Set(di, 0x7C00));

    // Below 2^-14 the adder rounds: 0.5 has units of 2^-24, those of a subnormal f16.
    const auto sum = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5F));
    const auto units = hn::Sub(hn::BitCast(di, sum), hn::Set(di, 0x3F000000));
    result = hn::IfThenElse(hn::Lt(signed_magnitude, hn::Set(di, 0x38800000)), units, result);

    const auto payload = hn::BitCast(di, hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3FF)));
    const auto is_nan = hn::Gt(signed_magnitude, hn::Set(di, 0x7F800000));
    result = hn::IfThenElse(is_nan, hn::Or(payload, hn::Set(di, 0x7E00)), result);
    result = hn::Or(result, hn::BitCast(di, sign));
    store_bytes(d16, hn::DemoteTo(d16, result), to);
  }
};

void copy_vectors(std::byte* HWY_RESTRICT dst, const std::byte* HWY_RESTRICT src, size_t bytes) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + 4 * lanes <= bytes; i += 4 * lanes) {
    const auto v0 = load_bytes(d, src + i);
    const auto v1 = load_bytes(d, src + i + lanes);
    const auto v2 = load_bytes(d, src + i + 2 * lanes);
    const auto v3 = load_bytes(d, src + i + 3 * lanes);
    store_bytes(d, v0, dst + i);
    store_bytes(d, v1, dst + i + lanes);
    store_bytes(d, v2, dst + i + 2 * lanes);
    store_bytes(d, v3, dst + i + 3 * lanes);
  }
  std::memcpy(dst + i, src + i, bytes - i);
}

template <class To, class From>
void convert(std::byte* HWY_RESTRICT dst, const std::byte* HWY_RESTRICT src, size_t elements) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + 2 * lanes <= elements; i += 2 * lanes) {
    const auto first = From::load(d, src + i * From::kBytes);
    const auto second = From::load(d, src + (i + lanes) * From::kBytes);
    To::store(d, first, dst + i * To::kBytes);
    To::store(d, second, dst + (i + lanes) * To::kBytes);
  }
  const hn::CappedTag<float, 1> one;
  for (; i < elements; ++i) To::store(one, From::load(one, src + i * From::kBytes), dst + i * To::kBytes);
}

template <class D>
HWY_INLINE void finish(D d, hn::Vec<D> fold, hn::Vec<D> alpha, bool accumulate, std::byte* to) {
  auto v = hn::Mul(fold, alpha);
  if (accumulate) v = hn::Add(v, load_bytes(d, to));
  store_bytes(d, v, to);
}

template <class From>
void fold(float* HWY_RESTRICT out, const std::byte* const* sources, size_t count, size_t elements, float alpha,
          bool accumulate) {
  auto* dst = reinterpret_cast<std::byte*>(out);
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const size_t step = lanes * From::kBytes;
  const auto scale = hn::Set(d, alpha);
  size_t i = 0;
  // Four independent accumulators hide the latency of the adds, each of which stays in source order.
  for (; i + 4 * lanes <= elements; i += 4 * lanes) {
    const std::byte* from = sources[0] + i * From::kBytes;
    auto a0 = From::load(d, from);
    auto a1 = From::load(d, from + step);
    auto a2 = From::load(d, from + 2 * step);
    auto a3 = From::load(d, from + 3 * step);
    for (size_t s = 1; s < count; ++s) {
      from = sources[s] + i * From::kBytes;
      a0 = hn::Add(a0, From::load(d, from));
      a1 = hn::Add(a1, From::load(d, from + step));
      a2 = hn::Add(a2, From::load(d, from + 2 * step));
      a3 = hn::Add(a3, From::load(d, from + 3 * step));
    }
    std::byte* to = dst + i * sizeof(float);
    finish(d, a0, scale, accumulate, to);
    finish(d, a1, scale, accumulate, to + lanes * sizeof(float));
    finish(d, a2, scale, accumulate, to + 2 * lanes * sizeof(float));
    finish(d, a3, scale, accumulate, to + 3 * lanes * sizeof(float));
  }
  for (; i + lanes <= elements; i += lanes) {
    auto a = From::load(d, sources[0] + i * From::kBytes);
    for (size_t s = 1; s < count; ++s) a = hn::Add(a, From::load(d, sources[s] + i * From::kBytes));
    finish(d, a, scale, accumulate, dst + i * sizeof(float));
  }
  const hn::CappedTag<float, 1> one;
  for (; i < elements; ++i) {
    auto a = From::load(one, sources[0] + i * From::kBytes);
    for (size_t s = 1; s < count; ++s) a = hn::Add(a, From::load(one, sources[s] + i * From::kBytes));
    finish(one, a, hn::Set(one, alpha), accumulate, dst + i * sizeof(float));
  }
}

void convert_f32_to_bf16(std::byte* dst, const std::byte* src, size_t n) { convert<Bf16, F32>(dst, src, n); }
void convert_f32_to_f16(std::byte* dst, const std::byte* src, size_t n) { convert<F16, F32>(dst, src, n); }
void convert_bf16_to_f32(std::byte* dst, const std::byte* src, size_t n) { convert<F32, Bf16>(dst, src, n); }
void convert_bf16_to_f16(std::byte* dst, const std::byte* src, size_t n) { convert<F16, Bf16>(dst, src, n); }
void convert_f16_to_f32(std::byte* dst, const std::byte* src, size_t n) { convert<F32, F16>(dst, src, n); }
void convert_f16_to_bf16(std::byte* dst, const std::byte* src, size_t n) { convert<Bf16, F16>(dst, src, n); }

void fold_f32(float* dst, const std::byte* const* s, size_t count, size_t n, float alpha, bool accumulate) {
  fold<F32>(dst, s, count, n, alpha, accumulate);
}
void fold_bf16(float* dst, const std::byte* const* s, size_t count, size_t n, float alpha, bool accumulate) {
  fold<Bf16>(dst, s, count, n, alpha, accumulate);
}
void fold_f16(float* dst, const std::byte* const* s, size_t count, size_t n, float alpha, bool accumulate) {
  fold<F16>(dst, s, count, n, alpha, accumulate);
}

}  // namespace HWY_NAMESPACE
}  // namespace tide::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tide::host {
namespace {

HWY_EXPORT(copy_vectors);
HWY_EXPORT(convert_f32_to_bf16);
HWY_EXPORT(convert_f32_to_f16);
HWY_EXPORT(convert_bf16_to_f32);
HWY_EXPORT(convert_bf16_to_f16);
HWY_EXPORT(convert_f16_to_f32);
HWY_EXPORT(convert_f16_to_bf16);
HWY_EXPORT(fold_f32);
HWY_EXPORT(fold_bf16);
HWY_EXPORT(fold_f16);

// In this range the C library moves strings (rep movsb), which on some processors is 15 times slower than vectors
// where source and destination are not aligned to each other, as a caller's gradients and our staging seldom are.
constexpr int64_t kLeastVectors = 512;
constexpr int64_t kMostVectors = int64_t{1} << 20;

}  // namespace

void copy(std::byte* dst, const std::byte* src, int64_t bytes) {
  if (bytes <= 0) return;
  if (bytes < kLeastVectors || bytes > kMostVectors) {
    std::memcpy(dst, src, static_cast<size_t>(bytes));
  } else {
    HWY_DYNAMIC_DISPATCH(copy_vectors)(dst, src, static_cast<size_t>(bytes));
  }
}

void cast(std::byte* dst, DType dst_dtype, const std::byte* src, DType src_dtype, int64_t elements) {
  if (!castable(src_dtype, dst_dtype)) {
    throw Error(ErrorCode::unsupported, fmt::format("a gather cannot convert {} to {}: cast f32, bf16 and f16 only",
                                                    name(src_dtype), name(dst_dtype)));
  }
  if (src_dtype == dst_dtype) return copy(dst, src, elements * itemsize(src_dtype));
  const auto n = static_cast<size_t>(elements);
  if (src_dtype == DType::f32) {
    if (dst_dtype == DType::bf16) return HWY_DYNAMIC_DISPATCH(convert_f32_to_bf16)(dst, src, n);
    return HWY_DYNAMIC_DISPATCH(convert_f32_to_f16)(dst, src, n);
  }
  if (src_dtype == DType::bf16) {
    if (dst_dtype == DType::f32) return HWY_DYNAMIC_DISPATCH(convert_bf16_to_f32)(dst, src, n);
    return HWY_DYNAMIC_DISPATCH(convert_bf16_to_f16)(dst, src, n);
  }
  if (dst_dtype == DType::f32) return HWY_DYNAMIC_DISPATCH(convert_f16_to_f32)(dst, src, n);
  return HWY_DYNAMIC_DISPATCH(convert_f16_to_bf16)(dst, src, n);
}

void sum(float* dst, std::span<const std::byte* const> sources, DType dtype, int64_t elements, float alpha,
         bool accumulate) {
  if (!reducible(dtype) || sources.empty()) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("cannot add {} sources of {}: give at least one of f32, bf16 or f16", sources.size(), name(dtype)));
  }
  const auto n = static_cast<size_t>(elements);
  const std::byte* const* from = sources.data();
  if (dtype == DType::f32) return HWY_DYNAMIC_DISPATCH(fold_f32)(dst, from, sources.size(), n, alpha, accumulate);
  if (dtype == DType::bf16) return HWY_DYNAMIC_DISPATCH(fold_bf16)(dst, from, sources.size(), n, alpha, accumulate);
  return HWY_DYNAMIC_DISPATCH(fold_f16)(dst, from, sources.size(), n, alpha, accumulate);
}

#if defined(__x86_64__)

FloatEnvironment::FloatEnvironment() : saved_(_mm_getcsr()) {
  _mm_setcsr(0x1F80);  // every exception masked, nearest even, no flushing
}
FloatEnvironment::~FloatEnvironment() { _mm_setcsr(saved_); }

#elif defined(__aarch64__)

FloatEnvironment::FloatEnvironment() {
  uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  saved_ = static_cast<uint32_t>(control);
  // Zero: nearest even, subnormals kept, no traps.
  asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
}
FloatEnvironment::~FloatEnvironment() { asm volatile("msr fpcr, %0" : : "r"(uint64_t{saved_})); }

#else

FloatEnvironment::FloatEnvironment() = default;
FloatEnvironment::~FloatEnvironment() { (void)saved_; }

#endif

}  // namespace tide::host
#endif  // HWY_ONCE
