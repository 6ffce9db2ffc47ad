#include "tide/execute.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "scenarios.h"
#include "tide/error.h"

namespace tide {
namespace {

using scenarios::ensemble_of;
using scenarios::Scenario;
using scenarios::spread_inputs;

std::string first(const Execution& execution) { return execution.ok() ? "" : execution.differences.front(); }

class EveryWorld : public testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Worlds, EveryWorld, testing::ValuesIn(scenarios::kWorlds));

// Gradients for which a fold in another order has other bits: only they can show a wrong order.
TEST_P(EveryWorld, ValuesTellOrdersApart) {
  const int32_t world = GetParam();
  if (world < 3) return;  // a sum of two commutes
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    int64_t other = 0;
    for (int64_t i = 0; i < 4000; ++i) {
      float forward = 0.0F;
      float backward = 0.0F;
      for (int32_t k = 0; k < world; ++k) {
        const auto value = [&](int32_t rank) {
          std::byte bytes[8];
          scenarios::spread_value({true, 0, 0, rank, i, 0, dtype}, bytes);
          return verify::widen(bytes, dtype);
        };
        forward = k == 0 ? value(0) : forward + value(k);
        backward = k == 0 ? value(world - 1) : backward + value(world - 1 - k);
      }
      if (std::memcmp(&forward, &backward, sizeof forward) != 0) ++other;
    }
    EXPECT_GT(other, 10) << name(dtype);
  }
}

TEST_P(EveryWorld, EveryByteIsRight) {
  for (const Scenario& s : scenarios::scenarios_of(GetParam())) {
    const Execution execution = execute(ensemble_of(s), training(s.step), std::nullopt, spread_inputs(0.3F));
    EXPECT_TRUE(execution.ok()) << s.name() << "\n" << first(execution);
    EXPECT_GT(execution.compared, 0);
    EXPECT_EQ(execution.observed.size(), static_cast<size_t>(s.world));
  }
}

TEST_P(EveryWorld, InterleavingsDoNotShow) {
  for (const Scenario& s : scenarios::scenarios_of(GetParam())) {
    if (s.step.prefetch == 0 && s.landing == Landing::resident) continue;
    const Ensemble ensemble = ensemble_of(s);
    const Script script = training(s.step);
    const Execution ordered = execute(ensemble, script, std::nullopt, spread_inputs(1.0F));
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      const Execution mixed = execute(ensemble, script, seed, spread_inputs(1.0F));
      EXPECT_TRUE(mixed.ok()) << s.name() << " seed " << seed << "\n" << first(mixed);
      EXPECT_EQ(mixed.observed, ordered.observed) << s.name() << " seed " << seed;
      EXPECT_EQ(mixed.outputs.size(), ordered.outputs.size());
    }
  }
}

TEST(Execute, TwentyInterleavingsGiveTheSameBytes) {
  Scenario s;
  s.world = 5;
  s.landing = Landing::ring;
  s.step = {3, 2, 1, false, 2};
  s.grad_dtype = DType::bf16;
  s.cast = true;
  const Ensemble ensemble = ensemble_of(s);
  const Execution ordered = execute(ensemble, training(s.step), std::nullopt, spread_inputs(0.2F));
  ASSERT_TRUE(ordered.ok()) << first(ordered);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Execution mixed = execute(ensemble, training(s.step), seed, spread_inputs(0.2F));
    ASSERT_TRUE(mixed.ok()) << first(mixed);
    ASSERT_EQ(mixed.observed, ordered.observed) << seed;
    ASSERT_EQ(mixed.operations, ordered.operations);
  }
}

// The bits of a reduction depend on inputs and world alone.
TEST(Execute, PlansDoNotShowInOutputs) {
  Scenario reference;
  reference.world = 7;
  reference.step = {2, 1, 0, false, 2};
  reference.grad_dtype = DType::f16;
  const auto outputs = [](const Scenario& s) {
    Execution execution = execute(ensemble_of(s), training(s.step), 3, spread_inputs(0.7F));
    EXPECT_TRUE(execution.ok()) << s.name() << first(execution);
    std::vector<uint32_t> bits;
    for (const auto& group : execution.outputs) {
      for (const auto& rank : group) {
        for (const float value : rank) bits.push_back(std::bit_cast<uint32_t>(value));
      }
    }
    return bits;
  };
  const std::vector<uint32_t> wanted = outputs(reference);
  for (const Landing landing : {Landing::ring, Landing::resident, Landing::home, Landing::private_copy}) {
    for (const int64_t chunk : {int64_t{64}, int64_t{128}, int64_t{1} << 18}) {
      for (const int32_t passes : {1, 3}) {
        Scenario s = reference;
        s.landing = landing;
        s.chunk_bytes = chunk;
        s.passes = passes;
        s.staging_slots = 1 + passes;
        EXPECT_EQ(outputs(s), wanted) << s.name();
      }
    }
  }
}

TEST(Execute, LandingsHoldWholeTensors) {
  Scenario s;
  s.world = 3;
  s.step.groups = 1;
  const Ensemble ensemble = ensemble_of(s);
  const Execution execution = execute(ensemble, training(s.step), std::nullopt, spread_inputs(1.0F));
  const ParamLayout& weight = ensemble.layouts[0].params()[0];
  for (int32_t rank = 0; rank < s.world; ++rank) {
    const auto& landing = execution.landings[0][static_cast<size_t>(rank)];
    for (int64_t i = 0; i < weight.elements(); ++i) {
      std::byte wanted[4];
      scenarios::spread_value({false, 0, 0, 0, i, s.step.steps - 1, DType::f32}, wanted);
      ASSERT_EQ(std::memcmp(landing.data() + weight.landing_base + i * 4, wanted, 4), 0) << i;
    }
    EXPECT_EQ(execution.outputs[0][static_cast<size_t>(rank)].size(),
              static_cast<size_t>(packed_elements(ensemble.layouts[0], {})));
  }
}

TEST(Execute, WrongProgramsDiffer) {
  Scenario s;
  s.world = 3;
  s.step.groups = 1;
  const Script script = training(s.step);
  const auto broken = [&](auto&& change) {
    Ensemble ensemble = ensemble_of(s);
    change(ensemble);
    return execute(ensemble, script, std::nullopt, spread_inputs(1.0F));
  };
  const auto first_of = [](Program& program, OpKind kind) {
    return std::find_if(program.ops.begin(), program.ops.end(), [&](const Operation& op) { return op.kind == kind; });
  };
  EXPECT_FALSE(broken([&](Ensemble& e) {
                 Program& program = e.programs[0].gather_move[1];
                 program.ops.erase(first_of(program, OpKind::copy));
               }).ok());
  EXPECT_FALSE(broken([&](Ensemble& e) {
                 Program& program = e.programs[0].reduce[2];
                 const Operation& op = *first_of(program, OpKind::sum);
                 std::swap(program.sources[static_cast<size_t>(op.first_source)],
                           program.sources[static_cast<size_t>(op.first_source) + 2]);
               }).ok());
  EXPECT_FALSE(broken([&](Ensemble& e) {
                 Program& program = e.programs[0].reduce[2];
                 first_of(program, OpKind::zero)->kind = OpKind::record;
                 first_of(program, OpKind::record)->counter = 0;
                 program.events = 1;
               }).ok());
  EXPECT_THROW(broken([&](Ensemble& e) { first_of(e.programs[0].reduce[1], OpKind::sum)->dst.offset = -4; }), Error);
  try {
    broken([&](Ensemble& e) {
      Program& program = e.programs[0].gather_move[1];
      program.ops.erase(first_of(program, OpKind::signal));
    });
    ADD_FAILURE() << "a lost signal went unseen";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::check_failed);
    EXPECT_NE(std::string(error.what()).find("deadlock"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tide
