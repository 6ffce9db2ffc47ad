// Sessions against the straightforward reference, bit for bit, over worlds, landings, dtypes, shapes, masks and orders.
#include "tide/session.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <random>

#include "model.h"
#include "ranks.h"
#include "tide/error.h"

namespace tide {
namespace {

using test::Fenced;

constexpr Landing kLandings[] = {Landing::ring, Landing::resident, Landing::home, Landing::private_copy};
constexpr int32_t kWorlds[] = {1, 2, 3, 4, 5, 7, 8};

// The sentence of what `run` throws with `code`; empty when it does not.
template <typename Run>
std::string refusal(ErrorCode code, Run&& run) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

void require(bool condition, const std::string& what) {
  if (!condition) throw Error(ErrorCode::check_failed, what);
}

// Awkward shapes: 0-dim, empty, fewer rows than ranks, primes, and one long enough for several chunks.
std::vector<Group> odd_groups(DType dtype) {
  return {
      {"odd",
       {{"scalar", {}, dtype, true},
        {"empty", {0, 5}, dtype, true},
        {"narrow", {5, 0}, dtype, true},
        {"one", {1}, dtype, true},
        {"few", {3, 7}, dtype, true},
        {"frozen", {11, 3}, dtype, false},
        {"prime", {13, 17}, dtype, true}}},
      {"long", {{"weight", {211, 53}, dtype, true}, {"bias", {211}, dtype, true}}},
      {"mixed",
       {{"ids", {9, 2}, DType::i64, false},
        {"mask", {10}, DType::boolean, false},
        {"bytes", {17, 3}, DType::f8_e4m3, false},
        {"scale", {6, 4}, DType::f32, true},
        {"half", {5, 3}, DType::f16, true}}},
      {"nothing", {}},
  };
}

struct Model {
  std::vector<Group> groups;
  GroupOptions options;
  DType grad_dtype = DType::bf16;
};

// One rank of a model: what it holds, and checks of what the session gives back.
class Rank {
 public:
  Rank(const SessionOptions& options, const Model& model) : rank_(options.rank), model_(model), session_(options) {
    for (const Group& group : model.groups) session_.register_group(group, model.options);
    session_.commit();
    home_ = session_.plan().landing == Landing::home;
    for (size_t g = 0; g < model.groups.size(); ++g) {
      shards_.emplace_back();
      version_.push_back(0);
      moved_.push_back(false);
      step(static_cast<GroupId>(g));
    }
  }

  Session& session() { return session_; }

  // The optimizer's write: new values in this rank's shards.
  void step(GroupId g) {
    const Layout& layout = session_.layout(g);
    ++version_[at(g)];
    moved_[at(g)] = false;
    if (!home_ && !model_.options.resident_shards) {
      shards_[at(g)] = test::make_shards(layout, g, rank_, version_[at(g)]);
      return;
    }
    for (size_t p = 0; p < layout.params().size(); ++p) {
      const ParamLayout& param = layout.params()[p];
      test::write_parameter(static_cast<std::byte*>(session_.shard_memory(g, static_cast<int64_t>(p))),
                            param.shard_dtype, g, static_cast<int64_t>(p), param.first_row(rank_) * param.row_elements,
                            param.valid_elements(rank_), version_[at(g)]);
    }
  }

  // `claim_unchanged`: tells the session so where it is true.
  void gather(GroupId g, bool claim_unchanged = true) {
    const Layout& layout = session_.layout(g);
    const std::vector<const void*> shards =
        shards_[at(g)].empty() ? std::vector<const void*>{} : test::pointers(layout, shards_[at(g)], rank_);
    session_.all_gather(g, shards, claim_unchanged && moved_[at(g)]);
    moved_[at(g)] = true;
    check_landing(g);
  }

  void check_landing(GroupId g) {
    const Layout& layout = session_.layout(g);
    for (size_t p = 0; p < layout.params().size(); ++p) {
      const auto param = static_cast<int64_t>(p);
      test::check_bytes(static_cast<const std::byte*>(session_.landing(g, param)),
                        test::gathered(layout, g, param, version_[at(g)]), itemsize(layout.params()[p].gather_dtype),
                        "rank " + std::to_string(rank_) + ", landing of " + layout.group().tensors[p].name);
    }
    for (const Fenced& shard : shards_[at(g)]) shard.check("a shard");
  }

  void reduce(GroupId g, std::vector<bool> present, const ReduceOptions& options) {
    const Layout& layout = session_.layout(g);
    const int64_t seed_version = version_[at(g)] * 7 + ++reduced_;
    std::vector<Fenced> gradients = test::make_gradients(layout, options.grad_dtype, g, rank_, seed_version);
    std::vector<const void*> grads;
    for (size_t p = 0; p < layout.params().size(); ++p) {
      if (!layout.params()[p].trainable) present[p] = false;
      grads.push_back(present[p] ? gradients[p].data() : nullptr);
    }
    Fenced out(packed_elements(layout, present) * 4);
    std::vector<float> want(static_cast<size_t>(out.size() / 4));
    for (size_t i = 0; i < want.size(); ++i) want[i] = test::spread(i + 5 * static_cast<uint64_t>(reduced_));
    if (!want.empty()) std::memcpy(out.data(), want.data(), want.size() * 4);
    session_.reduce_scatter(g, grads, reinterpret_cast<float*>(out.data()), options);
    test::reduce_reference(want, layout, options.grad_dtype, g, rank_, present, seed_version, options.alpha,
                           options.accumulate);
    std::vector<std::byte> bytes(want.size() * 4);
    if (!want.empty()) std::memcpy(bytes.data(), want.data(), bytes.size());
    test::check_bytes(out.data(), bytes, 4, "rank " + std::to_string(rank_) + ", gradients of " + layout.group().name);
    out.check("the reduced gradients");
  }

  std::vector<bool> all(GroupId g) const { return std::vector<bool>(session_.layout(g).params().size(), true); }

  void close() { session_.close(); }

 private:
  static size_t at(GroupId g) { return static_cast<size_t>(g); }

  int32_t rank_;
  const Model& model_;
  Session session_;
  bool home_ = false;
  std::vector<std::vector<Fenced>> shards_;  // by group; empty where the session holds them
  std::vector<int64_t> version_;
  std::vector<bool> moved_;
  int64_t reduced_ = 0;
};

SessionOptions options_for(int32_t world, Landing landing) {
  SessionOptions options;
  options.world = world;
  options.plan.landing = landing;
  options.plan.chunk_bytes = 4096;
  options.deadline = std::chrono::seconds(30);
  return options;
}

// Two steps over every group: gather twice, the second time unchanged, reduce, step.
void train(const SessionOptions& options, const Model& model) {
  Rank rank(options, model);
  const auto groups = static_cast<GroupId>(model.groups.size());
  for (int step = 0; step < 2; ++step) {
    for (GroupId g = 0; g < groups; ++g) {
      rank.gather(g);
      rank.session().release(g);
    }
    for (GroupId g = groups - 1; g >= 0; --g) {
      rank.gather(g);
      rank.session().release(g);
      rank.reduce(g, rank.all(g), {model.grad_dtype, step == 0 ? 1.0F : 1.0F / 3, step == 1});
      rank.step(g);
    }
  }
  for (GroupId g = 0; g < groups; ++g) {
    const GroupStats stats = rank.session().stats(g);
    require(stats.gathers == 4 && stats.reduces == 2, "counted calls");
    const Landing landing = options.plan.landing;
    require(stats.kept == (landing == Landing::home       ? 4
                           : landing == Landing::resident ? 2
                                                          : 0),
            "kept gathers: " + std::to_string(stats.kept));
  }
  rank.close();
}

class Worlds : public testing::TestWithParam<int32_t> {};

TEST_P(Worlds, EveryLandingMatchesTheReference) {
  for (const Landing landing : kLandings) {
    const Model model{odd_groups(DType::f32), {}, DType::f32};
    SCOPED_TRACE(std::string(name(landing)));
    test::expect_all_ok(test::run_threads(options_for(GetParam(), landing),
                                          [&](const SessionOptions& options) { train(options, model); }));
  }
}

TEST_P(Worlds, CastsAndGradientTypes) {
  const DType pairs[][2] = {{DType::f32, DType::bf16}, {DType::f32, DType::f16}, {DType::bf16, DType::f32}};
  for (const auto& [stored, gathered] : pairs) {
    for (const Landing landing : {Landing::ring, Landing::resident, Landing::private_copy}) {
      const Model model{odd_groups(stored), {true, gathered, landing == Landing::resident}, gathered};
      SCOPED_TRACE(std::string(name(landing)) + " " + std::string(name(stored)) + " as " + std::string(name(gathered)));
      test::expect_all_ok(test::run_threads(options_for(GetParam(), landing),
                                            [&](const SessionOptions& options) { train(options, model); }));
    }
  }
}

TEST_P(Worlds, AsProcesses) {
  for (const Landing landing : {Landing::resident, Landing::home, Landing::private_copy}) {
    const Model model{odd_groups(DType::bf16), {}, DType::bf16};
    SCOPED_TRACE(std::string(name(landing)));
    test::expect_all_ok(test::run_processes(options_for(GetParam(), landing),
                                            [&](const SessionOptions& options) { train(options, model); }));
  }
}

TEST_P(Worlds, ChunksSlotsAndPasses) {
  for (const int32_t slots : {1, 2, 3}) {
    for (const int32_t passes : {1, 3}) {
      SessionOptions options = options_for(GetParam(), Landing::resident);
      options.plan.staging_slots = slots;
      options.plan.passes = passes;
      options.plan.alignment = slots == 1 ? 1 : 256;
      const Model model{odd_groups(DType::bf16), {}, DType::bf16};
      SCOPED_TRACE(std::to_string(slots) + " slots, " + std::to_string(passes) + " passes");
      test::expect_all_ok(test::run_threads(options, [&](const SessionOptions& o) { train(o, model); }));
    }
  }
}

TEST_P(Worlds, MasksAlphaAndAccumulation) {
  const Model model{odd_groups(DType::f32), {}, DType::bf16};
  test::expect_all_ok(test::run_threads(options_for(GetParam(), Landing::ring), [&](const SessionOptions& options) {
    Rank rank(options, model);
    std::mt19937 random(3);
    for (int call = 0; call < 24; ++call) {
      const auto group = static_cast<GroupId>(random() % model.groups.size());
      std::vector<bool> present = rank.all(group);
      for (size_t p = 0; p < present.size(); ++p) present[p] = random() % 3 != 0;
      if (call == 5) present.assign(present.size(), false);
      const float alphas[] = {1.0F, 0.125F, 1.0F / 3, 0.0F, -2.5F};
      const DType dtypes[] = {DType::f32, DType::bf16, DType::f16};
      const DType dtype = dtypes[random() % 3];
      const float alpha = alphas[random() % 5];
      rank.reduce(group, present, {dtype, alpha, random() % 2 == 0});
    }
    rank.close();
  }));
}

TEST_P(Worlds, RandomSequences) {
  for (const Landing landing : kLandings) {
    const Model model{odd_groups(DType::f32), {landing == Landing::ring, DType::bf16, false}, DType::bf16};
    SCOPED_TRACE(std::string(name(landing)));
    test::expect_all_ok(test::run_threads(options_for(GetParam(), landing), [&](const SessionOptions& options) {
      Rank rank(options, model);
      std::mt19937 random(static_cast<uint32_t>(options.world) * 10 + static_cast<uint32_t>(landing));
      std::vector<bool> held(model.groups.size(), false);
      const bool slots = landing == Landing::ring || landing == Landing::private_copy;
      for (int action = 0; action < 60; ++action) {
        const auto group = static_cast<GroupId>(random() % model.groups.size());
        const auto g = static_cast<size_t>(group);
        // Groups 0 and 3 share a slot of three.
        const bool leased = slots && g % 3 == 0 && held[3 - g];
        const uint32_t choice = random() % 4;
        const bool claim = random() % 2 == 0;
        if (!held[g] && !leased && choice < 3) {
          rank.gather(group, claim);
          held[g] = true;
        } else if (held[g] && choice < 2) {
          rank.check_landing(group);
          if (landing == Landing::private_copy) {
            // Code that writes to what it gathered: the next gather brings everything back.
            const ParamLayout* params = rank.session().layout(group).params().data();
            for (size_t p = 0; p < model.groups[g].tensors.size(); ++p) {
              std::memset(rank.session().landing(group, static_cast<int64_t>(p)), 0x5A + options.rank,
                          static_cast<size_t>(params[p].elements() * itemsize(params[p].gather_dtype)));
            }
          }
          rank.session().release(group);
          held[g] = false;
        } else if (choice == 3) {
          if (held[g]) {
            rank.session().release(group);
            held[g] = false;
          }
          // A reduce-scatter separates every reader from the step that follows it.
          rank.reduce(group, rank.all(group), {DType::f16, 0.5F, claim});
          rank.step(group);
        }
      }
      rank.close();
    }));
  }
}

INSTANTIATE_TEST_SUITE_P(Each, Worlds, testing::ValuesIn(kWorlds), testing::PrintToStringParamName());

TEST(SessionArithmetic, AnotherOrderWouldGiveOtherBits) {
  // The comparisons above are worth something only if a reversed fold of the same gradients differs.
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    constexpr int64_t n = 500;
    std::vector<std::vector<std::byte>> runs;
    for (int64_t j = 0; j < 4; ++j) {
      runs.emplace_back(static_cast<size_t>(n * itemsize(dtype)));
      test::write_gradient(runs.back().data(), dtype, j, 0, 0, 0, n, 1);
    }
    std::vector<const std::byte*> forward;
    for (const auto& run : runs) forward.push_back(run.data());
    const std::vector<const std::byte*> backward(forward.rbegin(), forward.rend());
    std::vector<float> a(n);
    std::vector<float> b(n);
    verify::sum(a.data(), forward, dtype, n, 1.0F, false);
    verify::sum(b.data(), backward, dtype, n, 1.0F, false);
    EXPECT_NE(a, b) << name(dtype);
  }
}

Group small() { return {"small", {{"weight", {4, 3}, DType::f32, true}, {"bias", {3}, DType::f32, true}}}; }

SessionOptions alone(Landing landing = Landing::resident) { return options_for(1, landing); }

TEST(SessionErrors, NameWhatIsWrong) {
  Session session(alone());
  const GroupId group = session.register_group(small(), {});
  float weight[12]{};
  float bias[3]{};
  const void* shards[] = {weight, bias};
  float out[15];

  EXPECT_NE(refusal(ErrorCode::invalid_argument, [&] { session.all_gather(group, shards); }).find("before commit"),
            std::string::npos);
  EXPECT_NE(refusal(ErrorCode::invalid_argument, [&] { session.landing(group, 0); }).find("before commit"),
            std::string::npos);
  EXPECT_NE(refusal(ErrorCode::invalid_argument, [&] { session.register_group(small(), {}); }).find("'small'"),
            std::string::npos);
  session.commit();
  EXPECT_NE(refusal(ErrorCode::invalid_argument, [&] { session.register_group(small(), {}); }).find("after commit"),
            std::string::npos);
  EXPECT_NE(refusal(ErrorCode::invalid_argument, [&] { session.all_gather(7, shards); }).find("7"), std::string::npos);
  EXPECT_NE(refusal(ErrorCode::invalid_argument,
                    [&] {
                      session.all_gather(group, {shards, 1});
                    })
                .find("1 shards"),
            std::string::npos);
  const void* missing[] = {weight, nullptr};
  EXPECT_NE(refusal(ErrorCode::invalid_argument, [&] { session.all_gather(group, missing); }).find("'bias'"),
            std::string::npos);
  EXPECT_NE(refusal(ErrorCode::invalid_argument, [&] { session.release(group); }).find("not gathered"),
            std::string::npos);
  EXPECT_NE(refusal(ErrorCode::invalid_argument,
                    [&] {
                      session.reduce_scatter(group, {shards, 1}, out, {});
                    })
                .find("1 gradients"),
            std::string::npos);
  EXPECT_NE(
      refusal(ErrorCode::invalid_argument, [&] { session.reduce_scatter(group, shards, nullptr, {}); }).find("out"),
      std::string::npos);
  EXPECT_NE(
      refusal(ErrorCode::unsupported, [&] { session.reduce_scatter(group, shards, out, {DType::i32}); }).find("i32"),
      std::string::npos);
  EXPECT_NE(refusal(ErrorCode::invalid_argument, [&] { session.landing(group, 2); }).find("2"), std::string::npos);
  EXPECT_NE(refusal(ErrorCode::invalid_argument, [&] { session.shard_memory(group, 0); }).find("resident_shards"),
            std::string::npos);
  // None of these ended the session.
  session.all_gather(group, shards);
  EXPECT_NE(refusal(ErrorCode::invalid_argument, [&] { session.all_gather(group, shards); }).find("already"),
            std::string::npos);
  session.release(group);
  session.close();
  session.close();
  EXPECT_NE(refusal(ErrorCode::closed, [&] { session.all_gather(group, shards); }).find("after close"),
            std::string::npos);
}

TEST(SessionErrors, RingSlotNamesBothGroups) {
  SessionOptions options = alone(Landing::ring);
  options.plan.ring_depth = 2;
  Session session(options);
  float value = 1;
  const void* shards[] = {&value};
  for (const char* group : {"a", "b", "c"}) session.register_group({group, {{"w", {1}, DType::f32, true}}}, {});
  session.commit();
  session.all_gather(0, shards);
  const std::string sentence = refusal(ErrorCode::invalid_argument, [&] { session.all_gather(2, shards); });
  EXPECT_NE(sentence.find("'a'"), std::string::npos) << sentence;
  EXPECT_NE(sentence.find("'c'"), std::string::npos) << sentence;
  EXPECT_NE(sentence.find("raise ring_depth"), std::string::npos) << sentence;
  session.release(0);
  session.all_gather(2, shards);
}

TEST(SessionErrors, HomeRefusesCastsByName) {
  Session session(alone(Landing::home));
  session.register_group(small(), {true, DType::bf16, false});
  const std::string sentence = refusal(ErrorCode::unsupported, [&] { session.commit(); });
  EXPECT_NE(sentence.find("weight"), std::string::npos) << sentence;
  EXPECT_NE(refusal(ErrorCode::aborted, [&] { session.commit(); }).find("weight"), std::string::npos);
}

TEST(SessionErrors, OptionsAreChecked) {
  SessionOptions options;
  options.world = 0;
  refusal(ErrorCode::invalid_argument, [&] { Session session(options); });
  options.world = 2;
  EXPECT_NE(refusal(ErrorCode::invalid_argument, [&] { Session session(options); }).find("store"), std::string::npos);
  options.store = make_thread_store();
  options.rank = 2;
  EXPECT_NE(refusal(ErrorCode::invalid_argument, [&] { Session session(options); }).find("rank is 2"),
            std::string::npos);
}

TEST(SessionLife, MovesAndForks) {
  Session first(alone());
  const GroupId group = first.register_group(small(), {false, DType::f32, true});
  first.commit();
  Session second = std::move(first);
  refusal(ErrorCode::closed, [&] { first.close(); });  // NOLINT: what a moved-from session says
  static_cast<float*>(second.shard_memory(group, 0))[0] = 3.0F;
  second.all_gather(group, {});
  EXPECT_EQ(static_cast<float*>(second.landing(group, 0))[0], 3.0F);

  const pid_t child = fork();
  if (child == 0) {
    int status = 1;
    try {
      second.release(group);
    } catch (const Error& error) {
      status = error.code() == ErrorCode::closed ? 0 : 2;
    }
    _exit(status);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  second.release(group);
  second.close();
}

TEST(SessionLife, PeerWithoutStepsSeesOneLanding) {
  // Node-shared landings have one address range for all: written once, read by everybody; private ones are apart.
  for (const Landing landing : {Landing::resident, Landing::private_copy}) {
    std::atomic<int64_t> bytes{0};
    test::expect_all_ok(test::run_threads(options_for(4, landing), [&](const SessionOptions& options) {
      Session session(options);
      const GroupId group = session.register_group({"g", {{"w", {64, 64}, DType::f32, true}}}, {});
      session.commit();
      std::vector<Fenced> shards = test::make_shards(session.layout(group), group, options.rank, 1);
      session.all_gather(group, test::pointers(session.layout(group), shards, options.rank));
      bytes += session.stats(group).bytes_moved;
      session.release(group);
      session.close();
    }));
    EXPECT_EQ(bytes.load(), 64 * 64 * 4 * (landing == Landing::private_copy ? 4 : 1));
  }
}

}  // namespace
}  // namespace tide
