// What the builders promise of the programs of all ranks: counts, balance of counters, order, bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "plan/account.h"
#include "tide/collectives.h"
#include "tide/error.h"
#include "tide/verify.h"

namespace tide {
namespace {

using Programs = std::vector<Program>;

// Empty tensors, single rows, fewer rows than ranks and odd widths among them; frozen ones where asked.
std::vector<Layout> layouts_of(int32_t world, int64_t tensors, bool frozen = false) {
  Group group{"g", {}};
  for (int64_t p = 0; p < tensors; ++p) {
    group.tensors.push_back({"t" + std::to_string(p), {3 * p % 41, 1 + p % 5}, DType::bf16, !frozen || p % 4 != 1});
  }
  return {Layout(group, {world, 256, false, DType::bf16})};
}

Plan plan_of(int32_t world, Landing landing) {
  Plan plan;
  plan.local = world;
  plan.landing = landing;
  plan.chunk_bytes = 512;
  return plan;
}

Ensemble ensemble_of(const Plan& plan, std::vector<Layout> layouts) {
  return make_ensemble(plan, std::move(layouts), {false}, DType::bf16);
}

constexpr std::array kLandings{Landing::ring, Landing::resident, Landing::home, Landing::private_copy};

// (counter, producer, consumer): one instance of a counter.
using Instance = std::tuple<CounterId, int32_t, int32_t>;
using Counts = std::map<Instance, int64_t>;

void count_signals(const Program& program, const Operation& op, Counts& counts) {
  for (int32_t at = 0; at < program.local; ++at) {
    const bool meant = op.to.reach == Reach::node ? at != program.rank : at == op.to.index;
    if (meant) counts[{op.counter, program.rank, at}] += op.n;
  }
}

Counts signals_of(const Programs& programs) {
  Counts counts;
  for (const Program& program : programs) {
    for (const Operation& op : program.ops) {
      if (op.kind == OpKind::signal) count_signals(program, op, counts);
    }
  }
  return counts;
}

Counts waits_of(const Programs& programs) {
  Counts counts;
  for (const Program& program : programs) {
    for (const Operation& op : program.ops) {
      if (op.kind == OpKind::wait) counts[{op.counter, op.to.index, program.rank}] += op.n;
    }
  }
  return counts;
}

int64_t count(const Program& program, OpKind kind) {
  return std::count_if(program.ops.begin(), program.ops.end(), [&](const Operation& op) { return op.kind == kind; });
}

// Runs every rank strictly one operation at a time, from counters as a new session has them (law 4). The operations
// that no rank could get past.
int64_t stuck_in_issue_order(const Space& space, const Programs& programs) {
  Counts counters;
  for (size_t c = 0; c < space.counters.size(); ++c) {
    for (const Program& from : programs) {
      for (const Program& to : programs) {
        counters[{static_cast<CounterId>(c), from.rank, to.rank}] = space.counters[c].primed;
      }
    }
  }
  std::vector<size_t> next(programs.size());
  int64_t left = 0;
  for (const Program& program : programs) left += static_cast<int64_t>(program.ops.size());
  for (bool moved = true; moved && left > 0;) {
    moved = false;
    for (size_t rank = 0; rank < programs.size(); ++rank) {
      for (; next[rank] < programs[rank].ops.size(); ++next[rank], --left, moved = true) {
        const Operation& op = programs[rank].ops[next[rank]];
        if (op.kind == OpKind::signal) count_signals(programs[rank], op, counters);
        if (op.kind != OpKind::wait) continue;
        int64_t& counter = counters[{op.counter, op.to.index, programs[rank].rank}];
        if (counter < op.n) break;
        counter -= op.n;
      }
    }
  }
  return left;
}

class Worlds : public testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Each, Worlds, testing::Values(1, 2, 3, 5, 7, 8, 16));

TEST_P(Worlds, EveryIncrementIsTaken) {
  for (const Landing landing : kLandings) {
    const Ensemble e = ensemble_of(plan_of(GetParam(), landing), layouts_of(GetParam(), 30, true));
    const Ensemble::GroupPrograms& group = e.programs[0];
    // What a gather waits for of the slot is what a release signals; the rest balances within the call.
    Programs gather_and_release = group.gather_move;
    gather_and_release.insert(gather_and_release.end(), group.release.begin(), group.release.end());
    EXPECT_EQ(signals_of(gather_and_release), waits_of(gather_and_release)) << name(landing);
    EXPECT_EQ(signals_of(group.reduce), waits_of(group.reduce)) << name(landing);
    EXPECT_EQ(signals_of(group.reduce).empty(), GetParam() == 1);
  }
}

TEST_P(Worlds, KeepingPiecesHasTheCountersOfMovingThem) {
  for (const Landing landing : {Landing::resident, Landing::home}) {
    const Ensemble e = ensemble_of(plan_of(GetParam(), landing), layouts_of(GetParam(), 30));
    EXPECT_EQ(signals_of(e.programs[0].gather_move), signals_of(e.programs[0].gather_keep)) << name(landing);
    EXPECT_EQ(waits_of(e.programs[0].gather_move), waits_of(e.programs[0].gather_keep)) << name(landing);
    for (const Program& program : e.programs[0].gather_keep) EXPECT_EQ(count(program, OpKind::copy), 0);
  }
}

TEST_P(Worlds, IssueOrderDoesNotDeadlock) {
  for (const Landing landing : kLandings) {
    for (const int32_t slots : {1, 2, 5}) {
      Plan plan = plan_of(GetParam(), landing);
      plan.staging_slots = slots;
      const Ensemble e = ensemble_of(plan, layouts_of(GetParam(), 40));
      EXPECT_EQ(stuck_in_issue_order(e.space, e.programs[0].gather_move), 0) << name(landing);
      EXPECT_EQ(stuck_in_issue_order(e.space, e.programs[0].release), 0) << name(landing);
      EXPECT_EQ(stuck_in_issue_order(e.space, e.programs[0].reduce), 0) << name(landing) << " " << slots;
    }
  }
}

TEST_P(Worlds, QueuesDoTheirOwnWork) {
  const Ensemble e = ensemble_of(plan_of(GetParam(), Landing::resident), layouts_of(GetParam(), 30));
  for (const Program& program : e.programs[0].gather_move) {
    for (const Operation& op : program.ops) EXPECT_EQ(op.queue, e.space.gather);
  }
  for (const Program& program : e.programs[0].reduce) {
    for (const Operation& op : program.ops) {
      const bool sums = op.kind == OpKind::sum || op.kind == OpKind::zero;
      const QueueId other = op.queue == e.space.push ? e.space.push : e.space.sum;
      EXPECT_EQ(op.queue, op.kind == OpKind::copy ? e.space.push : sums ? e.space.sum : other);
    }
  }
}

TEST_P(Worlds, AGatherCopiesEachTensorOnce) {
  for (const Landing landing : {Landing::ring, Landing::resident, Landing::private_copy}) {
    const Ensemble e = ensemble_of(plan_of(GetParam(), landing), layouts_of(GetParam(), 30));
    int64_t most = 0;
    for (const Program& program : e.programs[0].gather_move) {
      int64_t bytes = 0;
      for (const Operation& op : program.ops) bytes += op.kind == OpKind::copy ? op.shape.row_bytes : 0;
      int64_t expected_bytes = 0;
      int64_t expected_copies = 0;
      for (const ParamLayout& p : e.layouts[0].params()) {
        expected_bytes += p.valid_elements(program.rank) * 2;
        expected_copies += p.valid_elements(program.rank) > 0 ? 1 : 0;
      }
      EXPECT_EQ(bytes, expected_bytes);
      EXPECT_EQ(count(program, OpKind::copy), expected_copies);
      // To all peers at once, and from each: of the slot and of the pieces.
      EXPECT_EQ(count(program, OpKind::signal), GetParam() > 1 ? 1 : 0);
      EXPECT_EQ(count(program, OpKind::wait), 2 * (GetParam() - 1));
      most = std::max(most, expected_copies);
    }
    EXPECT_EQ(most, account(e.plan, e.layouts[0]).gather_copies);
  }
  const Ensemble home = ensemble_of(plan_of(GetParam(), Landing::home), layouts_of(GetParam(), 30));
  for (const Program& program : home.programs[0].gather_move) {
    EXPECT_EQ(count(program, OpKind::copy), 0);
    EXPECT_EQ(count(program, OpKind::wait), GetParam() - 1);
  }
}

TEST_P(Worlds, AReduceReadsEveryGradientOnce) {
  for (const int32_t passes : {1, 3}) {
    Plan plan = plan_of(GetParam(), Landing::resident);
    plan.passes = passes;
    const Ensemble e = ensemble_of(plan, layouts_of(GetParam(), 30));
    int64_t most = 0;
    for (const Program& program : e.programs[0].reduce) {
      int64_t pushed = 0;
      int64_t summed = 0;
      int64_t zeroed = 0;
      for (const Operation& op : program.ops) {
        if (op.kind == OpKind::copy) pushed += op.shape.row_bytes;
        if (op.kind == OpKind::zero) zeroed += op.shape.row_bytes;
        if (op.kind != OpKind::sum) continue;
        summed += op.shape.row_bytes;
        EXPECT_EQ(op.source_count, GetParam());
      }
      EXPECT_EQ(pushed + summed / 2, e.layouts[0].elements() * 2) << passes;
      EXPECT_EQ(summed + zeroed, e.layouts[0].packed_grad_elements() * 4) << passes;
      most = std::max(most, count(program, OpKind::copy));
    }
    EXPECT_EQ(most, account(plan, e.layouts[0], DType::bf16).push_copies) << passes;
  }
}

TEST_P(Worlds, FrozenTensorsAreNotReduced) {
  const Ensemble e = ensemble_of(plan_of(GetParam(), Landing::resident), layouts_of(GetParam(), 30, true));
  const auto params = e.layouts[0].params();
  for (const Program& program : e.programs[0].reduce) {
    for (const Operation& op : program.ops) {
      if (op.kind != OpKind::copy) continue;
      EXPECT_TRUE(params[static_cast<size_t>(op.src.region - program.first_call_region)].trainable);
    }
  }
}

// The size that a build must stay quick for; bench/build_program.cc measures it.
TEST(Program, ThreeHundredTensorsOverEightRanks) {
  Group group{"g", {}};
  for (int64_t p = 0; p < 300; ++p) {
    group.tensors.push_back({"t" + std::to_string(p), {129 + p % 121, 256}, DType::bf16});
  }
  Plan plan;
  plan.local = 8;
  const Ensemble e = ensemble_of(plan, {Layout(group, {8, 256, false, DType::bf16})});
  const int64_t elements = e.layouts[0].packed_grad_elements();
  const int64_t chunk = plan.chunk_bytes / 2;
  const int64_t chunks = (elements + chunk - 1) / chunk;
  for (const Program& program : e.programs[0].gather_move) EXPECT_EQ(count(program, OpKind::copy), 300);
  for (const Program& program : e.programs[0].reduce) {
    // A tensor that two chunks share is pushed in two parts.
    EXPECT_GE(count(program, OpKind::copy), 7 * 300);
    EXPECT_LE(count(program, OpKind::copy), 7 * (300 + chunks));
    // Each chunk to 7 owners; each fold but the last `slots` frees its slot; the end of the call.
    EXPECT_EQ(count(program, OpKind::signal), 7 * chunks + (chunks - plan.staging_slots) + 1);
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
  EXPECT_EQ(code([&] { all_gather(plan, space, layouts[0], 0, -1, Pieces::move); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code([&] { release(plan, space, layouts[0], 0, 2); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code([&] { reduce_scatter(plan, space, layouts[0], 0, DType::i32, {}); }), ErrorCode::unsupported);
  EXPECT_EQ(code([&] { reduce_scatter(plan, space, layouts[0], 0, DType::f32, {true}); }), ErrorCode::invalid_argument);
  plan.nodes = 2;
  EXPECT_EQ(code([&] { all_gather(plan, space, layouts[0], 0, 0, Pieces::move); }), ErrorCode::unsupported);
}

}  // namespace
}  // namespace tide
