// What the builders promise of the programs of all ranks: counts, balance of counters, bytes.
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "tide/collectives.h"
#include "tide/error.h"
#include "tide/verify.h"

namespace tide {
namespace {

std::vector<Layout> layouts_of(int32_t world, int64_t tensors) {
  Group group{"g", {}};
  for (int64_t p = 0; p < tensors; ++p)
    group.tensors.push_back({"t" + std::to_string(p), {3 * p % 41, 1 + p % 5}, DType::bf16});
  return {Layout(group, {world, 256, false, DType::bf16})};
}

Plan plan_of(int32_t world, Landing landing) {
  Plan plan;
  plan.local = world;
  plan.landing = landing;
  plan.chunk_bytes = 512;
  return plan;
}

// (counter, producer, consumer) -> signals minus waits, over one call of every rank.
using Balance = std::map<std::tuple<CounterId, int32_t, int32_t>, int64_t>;

void count(const Program& program, Balance& balance) {
  for (const Operation& op : program.ops) {
    if (op.kind == OpKind::wait) balance[{op.counter, op.to.index, program.rank}] -= op.n;
    if (op.kind != OpKind::signal) continue;
    for (int32_t at = 0; at < program.local; ++at) {
      const bool meant = op.to.reach == Reach::node ? at != program.rank : at == op.to.index;
      if (meant) balance[{op.counter, program.rank, at}] += op.n;
    }
  }
}

class Worlds : public testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Each, Worlds, testing::Values(1, 2, 3, 5, 7, 8, 16));

TEST_P(Worlds, EveryIncrementIsTaken) {
  for (const Landing landing : {Landing::ring, Landing::resident, Landing::home, Landing::private_copy}) {
    const Ensemble e = make_ensemble(plan_of(GetParam(), landing), layouts_of(GetParam(), 30), {false}, DType::bf16);
    Balance balance;
    for (int32_t rank = 0; rank < GetParam(); ++rank) {
      const auto at = static_cast<size_t>(rank);
      count(e.programs[0].gather_move[at], balance);
      count(e.programs[0].release[at], balance);
      count(e.programs[0].reduce[at], balance);
    }
    for (const auto& [instance, rest] : balance) EXPECT_EQ(rest, 0) << std::get<0>(instance) << " " << name(landing);
  }
}

TEST_P(Worlds, AGatherCopiesEachTensorOnce) {
  const Ensemble e =
      make_ensemble(plan_of(GetParam(), Landing::resident), layouts_of(GetParam(), 30), {false}, DType::bf16);
  for (const Program& program : e.programs[0].gather_move) {
    int64_t bytes = 0;
    int64_t copies = 0;
    for (const Operation& op : program.ops) {
      if (op.kind != OpKind::copy) continue;
      bytes += op.shape.row_bytes;
      ++copies;
    }
    int64_t expected = 0;
    for (const ParamLayout& p : e.layouts[0].params()) expected += p.valid_elements(program.rank) * 2;
    EXPECT_EQ(bytes, expected);
    EXPECT_LE(copies, 30);
  }
}

TEST_P(Worlds, AReduceReadsEveryGradientOnce) {
  for (const int32_t passes : {1, 3}) {
    Plan plan = plan_of(GetParam(), Landing::resident);
    plan.passes = passes;
    const Ensemble e = make_ensemble(plan, layouts_of(GetParam(), 30), {false}, DType::bf16);
    for (const Program& program : e.programs[0].reduce) {
      int64_t pushed = 0;
      int64_t summed = 0;
      for (const Operation& op : program.ops) {
        if (op.kind == OpKind::copy) pushed += op.shape.row_bytes;
        if (op.kind == OpKind::sum) {
          summed += op.shape.row_bytes / 2;
          EXPECT_EQ(op.source_count, GetParam());
        }
      }
      EXPECT_EQ(pushed + summed, e.layouts[0].elements() * 2) << passes;
    }
  }
}

TEST(Program, RefusesWhatItCannotBuild) {
  const auto layouts = layouts_of(2, 3);
  Plan plan = plan_of(2, Landing::ring);
  const Space space = make_space(plan, layouts, {false});
  const auto code = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::system;
  };
  EXPECT_EQ(code([&] { all_gather(plan, space, layouts[0], 0, 0, Pieces::keep); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code([&] { all_gather(plan, space, layouts[0], 0, 2, Pieces::move); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code([&] { reduce_scatter(plan, space, layouts[0], 0, DType::i32, {}); }), ErrorCode::unsupported);
  EXPECT_EQ(code([&] { reduce_scatter(plan, space, layouts[0], 0, DType::f32, {true}); }), ErrorCode::invalid_argument);
  plan.nodes = 2;
  EXPECT_EQ(code([&] { all_gather(plan, space, layouts[0], 0, 0, Pieces::move); }), ErrorCode::unsupported);
}

}  // namespace
}  // namespace tide
