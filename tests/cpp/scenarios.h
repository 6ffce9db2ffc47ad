// Small trainings that the tests of scripts, verifier and executor share.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "tide/execute.h"
#include "tide/verify.h"
#include "verify/arithmetic.h"

namespace tide::scenarios {

struct Scenario {
  int32_t world = 2;
  Landing landing = Landing::resident;
  int32_t ring_depth = 2;
  DType shard_dtype = DType::f32;
  bool cast = false;
  bool resident_shards = false;
  DType grad_dtype = DType::f32;
  int64_t chunk_bytes = 64;
  int32_t staging_slots = 2;
  int32_t passes = 1;
  int64_t alignment = 256;
  StepShape step{3, 2, 0, false, 1};

  std::string name() const {
    return fmt::format(
        "world {} landing {} depth {} shards {}{}{} grads {} chunk {} x {} passes {} align {} prefetch {} batches {}{}",
        world, tide::name(landing), ring_depth, tide::name(shard_dtype), cast ? " cast" : "",
        resident_shards ? " resident" : "", tide::name(grad_dtype), chunk_bytes, staging_slots, passes, alignment,
        step.prefetch, step.micro_batches, step.keep_backward ? " keep" : "");
  }
};

// Extents that do not divide, that are smaller than the world, empty tensors, a 0-dim one, a frozen one and one that
// has no arithmetic.
inline Group odd_group(int32_t index, DType dtype) {
  Group group{fmt::format("g{}", index), {}};
  group.tensors.push_back({"weight", {17 + index, 3}, dtype, true});
  group.tensors.push_back({"bias", {5}, dtype, true});
  if (index % 3 == 0) group.tensors.push_back({"scale", {}, dtype, true});
  if (index % 3 != 1) group.tensors.push_back({"none", {0, 7}, dtype, true});
  if (index % 3 == 1) group.tensors.push_back({"frozen", {9, 2}, dtype, false});
  group.tensors.push_back({"thin", {3, 1, 11}, dtype, true});
  if (index % 3 == 1) group.tensors.push_back({"steps", {2, 5}, DType::i64, false});
  if (index % 3 == 2) group.tensors.push_back({"flat", {4, 0}, dtype, true});
  return group;
}

inline Ensemble ensemble_of(const Scenario& s) {
  Plan plan;
  plan.local = s.world;
  plan.landing = s.landing;
  plan.ring_depth = s.ring_depth;
  plan.alignment = s.alignment;
  plan.chunk_bytes = s.chunk_bytes;
  plan.staging_slots = s.staging_slots;
  plan.passes = s.passes;
  std::vector<Layout> layouts;
  for (int32_t g = 0; g < s.step.groups; ++g) {
    LayoutOptions options;
    options.world = s.world;
    options.alignment = s.alignment;
    options.cast = s.cast;
    layouts.emplace_back(odd_group(g, s.shard_dtype), options);
  }
  return make_ensemble(plan, std::move(layouts),
                       std::vector<bool>(static_cast<size_t>(s.step.groups), s.resident_shards), s.grad_dtype);
}

inline uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ULL;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// Exponents over 2^-16..2^15 with, now and then, a subnormal of the dtype or a signed zero: a wrong order of a fold
// shows. A pure function of the element.
inline void spread_value(const InputElement& e, std::byte* out) {
  const int64_t parts[] = {e.gradient ? e.rank : -1, e.group, e.param, e.index, e.version};
  uint64_t hash = 0x9E3779B97F4A7C15ULL;
  for (const int64_t part : parts) hash = mix(hash + static_cast<uint64_t>(part) + 0x9E3779B97F4A7C15ULL);
  if (!reducible(e.dtype)) {
    std::memcpy(out, &hash, static_cast<size_t>(itemsize(e.dtype)));
    return;
  }
  const uint32_t sign = (hash & 1) != 0 ? 0x80000000U : 0;
  const uint32_t kind = (hash >> 1) % 16;
  uint32_t bits = 0;
  if (kind == 0) {
    bits = sign;
  } else if (kind == 1) {
    const uint16_t half = static_cast<uint16_t>((sign >> 16) | ((hash >> 8) & 0x7F) | 1U);
    bits = sign | ((hash >> 8) & 0x7FFFFFU) | 1U;
    if (e.dtype != DType::f32) {
      std::memcpy(out, &half, sizeof half);  // subnormal in bf16 and in f16
      return;
    }
  } else {
    const uint32_t exponent = 127 - 16 + static_cast<uint32_t>((hash >> 8) % (e.dtype == DType::f16 ? 31 : 33));
    bits = sign | (exponent << 23) | static_cast<uint32_t>((hash >> 16) & 0x7FFFFFU);
  }
  verify::narrow(std::bit_cast<float>(bits), out, e.dtype);
}

inline Inputs spread_inputs(float alpha) { return {spread_value, alpha}; }

inline std::string first_sentence(const Report& report) {
  if (report.ok()) return "no violation";
  std::string text;
  for (const Violation& v : report.violations) text += fmt::format("[{}] {}\n", v.law, v.sentence);
  return text;
}

// Every landing, dtype and option at least once in every world.
inline std::vector<Scenario> scenarios_of(int32_t world) {
  std::vector<Scenario> all;
  const auto add = [&](auto&& change) {
    Scenario s;
    s.world = world;
    change(s);
    all.push_back(s);
  };
  add([](Scenario&) {});
  add([](Scenario& s) {
    s.step.keep_backward = true;
    s.grad_dtype = DType::bf16;
    s.step.prefetch = 2;
  });
  add([](Scenario& s) {
    s.cast = true;
    s.resident_shards = true;
    s.grad_dtype = DType::bf16;
    s.passes = 2;
    s.step.keep_backward = true;
  });
  add([](Scenario& s) {
    s.landing = Landing::ring;
    s.step.prefetch = 1;
    s.passes = 3;
    s.step.micro_batches = 2;
  });
  add([](Scenario& s) {
    s.landing = Landing::ring;
    s.ring_depth = 3;
    s.step = {5, 2, 2, false, 1};
    s.cast = true;
    s.grad_dtype = DType::f16;
    s.chunk_bytes = 1 << 16;
  });
  add([](Scenario& s) {
    s.landing = Landing::ring;
    s.ring_depth = 1;
    s.resident_shards = true;
    s.staging_slots = 1;
  });
  add([](Scenario& s) {
    s.landing = Landing::home;
    s.step.keep_backward = true;
    s.step.prefetch = 1;
  });
  add([](Scenario& s) {
    s.landing = Landing::home;
    s.shard_dtype = DType::bf16;
    s.grad_dtype = DType::bf16;
    s.step.micro_batches = 3;
    s.staging_slots = 3;
  });
  add([](Scenario& s) {
    s.landing = Landing::private_copy;
    s.grad_dtype = DType::f16;
    s.step.prefetch = 1;
  });
  add([](Scenario& s) {
    s.landing = Landing::private_copy;
    s.ring_depth = 3;
    s.resident_shards = true;
    s.cast = true;
    s.alignment = 1;
    s.passes = 2;
    s.step = {4, 3, 2, false, 2};
  });
  add([](Scenario& s) {
    s.shard_dtype = DType::f16;
    s.grad_dtype = DType::f16;
    s.cast = true;  // f16 to bf16
    s.alignment = 1;
    s.step.groups = 1;
  });
  return all;
}

inline const std::vector<int32_t> kWorlds = {1, 2, 3, 5, 7, 8};

}  // namespace tide::scenarios
