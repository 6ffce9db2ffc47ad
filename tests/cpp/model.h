// What a test's groups hold: every element a function of (parameter, global index, version), every gradient also of the
// rank, and the straightforward reference of both collectives.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tide/error.h"
#include "tide/layout.h"
#include "verify/arithmetic.h"

namespace tide::test {

inline uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

// Exponents spread over 2^-16..2^16, now and then a subnormal or a signed zero: a fold in another order gives other
// bits.
inline float spread(uint64_t seed) {
  const uint64_t r = mix(seed);
  float value = std::ldexp(1.0F + static_cast<float>(r & 0x7FFFFF) * 0x1p-23F, static_cast<int>((r >> 23) % 33) - 16);
  if ((r >> 40) % 16 == 0) value = 0.0F;
  if ((r >> 40) % 16 == 1) value = 0x1p-149F * static_cast<float>(1 + (r >> 44) % 1000);
  return (r >> 63) != 0 ? -value : value;
}

inline void write_element(std::byte* to, DType dtype, uint64_t seed) {
  if (reducible(dtype)) {
    verify::narrow(spread(seed), to, dtype);
  } else {
    const uint64_t bits = mix(seed);
    std::memcpy(to, &bits, static_cast<size_t>(itemsize(dtype)));
  }
}

inline uint64_t parameter_seed(int64_t group, int64_t param, int64_t index, int64_t version) {
  return mix(static_cast<uint64_t>(group * 131 + param)) + mix(static_cast<uint64_t>(version) + 17) * 3 +
         static_cast<uint64_t>(index) * 0x9E3779B97F4A7C15;
}

// `elements` elements of the parameter from global index `first`.
inline void write_parameter(std::byte* to, DType dtype, int64_t group, int64_t param, int64_t first, int64_t elements,
                            int64_t version) {
  for (int64_t i = 0; i < elements; ++i) {
    write_element(to + i * itemsize(dtype), dtype, parameter_seed(group, param, first + i, version));
  }
}

inline void write_gradient(std::byte* to, DType dtype, int64_t rank, int64_t group, int64_t param, int64_t first,
                           int64_t elements, int64_t version) {
  for (int64_t i = 0; i < elements; ++i) {
    const uint64_t seed = parameter_seed(group, param, first + i, version) + mix(static_cast<uint64_t>(rank) + 1000003);
    write_element(to + i * itemsize(dtype), dtype, seed);
  }
}

// Memory between fences.
class Fenced {
 public:
  Fenced() = default;
  explicit Fenced(int64_t bytes) : bytes_(bytes), storage_(static_cast<size_t>(bytes + 2 * kFence), kMark) {}
  std::byte* data() { return storage_.data() + kFence; }
  int64_t size() const { return bytes_; }
  void check(const std::string& what) const {
    for (int64_t i = 0; i < kFence; ++i) {
      if (storage_[static_cast<size_t>(i)] != kMark || storage_[static_cast<size_t>(kFence + bytes_ + i)] != kMark) {
        throw Error(ErrorCode::check_failed, "bytes outside of " + what + " were written");
      }
    }
  }

 private:
  static constexpr int64_t kFence = 64;
  static constexpr std::byte kMark{0xA5};
  int64_t bytes_ = 0;
  std::vector<std::byte> storage_;
};

// One rank's shards of a group, padding filled with what must not be read.
inline std::vector<Fenced> make_shards(const Layout& layout, int64_t group, int64_t rank, int64_t version) {
  std::vector<Fenced> shards;
  for (size_t p = 0; p < layout.params().size(); ++p) {
    const ParamLayout& param = layout.params()[p];
    Fenced shard(param.padded_elements() * itemsize(param.shard_dtype));
    write_parameter(shard.data(), param.shard_dtype, group, static_cast<int64_t>(p),
                    param.first_row(rank) * param.row_elements, param.valid_elements(rank), version);
    shards.push_back(std::move(shard));
  }
  return shards;
}

inline std::vector<const void*> pointers(const Layout& layout, std::vector<Fenced>& shards, int64_t rank) {
  std::vector<const void*> all;
  for (size_t p = 0; p < shards.size(); ++p) {
    all.push_back(layout.params()[p].valid_rows(rank) == 0 ? nullptr : shards[p].data());
  }
  return all;
}

inline void check_bytes(const std::byte* got, const std::vector<std::byte>& want, int64_t item,
                        const std::string& what) {
  if (want.empty() || std::memcmp(got, want.data(), want.size()) == 0) return;
  for (size_t i = 0; i < want.size(); ++i) {
    if (got[i] == want[i]) continue;
    throw Error(ErrorCode::check_failed, what + ": element " + std::to_string(static_cast<int64_t>(i) / item) + " of " +
                                             std::to_string(static_cast<int64_t>(want.size()) / item) + " is wrong");
  }
}

// The whole tensor `param` as it must stand in the landing.
inline std::vector<std::byte> gathered(const Layout& layout, int64_t group, int64_t param, int64_t version) {
  const ParamLayout& p = layout.params()[static_cast<size_t>(param)];
  std::vector<std::byte> stored(static_cast<size_t>(p.elements() * itemsize(p.shard_dtype)));
  write_parameter(stored.data(), p.shard_dtype, group, param, 0, p.elements(), version);
  if (p.shard_dtype == p.gather_dtype) return stored;
  std::vector<std::byte> cast(static_cast<size_t>(p.elements() * itemsize(p.gather_dtype)));
  verify::cast(cast.data(), p.gather_dtype, stored.data(), p.shard_dtype, p.elements());
  return cast;
}

// The gradients that `rank` passes, null where absent.
inline std::vector<Fenced> make_gradients(const Layout& layout, DType dtype, int64_t group, int64_t rank,
                                          int64_t version) {
  std::vector<Fenced> gradients;
  for (size_t p = 0; p < layout.params().size(); ++p) {
    Fenced gradient(layout.params()[p].elements() * itemsize(dtype));
    write_gradient(gradient.data(), dtype, rank, group, static_cast<int64_t>(p), 0, layout.params()[p].elements(),
                   version);
    gradients.push_back(std::move(gradient));
  }
  return gradients;
}

// What `rank` must hold after a reduce-scatter over `world` ranks into `out`.
inline void reduce_reference(std::vector<float>& out, const Layout& layout, DType dtype, int64_t group, int64_t rank,
                             const std::vector<bool>& present, int64_t version, float alpha, bool accumulate) {
  std::vector<float> previous = out;
  std::fill(out.begin(), out.end(), 0.0F);
  for (const Segment& segment : segments(layout, rank, present, 0, static_cast<int64_t>(out.size()))) {
    const ParamLayout& param = layout.params()[static_cast<size_t>(segment.param)];
    const int64_t first = param.first_row(rank) * param.row_elements + segment.param_begin;
    std::vector<std::vector<std::byte>> runs;
    std::vector<const std::byte*> sources;
    for (int64_t j = 0; j < layout.world(); ++j) {
      runs.emplace_back(static_cast<size_t>(segment.elements * itemsize(dtype)));
      write_gradient(runs.back().data(), dtype, j, group, segment.param, first, segment.elements, version);
    }
    for (const auto& run : runs) sources.push_back(run.data());
    float* to = out.data() + segment.packed_begin;
    std::copy_n(previous.data() + segment.packed_begin, segment.elements, to);
    verify::sum(to, sources, dtype, segment.elements, alpha, accumulate);
  }
}

}  // namespace tide::test
