// Every kernel on every instruction set of this machine against the scalar reference, bit for bit.
#include "runtime/host/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "hwy/targets.h"
#include "tide/error.h"
#include "verify/arithmetic.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tide {
namespace {

constexpr int64_t kGuard = 64;
constexpr std::byte kFence{0xA5};

// `bytes` bytes at `offset` past a 64-byte boundary, between fences.
class Fenced {
 public:
  explicit Fenced(int64_t bytes, int64_t offset = 0)
      : bytes_(bytes), storage_(static_cast<size_t>(bytes + 3 * kGuard + offset), kFence) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    begin_ = static_cast<int64_t>((64 - address % 64) % 64) + kGuard + offset;
  }
  std::byte* data() { return storage_.data() + begin_; }
  const std::byte* data() const { return storage_.data() + begin_; }
  int64_t size() const { return bytes_; }
  bool intact() const {
    for (int64_t i = 0; i < static_cast<int64_t>(storage_.size()); ++i) {
      const bool inside = i >= begin_ && i < begin_ + bytes_;
      if (!inside && storage_[static_cast<size_t>(i)] != kFence) return false;
    }
    return true;
  }

 private:
  int64_t bytes_;
  int64_t begin_ = 0;
  std::vector<std::byte> storage_;
};

uint32_t bits_at(const std::byte* from, DType dtype, int64_t i) {
  uint32_t bits = 0;
  std::memcpy(&bits, from + i * itemsize(dtype), static_cast<size_t>(itemsize(dtype)));
  return bits;
}

// Equal bits, or both NaN: NaN's sign and payload are not promised.
void expect_same(const std::byte* got, const std::byte* want, DType dtype, int64_t elements, const std::string& what) {
  for (int64_t i = 0; i < elements; ++i) {
    const uint32_t a = bits_at(got, dtype, i);
    const uint32_t b = bits_at(want, dtype, i);
    if (a == b) continue;
    if (std::isnan(verify::widen(got + i * itemsize(dtype), dtype)) &&
        std::isnan(verify::widen(want + i * itemsize(dtype), dtype))) {
      continue;
    }
    FAIL() << what << ": element " << i << " is " << std::hex << a << ", expected " << b;
  }
}

// Finite values with exponents in 2^-16..2^16, with subnormals, signed zeros and now and then an infinity.
void fill(std::byte* to, DType dtype, int64_t elements, uint64_t seed, bool infinities) {
  std::mt19937_64 random(seed);
  for (int64_t i = 0; i < elements; ++i) {
    const uint64_t r = random();
    float value = std::ldexp(1.0F + static_cast<float>(r & 0x7FFFFF) * 0x1p-23F, static_cast<int>((r >> 23) % 33) - 16);
    if ((r >> 40) % 16 == 0) value = 0.0F;
    if ((r >> 40) % 16 == 1) {
      const float smallest = dtype == DType::f16 ? 0x1p-24F : dtype == DType::bf16 ? 0x1p-133F : 0x1p-149F;
      value = smallest * static_cast<float>(1 + (r >> 44) % 60);
    }
    if (infinities && (r >> 40) % 64 == 2) value = std::numeric_limits<float>::infinity();
    if ((r >> 63) != 0) value = -value;
    verify::narrow(value, to + i * itemsize(dtype), dtype);
  }
}

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16};

class Kernels : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

TEST_P(Kernels, WidenEveryPattern) {
  constexpr int64_t n = 65536;
  Fenced patterns(n * 2);
  for (uint32_t i = 0; i < n; ++i) {
    const auto half = static_cast<uint16_t>(i);
    std::memcpy(patterns.data() + i * 2, &half, 2);
  }
  for (const DType from : {DType::bf16, DType::f16}) {
    Fenced wide(n * 4);
    host::cast(wide.data(), DType::f32, patterns.data(), from, n);
    for (uint32_t i = 0; i < n; ++i) {
      const float want = verify::widen(patterns.data() + i * 2, from);
      float got = 0;
      std::memcpy(&got, wide.data() + i * 4, 4);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got)) << name(from) << " " << i;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want)) << name(from) << " " << i;
      }
    }
    // There and back is the identity, and across the two 16-bit types one rounding.
    Fenced back(n * 2);
    host::cast(back.data(), from, wide.data(), DType::f32, n);
    expect_same(back.data(), patterns.data(), from, n, "round trip");
    const DType other = from == DType::bf16 ? DType::f16 : DType::bf16;
    Fenced across(n * 2);
    Fenced want(n * 2);
    host::cast(across.data(), other, patterns.data(), from, n);
    verify::cast(want.data(), other, patterns.data(), from, n);
    expect_same(across.data(), want.data(), other, n, "across");
    EXPECT_TRUE(wide.intact() && back.intact() && across.intact());
  }
}

TEST_P(Kernels, NarrowHardCases) {
  // Around every representable 16-bit value and every midpoint, and around the ends of the ranges.
  std::vector<float> hard;
  for (uint32_t i = 0; i < 65536; i += 1) {
    const auto half = static_cast<uint16_t>(i);
    const float f16 = verify::widen(reinterpret_cast<const std::byte*>(&half), DType::f16);
    const float bf16 = std::bit_cast<float>(i << 16);
    for (const float value : {f16, bf16}) {
      const uint32_t bits = std::bit_cast<uint32_t>(value);
      const uint32_t midpoint = value == f16 ? 0x1000 : 0x8000;
      for (const uint32_t at : {bits, bits + midpoint, bits + midpoint - 1, bits + midpoint + 1}) {
        hard.push_back(std::bit_cast<float>(at));
      }
    }
  }
  for (const float limit : {65504.0F, 65519.99F, 65520.0F, 0x1p-14F, 0x1p-24F, 0x1p-25F, 0x1.8p-25F, 0x1p-133F,
                            0x1p-134F, 0x1.8p-134F, 0x1p-149F, 0x1.FEFFFFp127F, std::numeric_limits<float>::max()}) {
    for (int step = -3; step <= 3; ++step) {
      const auto near = std::bit_cast<float>(std::bit_cast<uint32_t>(limit) + static_cast<uint32_t>(step));
      hard.push_back(near);
      hard.push_back(-near);
    }
  }
  // Midpoints of f16 subnormals are not on the grid above.
  for (int k = 0; k < 2048; ++k) {
    const float midpoint = (static_cast<float>(k) + 0.5F) * 0x1p-24F;
    hard.push_back(midpoint);
    hard.push_back(std::nextafter(midpoint, 0.0F));
    hard.push_back(std::nextafter(midpoint, 1.0F));
    hard.push_back(-midpoint);
  }
  std::mt19937 random(7);
  for (int i = 0; i < 1 << 18; ++i) hard.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));

  const auto n = static_cast<int64_t>(hard.size());
  const auto* from = reinterpret_cast<const std::byte*>(hard.data());
  for (const DType to : {DType::bf16, DType::f16}) {
    Fenced got(n * 2, 2);
    std::vector<std::byte> want(static_cast<size_t>(n * 2));
    host::cast(got.data(), to, from, DType::f32, n);
    verify::cast(want.data(), to, from, DType::f32, n);
    expect_same(got.data(), want.data(), to, n, std::string("f32 to ") + std::string(name(to)));
    EXPECT_TRUE(got.intact());
    for (int64_t i = 0; i < n; ++i) {
      if (!std::isnan(hard[static_cast<size_t>(i)])) continue;
      const uint32_t quiet = to == DType::bf16 ? 0x7FC0 : 0x7E00;
      ASSERT_EQ(bits_at(got.data(), to, i) & quiet, quiet) << "NaN " << i << " is not quiet";
    }
  }
}

TEST_P(Kernels, CastAnyAlignmentAndLength) {
  for (const DType from : kFloats) {
    for (const DType to : kFloats) {
      Fenced source(131 * 4 + 64);
      Fenced want(131 * 4);
      for (int64_t length = 0; length <= 130; ++length) {
        const int64_t src_offset = (length * 7) % 64;
        std::byte* at = source.data() + src_offset;
        fill(at, from, length, static_cast<uint64_t>(length), true);
        verify::cast(want.data(), to, at, from, length);
        Fenced got(length * itemsize(to), (length * 11 + 3) % 64);
        host::cast(got.data(), to, at, from, length);
        expect_same(got.data(), want.data(), to, length, "cast");
        ASSERT_TRUE(got.intact()) << length;
      }
    }
  }
}

TEST_P(Kernels, CopyAnyAlignmentAndLength) {
  Fenced source(5000);
  for (int64_t i = 0; i < source.size(); ++i) source.data()[i] = static_cast<std::byte>(i * 131 + i / 256);
  for (int64_t offset = 0; offset < 64; ++offset) {
    for (const int64_t length : {int64_t{0}, int64_t{1}, offset, int64_t{511}, 512 + offset, int64_t{4099}}) {
      Fenced got(length, (offset * 13) % 64);
      host::copy(got.data(), source.data() + offset, length);
      ASSERT_EQ(length == 0 ? 0 : std::memcmp(got.data(), source.data() + offset, static_cast<size_t>(length)), 0);
      ASSERT_TRUE(got.intact());
    }
  }
}

struct Sum {
  DType dtype = DType::f32;
  int64_t length = 0;
  int sources = 1;
  float alpha = 1.0F;
  bool accumulate = false;
  bool infinities = false;
  int64_t misalign = 0;
};

void run_sum(const Sum& c) {
  std::vector<Fenced> buffers;
  std::vector<const std::byte*> sources;
  for (int s = 0; s < c.sources; ++s) {
    buffers.emplace_back(c.length * itemsize(c.dtype), (c.misalign * (s + 1)) % 64);
    fill(buffers.back().data(), c.dtype, c.length, static_cast<uint64_t>(s * 1000 + c.length), c.infinities);
  }
  for (const Fenced& buffer : buffers) sources.push_back(buffer.data());
  // float* promises its own alignment only.
  Fenced got(c.length * 4, c.misalign / 4 * 4 % 64);
  fill(got.data(), DType::f32, c.length, 99, false);
  std::vector<float> want(static_cast<size_t>(c.length) + 1);
  std::memcpy(want.data(), got.data(), static_cast<size_t>(c.length * 4));
  verify::sum(want.data(), sources, c.dtype, c.length, c.alpha, c.accumulate);
  host::sum(reinterpret_cast<float*>(got.data()), sources, c.dtype, c.length, c.alpha, c.accumulate);
  expect_same(got.data(), reinterpret_cast<const std::byte*>(want.data()), DType::f32, c.length,
              "sum of " + std::to_string(c.sources) + " " + std::string(name(c.dtype)));
  ASSERT_TRUE(got.intact());
}

TEST_P(Kernels, SumAnyAlignmentAndLength) {
  for (const DType dtype : kFloats) {
    for (int64_t length = 0; length <= 130; ++length) {
      const int sources = 1 + static_cast<int>(length % 9);
      run_sum({dtype, length, sources, length % 2 == 0 ? 1.0F : 0.1F, length % 3 == 0, length % 5 == 0, length % 64});
    }
    for (int64_t offset = 0; offset < 64; ++offset) run_sum({dtype, 77, 3, 0.3F, true, false, offset});
    for (const int sources : {1, 2, 3, 5, 7, 8, 33}) run_sum({dtype, 10007, sources, 1.0F / 7, false, true, 1});
  }
}

TEST_P(Kernels, SumsAreLeftFolds) {
  // The comparison above could tell another order: a reversed fold of the same inputs gives other bits.
  constexpr int64_t n = 1001;
  std::vector<Fenced> buffers;
  std::vector<const std::byte*> forward;
  for (int s = 0; s < 8; ++s) {
    buffers.emplace_back(n * 2);
    fill(buffers.back().data(), DType::bf16, n, static_cast<uint64_t>(s), false);
  }
  for (const Fenced& buffer : buffers) forward.push_back(buffer.data());
  const std::vector<const std::byte*> backward(forward.rbegin(), forward.rend());
  std::vector<float> a(n);
  std::vector<float> b(n);
  host::sum(a.data(), forward, DType::bf16, n, 1.0F, false);
  host::sum(b.data(), backward, DType::bf16, n, 1.0F, false);
  EXPECT_NE(std::memcmp(a.data(), b.data(), n * 4), 0);
}

TEST_P(Kernels, OneSourceKeepsNegativeZero) {
  const float zero = -0.0F;
  const std::byte* source = reinterpret_cast<const std::byte*>(&zero);
  float out = 1.0F;
  host::sum(&out, {&source, 1}, DType::f32, 1, 1.0F, false);
  EXPECT_EQ(std::bit_cast<uint32_t>(out), 0x80000000U);
}

#if defined(__x86_64__)
TEST_P(Kernels, FlushingCallersAreHeldOff) {
  constexpr uint32_t kFlush = 0x8040;    // FTZ | DAZ
  constexpr uint32_t kRoundUp = 0x4000;  // towards +infinity
  const uint32_t normal = _mm_getcsr();
  Fenced tiny(64 * 4);
  for (uint32_t i = 0; i < 64; ++i) {
    const uint32_t bits = i + 1;
    std::memcpy(tiny.data() + i * 4, &bits, 4);
  }
  const std::vector<const std::byte*> sources{tiny.data(), tiny.data()};
  std::vector<float> want(64);
  verify::sum(want.data(), sources, DType::f32, 64, 1.0F, false);
  std::vector<uint16_t> half(64);
  const float in[] = {0x1.8p-25F, 0x1p-24F, 1.0F + 0x1p-11F, 0x1.804p-14F};
  std::vector<std::byte> want_half(8);
  verify::cast(want_half.data(), DType::f16, reinterpret_cast<const std::byte*>(in), DType::f32, 4);

  _mm_setcsr(normal | kFlush | kRoundUp);
  std::vector<float> got(64);
  std::vector<std::byte> got_half(8);
  uint32_t inside = 0;
  {
    const host::FloatEnvironment environment;
    inside = _mm_getcsr();
    host::sum(got.data(), sources, DType::f32, 64, 1.0F, false);
    host::cast(got_half.data(), DType::f16, reinterpret_cast<const std::byte*>(in), DType::f32, 4);
  }
  const uint32_t after = _mm_getcsr();
  _mm_setcsr(normal);
  EXPECT_EQ(inside & (kFlush | 0x6000), 0U);
  EXPECT_EQ(after & (kFlush | 0x6000), kFlush | kRoundUp);
  EXPECT_EQ(std::memcmp(got.data(), want.data(), 64 * 4), 0);
  EXPECT_NE(std::bit_cast<uint32_t>(want[0]), 0U);
  EXPECT_EQ(got_half, want_half);
}
#endif

std::vector<int64_t> targets() {
  std::vector<int64_t> each;
  const int64_t all = hwy::SupportedTargets();
  for (int bit = 0; bit < 63; ++bit) {
    if ((all >> bit & 1) != 0) each.push_back(int64_t{1} << bit);
  }
  return each;
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, Kernels, testing::ValuesIn(targets()),
                         [](const auto& test) { return std::string(hwy::TargetName(test.param)); });

TEST(KernelErrors, NameTheDtype) {
  std::byte bytes[8]{};
  try {
    host::cast(bytes, DType::f32, bytes, DType::i32, 1);
    FAIL() << "accepted i32";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find("i32"), std::string::npos) << error.what();
  }
  const std::byte* source = bytes;
  float out = 0;
  EXPECT_THROW(host::sum(&out, {&source, 1}, DType::i8, 1, 1.0F, false), Error);
  EXPECT_THROW(host::sum(&out, {}, DType::f32, 1, 1.0F, false), Error);
}

}  // namespace
}  // namespace tide
