#include "tide/script.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tide/error.h"

namespace tide {
namespace {

int64_t count(const Script& script, ActionKind kind) {
  return std::count_if(script.actions.begin(), script.actions.end(), [&](const Action& a) { return a.kind == kind; });
}

TEST(Script, OneGroupOneStep) {
  EXPECT_EQ(to_text(training({1, 1, 0, false, 1})),
            "gather 0\nwait gather 0\nuse 0\nrelease 0\n"
            "gather 0\nwait gather 0\nuse 0\nbackward 0\nrelease 0\nreduce 0\nwait reduce 0\n"
            "consume 0\nstep 0\n");
}

TEST(Script, PrefetchIssuesAheadAndBackwardReverses) {
  EXPECT_EQ(to_text(training({3, 1, 1, true, 1})),
            "gather 0\ngather 1\nwait gather 0\nuse 0\nrelease 0\n"
            "gather 2\nwait gather 1\nuse 1\nrelease 1\n"
            "wait gather 2\nuse 2\nrelease 2\n"
            "gather 2 keep\ngather 1 keep\nwait gather 2\nuse 2\nbackward 2\nrelease 2\nreduce 2\n"
            "gather 0 keep\nwait gather 1\nuse 1\nbackward 1\nrelease 1\nreduce 1\n"
            "wait gather 0\nuse 0\nbackward 0\nrelease 0\nreduce 0\n"
            "wait reduce 2\nwait reduce 1\nwait reduce 0\n"
            "consume 0\nstep 0\nconsume 1\nstep 1\nconsume 2\nstep 2\n");
}

TEST(Script, LaterMicroBatchesAccumulate) {
  const Script script = training({2, 2, 0, false, 3});
  std::vector<bool> accumulates;
  for (const Action& action : script.actions) {
    if (action.kind == ActionKind::issue_reduce && action.group == 0) accumulates.push_back(action.accumulate);
  }
  EXPECT_EQ(accumulates, (std::vector<bool>{false, true, true, false, true, true}));
  EXPECT_EQ(count(script, ActionKind::step), 4);
  EXPECT_EQ(count(script, ActionKind::consume), 4);
}

TEST(Script, NeverMoreThanPrefetchAhead) {
  for (int32_t groups = 1; groups <= 6; ++groups) {
    for (int32_t prefetch = 0; prefetch <= 4; ++prefetch) {
      const Script script = training({groups, 2, prefetch, false, 2});
      std::set<int32_t> held;
      size_t most = 0;
      for (const Action& action : script.actions) {
        if (action.kind == ActionKind::issue_gather) {
          EXPECT_TRUE(held.insert(action.group).second);
        }
        if (action.kind == ActionKind::use) {
          EXPECT_TRUE(held.count(action.group) == 1);
        }
        if (action.kind == ActionKind::release) held.erase(action.group);
        most = std::max(most, held.size());
      }
      EXPECT_TRUE(held.empty());
      EXPECT_EQ(most, static_cast<size_t>(std::min(groups, prefetch + 1)));
      EXPECT_EQ(count(script, ActionKind::issue_gather), groups * 8);
      EXPECT_EQ(count(script, ActionKind::wait_gather), groups * 8);
      EXPECT_EQ(count(script, ActionKind::issue_reduce), count(script, ActionKind::wait_reduce));
    }
  }
}

TEST(Script, EveryActionHasAName) {
  std::set<std::string_view> names;
  for (int32_t kind = 0; kind <= static_cast<int32_t>(ActionKind::external); ++kind) {
    names.insert(name(static_cast<ActionKind>(kind)));
  }
  EXPECT_EQ(names.size(), 10U);
  EXPECT_EQ(names.count("?"), 0U);
  EXPECT_EQ(to_text(Script{}), "");
  EXPECT_EQ(to_text(Script{{{ActionKind::external, 3, false, false}}}), "external 3\n");
}

TEST(Script, BadShapesAreNamed) {
  EXPECT_TRUE(training({2, 0, 0, false, 1}).actions.empty());
  const auto refused = [](const StepShape& shape, const std::string& field) {
    try {
      training(shape);
      ADD_FAILURE() << field;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_EQ(std::string(error.what()).find(field), 0U) << error.what();
    }
  };
  refused({0, 1, 0, false, 1}, "groups is 0");
  refused({1, -1, 0, false, 1}, "steps is -1");
  refused({1, 1, -2, false, 1}, "prefetch is -2");
  refused({1, 1, 0, false, 0}, "micro_batches is 0");
}

}  // namespace
}  // namespace tide
