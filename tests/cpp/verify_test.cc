#include "tide/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "scenarios.h"
#include "tide/error.h"
#include "verify/happens_before.h"

namespace tide {
namespace {

using scenarios::ensemble_of;
using scenarios::first_sentence;
using scenarios::Scenario;

using Kind = ActionKind;

bool found(const Report& report, std::string_view law) {
  return std::any_of(report.violations.begin(), report.violations.end(),
                     [&](const Violation& v) { return v.law == law; });
}

Script script_of(std::vector<Action> actions) { return Script{std::move(actions)}; }

class EveryWorld : public testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Worlds, EveryWorld, testing::ValuesIn(scenarios::kWorlds));

TEST_P(EveryWorld, TrainingHolds) {
  for (const Scenario& s : scenarios::scenarios_of(GetParam())) {
    const Report report = verify_script(ensemble_of(s), training(s.step));
    EXPECT_TRUE(report.ok()) << s.name() << "\n" << first_sentence(report);
    EXPECT_GT(report.accesses, 0) << s.name();
    if (s.world > 1) {
      EXPECT_GT(report.operations, 0) << s.name();
    }
  }
}

TEST_P(EveryWorld, MaskedReduceHolds) {
  Scenario s;
  s.world = GetParam();
  s.grad_dtype = DType::bf16;
  Ensemble ensemble = ensemble_of(s);
  for (size_t g = 0; g < ensemble.layouts.size(); ++g) {
    std::vector<bool> present(ensemble.layouts[g].params().size(), true);
    present[g % present.size()] = false;
    if (g == 2) present.assign(present.size(), false);  // no gradient at all
    ensemble.programs[g].present = present;
    for (int32_t rank = 0; rank < s.world; ++rank) {
      ensemble.programs[g].reduce[static_cast<size_t>(rank)] =
          reduce_scatter(ensemble.plan, ensemble.space, ensemble.layouts[g], rank, s.grad_dtype, present);
    }
  }
  const Report report = verify_script(ensemble, training(s.step));
  EXPECT_TRUE(report.ok()) << first_sentence(report);
}

// Inference: nothing but releases orders a slot's next writer behind its readers.
TEST_P(EveryWorld, ForwardOnlyHolds) {
  for (const Landing landing : {Landing::ring, Landing::resident, Landing::private_copy}) {
    Scenario s;
    s.world = GetParam();
    s.landing = landing;
    std::vector<Action> actions;
    for (int32_t pass = 0; pass < 3; ++pass) {
      for (int32_t g = 0; g < s.step.groups; ++g) {
        for (const Kind kind : {Kind::issue_gather, Kind::wait_gather, Kind::use, Kind::release}) {
          actions.push_back({kind, g});
        }
      }
    }
    const Report report = verify_script(ensemble_of(s), script_of(actions));
    EXPECT_TRUE(report.ok()) << s.name() << first_sentence(report);
  }
}

TEST(Verify, LargeEnsembleIsQuick) {
  Plan plan;
  plan.local = 8;
  plan.chunk_bytes = 4096;
  std::vector<Layout> layouts;
  for (int32_t g = 0; g < 3; ++g) {
    Group group{fmt::format("layer{}", g), {}};
    for (int32_t p = 0; p < 100; ++p) group.tensors.push_back({fmt::format("p{}", p), {64 + p, 16}, DType::f32, true});
    layouts.emplace_back(group, LayoutOptions{8, 256, false, DType::bf16});
  }
  const Ensemble ensemble = make_ensemble(plan, std::move(layouts), {false, false, false}, DType::bf16);
  const std::clock_t start = std::clock();  // processor time: a busy machine must not fail it
  const Report report = verify_script(ensemble, training({3, 2, 1, false, 1}));
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_TRUE(report.ok()) << first_sentence(report);
  EXPECT_LT(seconds, 5.0);
  RecordProperty("seconds", fmt::format("{:.3f}", seconds));
}

TEST(Verify, PrefetchBeyondTheRingIsALease) {
  Scenario s;
  s.landing = Landing::ring;
  s.ring_depth = 2;
  s.step.prefetch = 2;
  const Report report = verify_script(ensemble_of(s), training(s.step));
  ASSERT_TRUE(found(report, "lease")) << first_sentence(report);
  EXPECT_NE(report.violations.front().sentence.find("still holds"), std::string::npos);
}

TEST(Verify, CallerMistakesAreNamed) {
  struct Case {
    std::vector<Action> actions;
    std::string law;
  };
  const Action gather{Kind::issue_gather, 0}, wait{Kind::wait_gather, 0}, use{Kind::use, 0}, release{Kind::release, 0};
  const Action backward{Kind::backward, 0}, reduce{Kind::issue_reduce, 0}, await{Kind::wait_reduce, 0};
  const Action consume{Kind::consume, 0}, step{Kind::step, 0}, keep{Kind::issue_gather, 0, true};
  const Action add{Kind::issue_reduce, 0, false, true};
  const std::vector<Case> cases = {
      {{use}, "lease"},
      {{gather, use, wait, release}, "race"},
      {{gather, wait, use, release, use}, "lease"},
      {{gather, gather, wait}, "lease"},
      {{gather, release}, "lease"},
      {{wait}, "lease"},
      {{await}, "lease"},
      {{gather, step, wait, use, release}, "race"},     // written while the gather reads it
      {{gather, wait, step, use, release}, "landing"},  // read after an update that it does not have
      {{gather, wait, use, release, step, keep, wait, use, release}, "landing"},
      {{reduce, await, consume}, "law 5"},  // no gradient was ever written
      {{backward, reduce, backward, await, consume}, "race"},
      {{backward, reduce, consume, await}, "race"},
      {{backward, add, await, consume}, "contribution"},  // added to nothing
      {{backward, reduce, await, consume, backward, consume}, ""},
      {{consume}, "contribution"},
      {{backward, reduce, reduce, await, consume}, "lease"},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    Scenario s;
    s.world = 3;
    s.step.groups = 1;
    const Report report = verify_script(ensemble_of(s), script_of(cases[i].actions), 1000);
    if (cases[i].law.empty()) {
      EXPECT_TRUE(report.ok()) << "case " << i << "\n" << first_sentence(report);
    } else {
      EXPECT_TRUE(found(report, cases[i].law)) << "case " << i << ": " << first_sentence(report);
    }
  }
}

// A home landing is written by the optimizer itself, which only a reduction keeps behind the readers.
TEST(Verify, HomeStepWithoutReduceRaces) {
  Scenario s;
  s.landing = Landing::home;
  s.step.groups = 1;
  std::vector<Action> actions;
  for (const Kind kind : {Kind::issue_gather, Kind::wait_gather, Kind::use, Kind::release, Kind::step}) {
    actions.push_back({kind, 0});
  }
  EXPECT_TRUE(found(verify_script(ensemble_of(s), script_of(actions)), "race"));
}

TEST(Verify, DeadlockNamesEveryBlockedQueue) {
  Scenario s;
  s.world = 3;
  s.step.groups = 1;
  const Ensemble ensemble = ensemble_of(s);
  std::vector<Script> scripts(3, training(s.step));
  scripts[1].actions.clear();  // rank 1 never calls
  const Report report = verify_script(ensemble, scripts);
  ASSERT_TRUE(found(report, "deadlock")) << first_sentence(report);
  bool gather = false;
  bool caller = false;
  for (const Violation& v : report.violations) {
    if (v.law != "deadlock") continue;
    gather = gather || (v.queue == "gather" && v.rank == 0 &&
                        v.sentence.find("'arrived' from rank 1 is 1, it is 0") != std::string::npos);
    caller = caller || (v.queue == "caller" && v.rank == 2);
  }
  EXPECT_TRUE(gather) << first_sentence(report);
  EXPECT_TRUE(caller) << first_sentence(report);
}

TEST(Verify, DisagreeingCallersAreFound) {
  Scenario s;
  s.world = 2;
  s.step.groups = 2;
  std::vector<Script> scripts(2, training(s.step));
  for (Action& action : scripts[1].actions) action.group = 1 - action.group;
  EXPECT_FALSE(verify_script(ensemble_of(s), scripts).ok());
}

// Two queues of one rank that hand over by an event, and the same without the join.
TEST(Verify, EventsOrderQueues) {
  Scenario s;
  s.world = 1;
  s.step = {1, 1, 0, false, 1};
  Ensemble ensemble = ensemble_of(s);
  Program& program = ensemble.programs[0].reduce[0];
  const Script script = training(s.step);
  // Zero on the push queue what the sum queue then overwrites.
  Operation zero;
  zero.kind = OpKind::zero;
  zero.queue = ensemble.space.push;
  zero.dst = program.ops.front().dst;
  zero.shape = program.ops.front().shape;
  Operation record;
  record.kind = OpKind::record;
  record.queue = ensemble.space.push;
  record.counter = 0;
  Operation join = record;
  join.kind = OpKind::join;
  join.queue = ensemble.space.sum;
  program.events = 1;
  program.ops.insert(program.ops.begin(), {zero, record, join});
  EXPECT_TRUE(verify_script(ensemble, script).ok()) << first_sentence(verify_script(ensemble, script));

  Ensemble unordered = ensemble;
  unordered.programs[0].reduce[0].ops.erase(unordered.programs[0].reduce[0].ops.begin() + 2);
  EXPECT_TRUE(found(verify_script(unordered, script), "race"));

  Ensemble never = ensemble;
  never.programs[0].reduce[0].ops.erase(never.programs[0].reduce[0].ops.begin() + 1);
  EXPECT_TRUE(found(verify_script(never, script), "deadlock"));

  Ensemble late = ensemble;  // joined before it is recorded: fine on its own queue, not one at a time
  std::swap(late.programs[0].reduce[0].ops[1], late.programs[0].reduce[0].ops[2]);
  EXPECT_TRUE(found(verify_script(late, script), "law 4")) << first_sentence(verify_script(late, script));

  Ensemble twice = ensemble;
  twice.programs[0].reduce[0].ops.insert(twice.programs[0].reduce[0].ops.begin(), record);
  EXPECT_TRUE(found(verify_script(twice, script), "law 2"));
}

TEST(Verify, MalformedProgramsAreNamedBeforeAnythingRuns) {
  Scenario s;
  s.world = 2;
  s.step.groups = 1;
  const Script script = training(s.step);
  const auto report_of = [&](auto&& change) {
    Ensemble ensemble = ensemble_of(s);
    change(ensemble);
    const Report report = verify_script(ensemble, script);
    EXPECT_EQ(report.operations, 0);
    return report;
  };
  const auto first = [](Program& program, OpKind kind) -> Operation& {
    return *std::find_if(program.ops.begin(), program.ops.end(), [&](const Operation& op) { return op.kind == kind; });
  };
  const auto reduce = [](Ensemble& e) -> Program& { return e.programs[0].reduce[1]; };
  const auto is = [&](std::string_view law, auto&& change) {
    const Report report = report_of(change);
    EXPECT_TRUE(found(report, law)) << law << ": " << first_sentence(report);
    if (!report.ok()) {
      EXPECT_EQ(report.violations.front().rank, 1);
    }
  };
  is("law 1", [&](Ensemble& e) { reduce(e).rank = 0; });
  is("law 1", [&](Ensemble& e) { reduce(e).regions[0].bytes += 1; });
  is("law 1", [&](Ensemble& e) { first(reduce(e), OpKind::copy).queue = 7; });
  is("law 1", [&](Ensemble& e) { first(reduce(e), OpKind::wait).counter = 99; });
  is("law 1", [&](Ensemble& e) { first(reduce(e), OpKind::wait).to.index = 1; });
  is("law 1", [&](Ensemble& e) { first(reduce(e), OpKind::copy).src.region = -1; });
  is("law 1", [&](Ensemble& e) { first(reduce(e), OpKind::copy).to.index = 2; });
  is("law 1", [&](Ensemble& e) { first(reduce(e), OpKind::sum).source_count = 1000; });
  is("law 1", [&](Ensemble& e) { first(reduce(e), OpKind::sum).to = {Reach::local, 0}; });
  is("law 1", [&](Ensemble& e) { first(reduce(e), OpKind::sum).kind = OpKind::land; });
  is("law 2", [&](Ensemble& e) { first(reduce(e), OpKind::signal).n = 2; });
  is("law 3", [&](Ensemble& e) { first(reduce(e), OpKind::wait).n = 0; });
  is("law 6", [&](Ensemble& e) {
    first(reduce(e), OpKind::copy).shape.rows = 2;
    first(reduce(e), OpKind::copy).kind = OpKind::put;
  });
  is("bounds", [&](Ensemble& e) { first(reduce(e), OpKind::copy).dst.offset = -4; });
  is("bounds", [&](Ensemble& e) { first(reduce(e), OpKind::copy).src.offset = 1 << 20; });
  is("bounds", [&](Ensemble& e) { first(reduce(e), OpKind::sum).shape.row_bytes = 1 << 20; });
  is("bounds", [&](Ensemble& e) { first(reduce(e), OpKind::sum).shape.row_bytes -= 1; });
  is("bounds", [&](Ensemble& e) {
    Operation& op = first(reduce(e), OpKind::copy);
    op.shape = {2, 8, 8, 4};
  });
  is("bounds", [&](Ensemble& e) { reduce(e).regions.back().bytes += 4; });
  is("bounds", [&](Ensemble& e) {  // onto its own source
    Operation& op = first(reduce(e), OpKind::sum);
    reduce(e).sources[static_cast<size_t>(op.first_source)] = op.dst;
  });
}

// Strided runs are what several rows of copies are.
TEST(Verify, StridedCopyEqualsItsRows) {
  Scenario s;
  s.world = 2;
  s.step.groups = 1;
  Ensemble ensemble = ensemble_of(s);
  for (Program& program : ensemble.programs[0].gather_move) {
    for (Operation& op : program.ops) {
      if (op.kind == OpKind::copy && op.shape.row_bytes % 8 == 0) {
        op.shape = {op.shape.row_bytes / 8, 8, 8, 8};
      }
    }
  }
  EXPECT_TRUE(verify_script(ensemble, training(s.step)).ok());
  for (Operation& op : ensemble.programs[0].gather_move[0].ops) {
    if (op.kind == OpKind::copy && op.shape.rows > 1) --op.shape.rows;
  }
  EXPECT_TRUE(found(verify_script(ensemble, training(s.step)), "landing"));
}

TEST(Verify, ScriptsThatHaveNoProgramsAreRefused) {
  Scenario s;
  s.landing = Landing::ring;
  s.step.keep_backward = true;
  EXPECT_THROW(verify_script(ensemble_of(s), training(s.step)), Error);
  EXPECT_THROW(verify_script(ensemble_of(s), script_of({{Kind::use, 9}})), Error);
  EXPECT_THROW(verify_script(ensemble_of(s), script_of({{Kind::step, -1}})), Error);
}

TEST(Verify, LimitIsKept) {
  Scenario s;
  s.step.groups = 1;
  const Script script = script_of({{Kind::use, 0}, {Kind::use, 0}, {Kind::use, 0}});
  EXPECT_EQ(verify_script(ensemble_of(s), script, 2).violations.size(), 2U);
  EXPECT_EQ(verify_script(ensemble_of(s), script, 1).violations.size(), 1U);
}

TEST(Verify, DataOrderSeesOnlyData) {
  Scenario s;
  s.step.groups = 1;
  const Ensemble ensemble = ensemble_of(s);
  const std::vector<Script> script = {training(s.step)};
  const auto order = verify::data_order(ensemble, script);
  ASSERT_FALSE(order.empty());
  // A handshake that repeats one which is already there orders nothing anew.
  Ensemble redundant = ensemble;
  for (Program& program : redundant.programs[0].gather_move) {
    std::vector<Operation> barrier;
    for (const Operation& op : program.ops) {
      if (op.counter == redundant.space.arrived) barrier.push_back(op);
    }
    program.ops.insert(program.ops.end(), barrier.begin(), barrier.end());
  }
  EXPECT_TRUE(verify_script(redundant, script.front()).ok());
  EXPECT_EQ(order, verify::data_order(redundant, script));
}

}  // namespace
}  // namespace tide
