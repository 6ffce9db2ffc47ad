#include "verify/arithmetic.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tide/error.h"

namespace tide {
namespace {

uint16_t narrowed(float value, DType dtype) {
  uint16_t bits = 0;
  verify::narrow(value, reinterpret_cast<std::byte*>(&bits), dtype);
  return bits;
}

float widened(uint16_t bits, DType dtype) { return verify::widen(reinterpret_cast<const std::byte*>(&bits), dtype); }

// The value by definition, in double, which holds every f16 and bf16 exactly.
double by_definition(uint16_t bits, DType dtype) {
  const int mantissa_bits = dtype == DType::f16 ? 10 : 7;
  const int exponent_bits = 15 - mantissa_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

class Half : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, Half, testing::Values(DType::bf16, DType::f16));

TEST_P(Half, EveryPatternWidensExactlyAndComesBack) {
  for (uint32_t i = 0; i <= 0xFFFF; ++i) {
    const uint16_t bits = static_cast<uint16_t>(i);
    const double wanted = by_definition(bits, GetParam());
    const float got = widened(bits, GetParam());
    if (std::isnan(wanted)) {
      EXPECT_TRUE(std::isnan(got)) << i;
      EXPECT_TRUE(std::isnan(widened(narrowed(got, GetParam()), GetParam()))) << i;
      continue;
    }
    ASSERT_EQ(static_cast<double>(got), wanted) << i;
    ASSERT_EQ(std::signbit(got), (bits & 0x8000) != 0) << i;
    ASSERT_EQ(narrowed(got, GetParam()), bits) << i;
  }
}

// Between any two neighbours: below the middle down, above up, the middle to the even one; through subnormals, the
// border to normals, and the border to infinity.
TEST_P(Half, EveryGapRoundsToNearestEven) {
  const uint16_t infinity = GetParam() == DType::f16 ? 0x7C00 : 0x7F80;
  for (uint16_t low = 0; low < infinity; ++low) {
    const uint16_t high = static_cast<uint16_t>(low + 1);
    const double a = by_definition(low, GetParam());
    // Beyond the last finite value rounding acts as if the exponents went on.
    const double b = high == infinity ? 2 * a - by_definition(static_cast<uint16_t>(low - 1), GetParam())
                                      : by_definition(high, GetParam());
    const float middle = static_cast<float>((a + b) / 2);
    if (static_cast<double>(middle) != (a + b) / 2) continue;  // the finest bf16 subnormals have no f32 between
    const uint16_t even = (low & 1) == 0 ? low : high;
    const uint16_t sign = 0x8000;
    ASSERT_EQ(narrowed(middle, GetParam()), even) << low;
    ASSERT_EQ(narrowed(-middle, GetParam()), even | sign) << low;
    ASSERT_EQ(narrowed(std::nextafterf(middle, 0.0F), GetParam()), low) << low;
    ASSERT_EQ(narrowed(std::nextafterf(middle, 2 * middle), GetParam()), high) << low;
  }
}

TEST_P(Half, Extremes) {
  const uint16_t infinity = GetParam() == DType::f16 ? 0x7C00 : 0x7F80;
  const float huge = std::numeric_limits<float>::infinity();
  EXPECT_EQ(narrowed(huge, GetParam()), infinity);
  EXPECT_EQ(narrowed(-huge, GetParam()), infinity | 0x8000);
  EXPECT_EQ(narrowed(std::numeric_limits<float>::max(), GetParam()), infinity);
  EXPECT_EQ(narrowed(0.0F, GetParam()), 0);
  EXPECT_EQ(narrowed(-0.0F, GetParam()), 0x8000);
  EXPECT_EQ(narrowed(std::numeric_limits<float>::denorm_min(), GetParam()), 0);
  // A NaN whose payload lies only in the bits that are cut off must not become an infinity.
  for (const uint32_t nan : {0x7F800001U, 0xFF800001U, 0x7FFFFFFFU, 0x7FC00000U}) {
    EXPECT_TRUE(std::isnan(widened(narrowed(std::bit_cast<float>(nan), GetParam()), GetParam())));
  }
}

TEST(Arithmetic, CastsBetweenHalvesRoundOnce) {
  // 1 + 2^-8 in f16 is halfway between two bf16.
  const uint16_t f16[] = {0x3C04, 0x3C0C, 0x0001, 0x7C00};
  uint16_t bf16[4];
  verify::cast(reinterpret_cast<std::byte*>(bf16), DType::bf16, reinterpret_cast<const std::byte*>(f16), DType::f16, 4);
  EXPECT_EQ(bf16[0], 0x3F80);
  EXPECT_EQ(bf16[1], 0x3F82);
  EXPECT_EQ(bf16[2], 0x3380);  // 2^-24
  EXPECT_EQ(bf16[3], 0x7F80);
}

TEST(Arithmetic, CastOfOneTypeKeepsBits) {
  const uint32_t bits[] = {0x7F800001U, 0x80000000U, 1U};
  uint32_t out[3] = {};
  verify::cast(reinterpret_cast<std::byte*>(out), DType::f32, reinterpret_cast<const std::byte*>(bits), DType::f32, 3);
  EXPECT_EQ(std::memcmp(out, bits, sizeof bits), 0);
  verify::cast(nullptr, DType::f32, nullptr, DType::f32, 0);
}

std::vector<float> summed(const std::vector<std::vector<float>>& sources, std::vector<float> dst, float alpha,
                          bool accumulate) {
  std::vector<const std::byte*> pointers;
  for (const auto& source : sources) pointers.push_back(reinterpret_cast<const std::byte*>(source.data()));
  verify::sum(dst.data(), pointers, DType::f32, static_cast<int64_t>(dst.size()), alpha, accumulate);
  return dst;
}

TEST(Arithmetic, SumIsALeftFoldFromTheFirst) {
  // 2^24 swallows a 1 but not a 2.
  EXPECT_EQ(summed({{0x1p24F}, {1.0F}, {1.0F}}, {7.0F}, 1.0F, false), std::vector<float>{0x1p24F});
  EXPECT_EQ(summed({{1.0F}, {1.0F}, {0x1p24F}}, {7.0F}, 1.0F, false), std::vector<float>{0x1p24F + 2});
  // Starting from zero would lose the sign.
  EXPECT_TRUE(std::signbit(summed({{-0.0F}, {-0.0F}}, {1.0F}, 1.0F, false)[0]));
  EXPECT_EQ(summed({{3.0F}}, {0.0F}, 0.5F, false), std::vector<float>{1.5F});
}

TEST(Arithmetic, AlphaScalesBeforeAccumulatingAndNothingIsFused) {
  EXPECT_EQ(summed({{2.0F}, {4.0F}}, {10.0F}, 0.5F, true), std::vector<float>{13.0F});
  // alpha * fold rounds on its own: 1 - (1 - 2^-24)... in one rounding would leave a rest.
  const float a = 1.0F + 0x1p-12F;
  EXPECT_EQ(summed({{a}}, {-(1.0F + 0x1p-11F)}, a, true), std::vector<float>{0.0F});
  EXPECT_NE(std::fma(a, a, -(1.0F + 0x1p-11F)), 0.0F);
}

TEST(Arithmetic, SubnormalsAreKept) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(summed({{tiny}, {tiny}}, {0.0F}, 1.0F, false), std::vector<float>{2 * tiny});
}

TEST(Arithmetic, OtherTypesAreRefused) {
  std::byte bytes[8] = {};
  EXPECT_THROW(verify::widen(bytes, DType::i32), Error);
  EXPECT_THROW(verify::narrow(1.0F, bytes, DType::f64), Error);
  EXPECT_THROW(summed({}, {1.0F}, 1.0F, false), Error);
}

}  // namespace
}  // namespace tide
