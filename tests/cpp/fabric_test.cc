// The fabric in fair weather, for ranks that are threads and ranks that are processes; and what a caller can do wrong.
#include <gtest/gtest.h>

#include <ctime>
#include <tuple>

#include "fabric_ranks.h"

namespace tide::fabric::testing {
namespace {

enum class As { threads, processes };

class Fabric : public ::testing::TestWithParam<std::tuple<As, int32_t>> {
 protected:
  int32_t world() const { return std::get<1>(GetParam()); }

  std::vector<std::string> outcomes(const Work& work) {
    return std::get<0>(GetParam()) == As::threads ? run_threads(world(), work) : run_processes(world(), work);
  }

  void run(const std::function<void(Node&)>& work) {
    const std::vector<std::string> all = outcomes([&](int32_t rank, const std::shared_ptr<Store>& store) {
      Node node(options(rank, world(), store));
      require(node.rank() == rank && node.world() == world(), "a node knows its place");
      work(node);
      node.leave();
    });
    for (size_t r = 0; r < all.size(); ++r) EXPECT_EQ(all[r], "") << "rank " << r;
    EXPECT_EQ(folder_.entries(), 0U);
  }

  PrivateRuntimeDir folder_;
};

std::string blob_of(int32_t rank, int32_t round, size_t bytes) {
  std::string blob(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) {
    blob[i] = static_cast<char>((i * 2654435761U + static_cast<size_t>(rank) * 97 + static_cast<size_t>(round)) >> 7);
  }
  return blob;
}

TEST_P(Fabric, ExchangesBlobsByRank) {
  run([&](Node& node) {
    const auto size = [&](int32_t rank, int32_t round) {
      if (round == 0) return size_t{0};
      if (round == 1) return static_cast<size_t>(rank % 3 == 0 ? 0 : 4097 * rank + 1);
      return rank == node.world() - 1 ? (size_t{5} << 20) + 3 : size_t{1};
    };
    for (int32_t round = 0; round < 3; ++round) {
      const auto blobs = node.exchange(blob_of(node.rank(), round, size(node.rank(), round)));
      require(blobs.size() == static_cast<size_t>(node.world()), "one blob a rank");
      for (int32_t r = 0; r < node.world(); ++r) {
        require(blobs[static_cast<size_t>(r)] == blob_of(r, round, size(r, round)),
                fmt::format("blob of rank {} in round {}", r, round));
      }
    }
  });
}

std::byte pattern(int32_t writer, int32_t owner, int64_t index) {
  return static_cast<std::byte>((index * 131 + writer * 17 + owner * 7 + 1) & 0xFF);
}

TEST_P(Fabric, MapsEveryWindowIntoEveryRank) {
  constexpr int64_t kPart = 1031;  // odd, so that parts share lines and pages
  const int64_t bytes = kPart * world() + 5;
  run([&](Node& node) {
    node.map(bytes, bytes, 3);
    for (int32_t r = 0; r < node.world(); ++r) {
      require(reinterpret_cast<uintptr_t>(node.window(r)) % 4096 == 0, "windows start at pages");
      for (int64_t i = 0; i < bytes; ++i) require(node.window(r)[i] == std::byte{0}, "windows are zero");
    }
    for (int64_t i = 0; i < bytes; ++i) require(node.shared()[i] == std::byte{0}, "shared memory is zero");
    node.exchange("");
    const int32_t me = node.rank();
    for (int64_t i = me * kPart; i < (me + 1) * kPart; ++i) {
      for (int32_t r = 0; r < node.world(); ++r) node.window(r)[i] = pattern(me, r, i);
      node.shared()[i] = pattern(me, -1, i);
    }
    node.exchange("");
    for (int32_t r = 0; r < node.world(); ++r) {
      for (int64_t i = 0; i < bytes; ++i) {
        const auto writer = static_cast<int32_t>(i / kPart);
        const bool guard = writer == node.world();
        require(node.window(r)[i] == (guard ? std::byte{0} : pattern(writer, r, i)), "a byte of a window");
        if (r == 0) require(node.shared()[i] == (guard ? std::byte{0} : pattern(writer, -1, i)), "a shared byte");
      }
    }
  });
}

TEST_P(Fabric, MapsEmptyMemory) {
  run([&](Node& node) {
    node.map(0, 0, 0);
    for (int32_t r = 0; r < node.world(); ++r)
      require(node.window(r) != nullptr, "a window of no bytes has an address");
    require(node.shared() != nullptr, "shared memory of no bytes has an address");
  });
}

TEST_P(Fabric, EveryCounterIsItsOwn) {
  constexpr int32_t kCounters = 21;  // more than a line
  run([&](Node& node) {
    node.map(1, 1, kCounters);
    for (int32_t at = 0; at < node.world(); ++at) {
      for (int32_t id = 0; id < kCounters; ++id) {
        require(load(node, at, id, node.rank()) == 0, "counters start at 0");
        node.counter(at, id, node.rank()).store(static_cast<uint64_t>(1 + id + 100 * (at + 100 * node.rank())));
      }
    }
    node.exchange("");
    for (int32_t at = 0; at < node.world(); ++at) {
      for (int32_t from = 0; from < node.world(); ++from) {
        for (int32_t id = 0; id < kCounters; ++id) {
          require(load(node, at, id, from) == static_cast<uint64_t>(1 + id + 100 * (at + 100 * from)), "a counter");
        }
      }
    }
    // Different producers do not share a line.
    if (node.world() > 1) {
      const auto first = reinterpret_cast<uintptr_t>(&node.counter(0, kCounters - 1, 0));
      const auto second = reinterpret_cast<uintptr_t>(&node.counter(0, 0, 1));
      require(first / 64 != second / 64, "producers have lines of their own");
    }
  });
}

TEST_P(Fabric, BellsWakeSleepersAllToAll) {
  constexpr int32_t kRounds = 100;
  run([&](Node& node) {
    node.map(1, 1, 2);
    for (uint64_t round = 1; round <= kRounds; ++round) {
      for (int32_t at = 0; at < node.world(); ++at) signal(node, at, 1);
      wait_until(node, [&] {
        for (int32_t from = 0; from < node.world(); ++from) {
          if (load(node, node.rank(), 1, from) < round) return false;
        }
        return true;
      });
      for (int32_t from = 0; from < node.world(); ++from) {
        require(load(node, node.rank(), 1, from) <= round + 1, "nobody is two rounds ahead");
      }
    }
  });
}

TEST_P(Fabric, NoRingIsLost) {
  constexpr uint64_t kRounds = 2000;
  run([&](Node& node) {
    node.map(1, 1, 1);
    const int32_t peer = node.rank() ^ 1;
    if (peer >= node.world()) return;
    int slow = 0;
    for (uint64_t round = 1; round <= kRounds; ++round) {
      if (node.rank() < peer) signal(node, peer, 0);
      wait_until(node, [&] { return load(node, node.rank(), 0, peer) >= round; });
      const Clock::time_point begin = Clock::now();
      if (node.rank() > peer) signal(node, peer, 0);
      if (Clock::now() - begin > milliseconds(45)) ++slow;
    }
    // A lost ring would cost a slice of 50 ms, and one in a thousand would fail below.
    require(slow <= 20, "rings are quick");
  });
}

TEST_P(Fabric, PublishesTheLast64Calls) {
  run([&](Node& node) {
    const auto record = [](int32_t rank, uint64_t sequence) {
      return CallRecord{sequence, static_cast<uint32_t>(sequence % 3), static_cast<uint32_t>(rank),
                        sequence * 0x9E3779B97F4A7C15U};
    };
    require(node.published(node.rank(), 1).sequence == 0, "nothing is published at first");
    for (const uint64_t count : {uint64_t{1}, uint64_t{64}, uint64_t{65}, uint64_t{200}}) {
      for (uint64_t s = 1; s <= count; ++s) node.publish(record(node.rank(), s));
      node.exchange("");
      for (int32_t r = 0; r < node.world(); ++r) {
        for (uint64_t s = 0; s <= count + 64; ++s) {
          const CallRecord found = node.published(r, s);
          if (s == 0 || s > count || s + 64 <= count) {
            require(found.sequence == 0, fmt::format("record {} of {} is not there", s, count));
            continue;
          }
          const CallRecord expected = record(r, s);
          require(found.sequence == s && found.kind == expected.kind && found.group == expected.group &&
                      found.mask_hash == expected.mask_hash,
                  fmt::format("record {} of {}", s, count));
        }
      }
      node.exchange("");
    }
  });
}

TEST_P(Fabric, AnAbortIsSeenByAllAndTheFirstIsKept) {
  const std::string sentence = "group 'layers.3' overflowed\n" + std::string(600, 'x');
  const std::vector<std::string> all = outcomes([&](int32_t rank, const std::shared_ptr<Store>& store) {
    Node node(options(rank, world(), store));
    node.map(1, 1, 1);
    if (rank == world() - 1) node.abort(ErrorCode::mismatch, sentence);
    // Sleepers are woken: this waits for a counter that never moves.
    const Clock::time_point begin = Clock::now();
    const std::string seen = outcome_of([&] { wait_until(node, [] { return false; }); });
    require(Clock::now() - begin < milliseconds(10'000), "an abort is seen soon");
    node.abort(ErrorCode::timeout, "a later one");
    require(outcome_of([&] { node.check(false); }) == seen, "the first is kept");
    require(outcome_of([&] { node.exchange(""); }) != "", "nothing goes on after an abort");
    throw std::runtime_error(seen);
  });
  const std::string expected = fmt::format("aborted: rank {} failed first (mismatch): group 'layers.3' overflowed {}",
                                           world() - 1, std::string(480 - 28, 'x'));
  for (const std::string& outcome : all) EXPECT_EQ(outcome, expected);
  EXPECT_EQ(folder_.entries(), 0U);
}

TEST_P(Fabric, LeavesTogether) {
  const std::vector<std::string> all = outcomes([&](int32_t rank, const std::shared_ptr<Store>& store) {
    Node node(options(rank, world(), store));
    node.map(1, 1, 1);
    // The first to leave waits for the last; who is still at work is not disturbed by that.
    if (rank == world() - 1) {
      std::this_thread::sleep_for(milliseconds(60));
      node.check(true);
      node.counter(0, 0, rank).store(1);
    }
    node.leave();
    require(load(node, 0, 0, world() - 1) == 1, "all were there");
    node.leave();
    require(says(outcome_of([&] { node.exchange(""); }), "closed: "), "a node that was left is closed");
  });
  for (const std::string& outcome : all) EXPECT_EQ(outcome, "");
}

TEST_P(Fabric, ADroppedNodeIsALostPeer) {
  if (world() == 1) GTEST_SKIP();
  const std::vector<std::string> all = outcomes([&](int32_t rank, const std::shared_ptr<Store>& store) {
    Node node(options(rank, world(), store));
    node.map(1, 1, 1);
    if (rank == 1) return;
    wait_until(node, [] { return false; });
  });
  for (size_t r = 0; r < all.size(); ++r) {
    EXPECT_TRUE(r == 1 ? all[r].empty() : says(all[r], "peer_lost: rank 1 ")) << r << ": " << all[r];
  }
}

TEST_P(Fabric, WhoLeavesBeforeACallOfTheOthersIsNamed) {
  if (world() == 1) GTEST_SKIP();
  const std::vector<std::string> all = outcomes([&](int32_t rank, const std::shared_ptr<Store>& store) {
    Node node(options(rank, world(), store));
    node.map(1, 1, 1);
    node.publish({1, 0, 0, 0});
    node.exchange("");
    if (rank == 0) node.leave();
    node.publish({2, 0, 0, 0});
    wait_until(node, [] { return false; });
  });
  for (const std::string& outcome : all) {
    EXPECT_TRUE(says(outcome, "peer_lost: rank ")) << outcome;
  }
  EXPECT_TRUE(says(all[1], "rank 0 closed its session before a call")) << all[1];
}

INSTANTIATE_TEST_SUITE_P(Worlds, Fabric,
                         ::testing::Combine(::testing::Values(As::threads, As::processes),
                                            ::testing::Values(1, 2, 3, 5, 7, 8)),
                         [](const auto& param) {
                           return fmt::format("{}{}", std::get<0>(param.param) == As::threads ? "Threads" : "Processes",
                                              std::get<1>(param.param));
                         });

class FabricUse : public ::testing::Test {
 protected:
  PrivateRuntimeDir folder_;
};

TEST_F(FabricUse, SleepingBurnsNoProcessor) {
  Node node({});
  node.map(1, 1, 1);
  const auto burnt = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double before = burnt();
  const Clock::time_point begin = Clock::now();
  const std::string outcome = outcome_of([&] {
    wait_until(
        node, [] { return false; }, milliseconds(400));
  });
  EXPECT_EQ(outcome, "timeout: nothing arrived");
  EXPECT_GE(Clock::now() - begin, milliseconds(400));
  EXPECT_LT(burnt() - before, 0.2);
}

TEST_F(FabricUse, ASleepEndsWithItsSliceAndAtItsDeadline) {
  Node node({});
  const Clock::time_point begin = Clock::now();
  node.sleep(node.doorbell(), begin + milliseconds(60'000));
  EXPECT_LT(Clock::now() - begin, milliseconds(5'000));
  // A bell that was rung since is not slept on.
  const uint32_t seen = node.doorbell();
  node.ring(0);
  EXPECT_NE(node.doorbell(), seen);
  node.sleep(node.doorbell(), begin);
}

TEST_F(FabricUse, ASentenceIsNotCutInsideACharacter) {
  Node node({});
  const std::string wave = "\u224B";  // three bytes
  std::string sentence = "x";
  while (sentence.size() < 600) sentence += wave;
  node.abort(ErrorCode::system, sentence);
  const std::string seen = outcome_of([&] { node.check(false); });
  EXPECT_TRUE(seen.ends_with(wave)) << seen;
  EXPECT_TRUE(says(seen, "x" + wave));
}

TEST_F(FabricUse, BadOptionsAreNamed) {
  const auto outcome = [](const NodeOptions& bad) { return outcome_of([&] { Node node(bad); }); };
  EXPECT_TRUE(says(outcome({0, 0, nullptr, "", milliseconds(100)}), "invalid_argument: world is 0"));
  EXPECT_TRUE(says(outcome({2, 2, make_thread_store(), "", milliseconds(100)}), "invalid_argument: rank is 2"));
  EXPECT_TRUE(says(outcome({-1, 1, nullptr, "", milliseconds(100)}), "invalid_argument: rank is -1"));
  EXPECT_TRUE(says(outcome({0, 2, nullptr, "", milliseconds(100)}), "invalid_argument: store is null"));
  EXPECT_TRUE(says(outcome({0, 1, nullptr, "", milliseconds(0)}), "invalid_argument: deadline is 0"));
  setenv("TIDE_RUNTIME_DIR", "/does/not/exist", 1);
  EXPECT_TRUE(says(outcome({0, 2, make_thread_store(), "", milliseconds(100)}),
                   "invalid_argument: TIDE_RUNTIME_DIR is '/does/not/exist'"));
}

TEST_F(FabricUse, BadCallsAreRefusedAndHarmNothing) {
  Node node({});
  EXPECT_TRUE(says(outcome_of([&] { node.exchange(std::string((size_t{64} << 20) + 1, 'x')); }), "invalid_argument: "));
  node.map(1, 1, 1);
  EXPECT_TRUE(says(outcome_of([&] { node.map(1, 1, 1); }), "invalid_argument: map() was called before"));
  node.check(true);
  EXPECT_EQ(node.exchange("x"), std::vector<std::string>{"x"});
}

TEST_F(FabricUse, RanksThatDisagreeAreAllTold) {
  const auto differ = [](const std::function<void(int32_t, const std::shared_ptr<Store>&)>& work,
                         const std::string& expected) {
    for (const std::string& outcome : run_threads(3, work)) EXPECT_TRUE(says(outcome, expected)) << outcome;
  };
  const auto with_node = [](const std::function<void(Node&)>& work) {
    return [work](int32_t rank, const std::shared_ptr<Store>& store) {
      Node node(options(rank, 3, store));
      work(node);
    };
  };
  differ(with_node([](Node& node) { node.map(node.rank() == 2 ? 8192 : 4096, 0, 1); }),
         "mismatch: window_bytes of map() is 4096 on rank 0 and 8192 on rank 2");
  differ(with_node([](Node& node) { node.map(4096, node.rank() == 1 ? 5 : 4, 1); }),
         "mismatch: shared_bytes of map() is 4 on rank 0 and 5 on rank 1");
  differ(with_node([](Node& node) { node.map(4096, 0, node.rank() == 0 ? 2 : 1); }),
         "mismatch: counters of map() is 2 on rank 0 and 1 on rank 1");
  differ(with_node([](Node& node) {
           if (node.rank() == 1) {
             node.map(1, 1, 1);
           } else {
             node.exchange("");
           }
         }),
         "mismatch: rank 0 is in exchange() and rank 1 in map()");
  differ([](int32_t rank, const std::shared_ptr<Store>& store) { Node node(options(rank, rank == 2 ? 4 : 3, store)); },
         "mismatch: world is 3 on rank 0 and 4 on rank 2");
  differ([](int32_t rank, const std::shared_ptr<Store>& store) { Node node(options(rank == 2 ? 1 : rank, 3, store)); },
         "mismatch: two processes call themselves rank 1");
  EXPECT_EQ(folder_.entries(), 0U);
}

TEST_F(FabricUse, AStoreAndItsJobNameServeAgainOnceTheFirstSessionIsGone) {
  const auto outcomes = run_threads(3, [](int32_t rank, const std::shared_ptr<Store>& store) {
    for (int round = 0; round < 5; ++round) {
      Node node(options(rank, 3, store));
      const auto all = node.exchange(std::to_string(round));
      require(all == std::vector<std::string>(3, std::to_string(round)), "sessions do not mix");
      node.leave();
    }
  });
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
}

TEST(ThreadStore, WaitsForAKeyUntilTheDeadline) {
  const std::shared_ptr<Store> store = make_thread_store();
  EXPECT_TRUE(says(outcome_of([&] { store->get("late", milliseconds(20)); }), "timeout: nobody set store key 'late'"));
  std::thread setter([&] {
    std::this_thread::sleep_for(milliseconds(30));
    store->set("key", std::string("a\0b", 3));
  });
  EXPECT_EQ(store->get("key", milliseconds(20'000)), std::string("a\0b", 3));
  setter.join();
  store->set("key", "");
  EXPECT_EQ(store->get("key", milliseconds(0)), "");
}

}  // namespace
}  // namespace tide::fabric::testing
