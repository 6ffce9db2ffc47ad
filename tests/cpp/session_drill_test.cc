// What survivors see when a rank dies, stops, or does something else than the others.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "model.h"
#include "ranks.h"
#include "tide/error.h"
#include "tide/session.h"

namespace tide {
namespace {

constexpr std::chrono::milliseconds kDeadline{2000};
constexpr double kMargin = 3.0;  // seconds, for a loaded machine

SessionOptions options_for(int32_t world, Landing landing = Landing::resident) {
  SessionOptions options;
  options.world = world;
  options.plan.landing = landing;
  options.plan.chunk_bytes = 4096;
  options.deadline = kDeadline;
  return options;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

enum class Place { gather, reduce, close };
enum class Fault { kill, stop };

std::string word(Place place) {
  return place == Place::gather ? "all-gather" : place == Place::reduce ? "reduce-scatter" : "close";
}

// One rank of a model that trains; `fault(place)` is asked before every call.
void train(const SessionOptions& options, int steps, const std::function<void(Place, int)>& before) {
  Session session(options);
  const GroupId group = session.register_group({"layer", {{"w", {97, 31}, DType::f32, true}}}, {});
  session.commit();
  const Layout& layout = session.layout(group);
  std::vector<test::Fenced> shards = test::make_shards(layout, group, options.rank, 1);
  std::vector<float> gradient(97 * 31, 1.0F);
  std::vector<float> out(static_cast<size_t>(packed_elements(layout, {})));
  const void* grads[] = {gradient.data()};
  const auto call = [&] {
    for (int step = 0; step < steps; ++step) {
      before(Place::gather, step);
      session.all_gather(group, test::pointers(layout, shards, options.rank));
      session.release(group);
      before(Place::reduce, step);
      session.reduce_scatter(group, grads, out.data(), {DType::f32});
    }
    before(Place::close, steps);
    session.close();
  };
  try {
    call();
  } catch (const Error& error) {
    // From here on every call says so, with the first cause.
    const std::string first = error.what();
    for (int again = 0; again < 2; ++again) {
      try {
        session.all_gather(group, test::pointers(layout, shards, options.rank));
      } catch (const Error& later) {
        if (later.code() == ErrorCode::aborted && contains(later.what(), first)) continue;
      }
      throw Error(ErrorCode::check_failed, "a dead session took a call after: " + first);
    }
    throw;
  }
}

void expect_survivors(const std::vector<test::Outcome>& outcomes, int32_t victim, const std::string& call) {
  const std::set<ErrorCode> allowed{ErrorCode::peer_lost, ErrorCode::timeout, ErrorCode::aborted};
  bool someone_knows = false;
  for (size_t r = 0; r < outcomes.size(); ++r) {
    if (static_cast<int32_t>(r) == victim) continue;
    const test::Outcome& outcome = outcomes[r];
    ASSERT_TRUE(outcome.done && outcome.code.has_value()) << "rank " << r << ": " << test::to_string(outcome);
    EXPECT_TRUE(allowed.count(*outcome.code) == 1) << test::to_string(outcome);
    EXPECT_LT(outcome.seconds, std::chrono::duration<double>(kDeadline).count() + kMargin);
    EXPECT_TRUE(contains(outcome.sentence, "rank " + std::to_string(victim))) << test::to_string(outcome);
    EXPECT_TRUE(contains(outcome.sentence, call)) << test::to_string(outcome);
    someone_knows = someone_knows || *outcome.code != ErrorCode::aborted;
  }
  EXPECT_TRUE(someone_knows);
}

struct Drill {
  Place place;
  Fault fault;
};

class Drills : public testing::TestWithParam<Drill> {};

TEST_P(Drills, SurvivorsStopInTimeAndSayWhere) {
  const auto [place, fault] = GetParam();
  for (const int32_t world : {2, 5}) {
    const int32_t victim = world - 1;
    const auto outcomes =
        test::run_processes(options_for(world),
                            [&](const SessionOptions& options) {
                              train(options, 3, [&](Place at, int step) {
                                if (options.rank == victim && at == place && (step == 1 || at == Place::close)) {
                                  raise(fault == Fault::kill ? SIGKILL : SIGSTOP);
                                }
                              });
                            },
                            {victim});
    expect_survivors(outcomes, victim, word(place));
  }
}

INSTANTIATE_TEST_SUITE_P(Each, Drills,
                         testing::Values(Drill{Place::gather, Fault::kill}, Drill{Place::reduce, Fault::kill},
                                         Drill{Place::close, Fault::kill}, Drill{Place::gather, Fault::stop},
                                         Drill{Place::reduce, Fault::stop}, Drill{Place::close, Fault::stop}),
                         [](const auto& test) {
                           const std::string place = test.param.place == Place::gather   ? "gather"
                                                     : test.param.place == Place::reduce ? "reduce"
                                                                                         : "close";
                           return place + (test.param.fault == Fault::kill ? "_kill" : "_stop");
                         });

TEST(DrillAnyTime, KilledWhileEverybodyIsBusy) {
  for (const int after_ms : {60, 117, 191}) {
    const auto outcomes = test::run_processes(
        options_for(4), [](const SessionOptions& options) { train(options, 1 << 30, [](Place, int) {}); }, {2},
        [&](const std::vector<pid_t>& children) {
          std::this_thread::sleep_for(std::chrono::milliseconds(after_ms));
          kill(children[2], SIGKILL);
        });
    expect_survivors(outcomes, 2, "");
  }
}

TEST(DrillAbort, ThrowingRankEndsTheOthers) {
  // A rank that gives up destroys its session without closing it; nobody waits for the deadline to learn.
  const auto outcomes = test::run_processes(options_for(3), [](const SessionOptions& options) {
    train(options, 3, [&](Place at, int step) {
      if (options.rank == 1 && at == Place::reduce && step == 1) throw std::runtime_error("rank 1 gave up");
    });
  });
  EXPECT_EQ(outcomes[1].sentence, "rank 1 gave up");
  for (const size_t r : {size_t{0}, size_t{2}}) {
    ASSERT_TRUE(outcomes[r].code.has_value()) << test::to_string(outcomes[r]);
    EXPECT_TRUE(contains(outcomes[r].sentence, "rank 1")) << test::to_string(outcomes[r]);
    EXPECT_LT(outcomes[r].seconds, std::chrono::duration<double>(kDeadline).count() + kMargin);
  }
}

// --- disagreement at registration

struct Registered {
  std::vector<Group> groups;
  GroupOptions options;
};

struct Difference {
  std::string field;                       // as the sentence names it
  std::string where;                       // group or tensor it names
  std::vector<std::string> values;         // both
  std::function<void(Registered&)> apply;  // on the last rank
};

TEST(Disagreement, EveryRankNamesTheFirstDifference) {
  const Registered base{
      {{"a", {{"w", {4, 3}, DType::f32, true}, {"b", {4}, DType::f32, true}}}, {"c", {{"v", {8}, DType::f32, true}}}},
      {true, DType::bf16, false}};
  const Difference differences[] = {
      {"name", "group 0", {"\"a\"", "\"z\""}, [](Registered& r) { r.groups[0].name = "z"; }},
      {"name", "group 'c', tensor 0", {"\"v\"", "\"u\""}, [](Registered& r) { r.groups[1].tensors[0].name = "u"; }},
      {"shape",
       "tensor 'w'",
       {"[4,3]", "[4,5]"},
       [](Registered& r) {
         r.groups[0].tensors[0].shape = {4, 5};
       }},
      {"dtype", "tensor 'b'", {"f32", "bf16"}, [](Registered& r) { r.groups[0].tensors[1].dtype = DType::bf16; }},
      {"trainable", "tensor 'b'", {"true", "false"}, [](Registered& r) { r.groups[0].tensors[1].trainable = false; }},
      {"number of tensors", "group 'a'", {"2", "1"}, [](Registered& r) { r.groups[0].tensors.pop_back(); }},
      {"number of groups", "session", {"2", "1"}, [](Registered& r) { r.groups.pop_back(); }},
      {"gather_dtype", "group 'a'", {"bf16", "as stored"}, [](Registered& r) { r.options.cast = false; }},
      {"gather_dtype", "group 'a'", {"bf16", "f16"}, [](Registered& r) { r.options.gather_dtype = DType::f16; }},
      {"resident_shards", "group 'a'", {"true", "false"}, [](Registered& r) { r.options.resident_shards = true; }},
  };
  for (const Difference& difference : differences) {
    SCOPED_TRACE(difference.field + " of " + difference.where);
    const auto outcomes = test::run_threads(options_for(3), [&](const SessionOptions& options) {
      Registered mine = base;
      if (options.rank == 2) difference.apply(mine);
      Session session(options);
      for (const Group& group : mine.groups) session.register_group(group, mine.options);
      session.commit();
    });
    for (const test::Outcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.code.has_value()) << test::to_string(outcome);
      EXPECT_EQ(*outcome.code, ErrorCode::mismatch) << test::to_string(outcome);
      EXPECT_EQ(outcome.sentence, outcomes[0].sentence);
      for (const std::string& part : {difference.field, difference.where, std::string("on rank 0"),
                                      std::string("on rank 2"), difference.values[0], difference.values[1]}) {
        EXPECT_TRUE(contains(outcome.sentence, part)) << part << " is not in: " << outcome.sentence;
      }
    }
  }
}

TEST(Disagreement, RankZerosPlanIsEverybodys) {
  test::expect_all_ok(test::run_threads(options_for(3), [](SessionOptions options) {
    if (options.rank != 0) {
      options.plan.landing = Landing::private_copy;
      options.plan.alignment = 64;
      options.plan.chunk_bytes = 8192;
    }
    Session session(options);
    session.register_group({"g", {{"w", {5, 5}, DType::f32, true}}}, {});
    session.commit();
    if (session.plan().landing != Landing::resident || session.plan().alignment != 256 ||
        session.plan().chunk_bytes != 4096) {
      throw Error(ErrorCode::check_failed, "rank " + std::to_string(options.rank) + " uses a plan of its own");
    }
    session.close();
  }));
}

// --- disagreement in calls

using Calls = std::function<void(Session&, int32_t rank, std::vector<float>& memory)>;

// Runs `calls` on three ranks of two groups; every rank must fail in time, one of them with the mismatch itself, and
// everybody's sentence contains `parts`.
void expect_mismatch(const Calls& calls, const std::vector<std::string>& parts) {
  const auto outcomes = test::run_threads(options_for(3), [&](const SessionOptions& options) {
    Session session(options);
    session.register_group({"first", {{"w", {6, 2}, DType::f32, true}, {"b", {6}, DType::f32, true}}}, {});
    session.register_group({"second", {{"w", {6, 2}, DType::f32, true}, {"b", {6}, DType::f32, true}}}, {});
    session.commit();
    std::vector<float> memory(64, 1.0F);
    calls(session, options.rank, memory);
    // Who finished that call before the others failed learns it here.
    const void* shards[] = {memory.data(), memory.data()};
    session.all_gather(0, shards);
    session.close();
  });
  bool found = false;
  for (const test::Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.code.has_value()) << test::to_string(outcome);
    EXPECT_TRUE(*outcome.code == ErrorCode::mismatch || *outcome.code == ErrorCode::aborted)
        << test::to_string(outcome);
    found = found || *outcome.code == ErrorCode::mismatch;
    EXPECT_LT(outcome.seconds, std::chrono::duration<double>(kDeadline).count() + kMargin);
    for (const std::string& part : parts) {
      EXPECT_TRUE(contains(outcome.sentence, part)) << part << " is not in: " << outcome.sentence;
    }
  }
  EXPECT_TRUE(found);
}

TEST(Disagreement, CallsInAnotherOrder) {
  expect_mismatch(
      [](Session& session, int32_t rank, std::vector<float>& memory) {
        const void* shards[] = {memory.data(), memory.data()};
        session.all_gather(rank == 1 ? 1 : 0, shards);
      },
      {"all-gather of group 'first'", "all-gather of group 'second'", "rank 1"});
}

TEST(Disagreement, GatherAgainstReduce) {
  expect_mismatch(
      [](Session& session, int32_t rank, std::vector<float>& memory) {
        const void* pointers[] = {memory.data(), memory.data()};
        if (rank == 2) {
          session.reduce_scatter(0, pointers, memory.data() + 32, {DType::f32});
        } else {
          session.all_gather(0, pointers);
        }
      },
      {"all-gather of group 'first'", "reduce-scatter of group 'first'", "rank 2"});
}

TEST(Disagreement, TermsOfAReduction) {
  struct Case {
    std::vector<std::string> parts;
    bool without_bias = false;
    ReduceOptions options;
  };
  const Case cases[] = {
      {{"different tensors"}, true, {DType::f32}},
      {{"grad_dtype", "f32", "bf16"}, false, {DType::bf16}},
      {{"alpha", "0.5"}, false, {DType::f32, 0.5F}},
      {{"accumulate", "true", "false"}, false, {DType::f32, 1.0F, true}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.parts[0]);
    std::vector<std::string> parts = c.parts;
    parts.emplace_back("reduce-scatter of group 'second'");
    expect_mismatch(
        [&](Session& session, int32_t rank, std::vector<float>& memory) {
          const void* grads[] = {memory.data(), rank == 1 && c.without_bias ? nullptr : memory.data()};
          session.reduce_scatter(1, grads, memory.data() + 32, rank == 1 ? c.options : ReduceOptions{DType::f32});
        },
        parts);
  }
}

// --- nothing is left behind

int64_t entries(const char* folder) {
  int64_t count = 0;
  for (auto it = std::filesystem::directory_iterator(folder); it != std::filesystem::directory_iterator(); ++it) {
    ++count;
  }
  return count;
}

int64_t mappings() {
  // Shared ones: what malloc maps privately comes and goes.
  std::ifstream maps("/proc/self/maps");
  int64_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    const size_t permissions = line.find(' ') + 1;
    if (line.size() > permissions + 3 && line[permissions + 3] == 's') ++count;
  }
  return count;
}

TEST(Rounds, LeaveDescriptorsAndMappingsAsTheyWere) {
  test::expect_all_ok(test::run_processes(options_for(3), [](SessionOptions options) {
    int64_t descriptors = 0;
    int64_t maps = 0;
    for (int round = 0; round < 20; ++round) {
      options.job = "round " + std::to_string(round);
      train(options, 1, [](Place, int) {});
      if (round == 0) {
        descriptors = entries("/proc/self/fd");
        maps = mappings();
      }
    }
    const int64_t descriptors_after = entries("/proc/self/fd");
    if (descriptors_after != descriptors || mappings() != maps) {
      throw Error(ErrorCode::check_failed, "descriptors " + std::to_string(descriptors) + " to " +
                                               std::to_string(descriptors_after) + ", mappings " +
                                               std::to_string(maps) + " to " + std::to_string(mappings()));
    }
  }));
}

TEST(Rounds, FailedSessionsLeaveNothingEither) {
  test::expect_all_ok(test::run_processes(options_for(2), [](SessionOptions options) {
    int64_t descriptors = 0;
    for (int round = 0; round < 6; ++round) {
      options.job = "round " + std::to_string(round);
      try {
        train(options, 1, [&](Place at, int) {
          if (options.rank == 1 && at == Place::reduce) throw std::runtime_error("gave up");
        });
        throw Error(ErrorCode::check_failed, "the session went on without rank 1");
      } catch (const Error& error) {
        if (error.code() == ErrorCode::check_failed) throw;
      } catch (const std::runtime_error&) {
      }
      if (round == 0) descriptors = entries("/proc/self/fd");
    }
    if (entries("/proc/self/fd") != descriptors) throw Error(ErrorCode::check_failed, "descriptors were left open");
  }));
}

}  // namespace
}  // namespace tide
