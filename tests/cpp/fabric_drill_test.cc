// The fabric in foul weather: ranks that are killed, stopped or never come, machines without descriptors or memory,
// strangers at the door, forks; and that none of it leaves anything behind.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>

#include "fabric/folder.h"
#include "fabric/socket.h"
#include "fabric_ranks.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace tide::fabric::testing {
namespace {

constexpr milliseconds kDeadline{2'000};
constexpr milliseconds kBound{10'000};  // what a loaded machine may make of it

constexpr size_t kStoreFolder = 1;  // that of the test's own store, while it lives

class FabricDrill : public ::testing::TestWithParam<int32_t> {
 protected:
  int32_t world() const { return GetParam(); }
  PrivateRuntimeDir folder_;
};

class FabricDeadline : public FabricDrill {};  // what takes a deadline to see

class Stopwatch {
 public:
  milliseconds elapsed() const { return std::chrono::duration_cast<milliseconds>(Clock::now() - begin_); }

 private:
  Clock::time_point begin_ = Clock::now();
};

// Work of a survivor that has to fail in time; throws what it failed with.
void fails_in_time(const std::function<void()>& work) {
  const Stopwatch watch;
  try {
    work();
  } catch (...) {
    require(watch.elapsed() < kBound, "it fails in time");
    throw;
  }
}

TEST_P(FabricDrill, KilledWhileTheRanksMeet) {
  // The last rank does not come before the victim is dead.
  if (world() == 2) GTEST_SKIP() << "the victim would be the last rank";
  const int32_t victim = 1;
  Processes processes(world());
  for (int32_t rank = 0; rank < world() - 1; ++rank) {
    processes.start(rank, [&](int32_t r, const std::shared_ptr<Store>& store, const auto&) {
      fails_in_time([&] { Node node(options(r, world(), store, kDeadline)); });
    });
  }
  processes.serve();
  std::this_thread::sleep_for(milliseconds(300));
  processes.signal(victim, SIGKILL);
  for (int32_t rank = 0; rank < world() - 1; ++rank) {
    const std::string outcome = processes.wait(rank);
    if (rank == victim) {
      EXPECT_EQ(outcome, "killed");
    } else {
      EXPECT_TRUE(says(outcome, "peer_lost: rank 1 ")) << rank << ": " << outcome;
    }
  }
  EXPECT_EQ(folder_.entries(), kStoreFolder);
}

TEST_P(FabricDrill, RankZeroKilledWhileTheRanksMeet) {
  Processes processes(world());
  for (int32_t rank = 0; rank < world() - 1; ++rank) {
    processes.start(rank, [&](int32_t r, const std::shared_ptr<Store>& store, const auto&) {
      fails_in_time([&] { Node node(options(r, world(), store, kDeadline)); });
    });
  }
  processes.serve();
  std::this_thread::sleep_for(milliseconds(300));
  processes.signal(0, SIGKILL);
  EXPECT_EQ(processes.wait(0), "killed");
  for (int32_t rank = 1; rank < world() - 1; ++rank) {
    const std::string outcome = processes.wait(rank);
    EXPECT_TRUE(says(outcome, "peer_lost: rank 0 ")) << rank << ": " << outcome;
  }
  // A survivor has tidied up; alone, there was none.
  if (world() > 2) {
    EXPECT_EQ(folder_.entries(), kStoreFolder);
  }
}

// Kills `victim` when all are attached and asleep; every survivor has to name it.
void kill_asleep(int32_t world, int32_t victim, const std::function<void(Node&)>& sleep) {
  Processes processes(world);
  for (int32_t rank = 0; rank < world; ++rank) {
    processes.start(rank, [&](int32_t r, const std::shared_ptr<Store>& store, const auto& say) {
      Node node(options(r, world, store, kDeadline));
      node.map(4096, 4096, 1);
      say('r');
      fails_in_time([&] { sleep(node); });
    });
  }
  processes.serve();
  for (int32_t rank = 0; rank < world; ++rank) ASSERT_EQ(processes.hear(rank), 'r');
  std::this_thread::sleep_for(milliseconds(100));
  processes.signal(victim, SIGKILL);
  for (int32_t rank = 0; rank < world; ++rank) {
    const std::string outcome = processes.wait(rank);
    if (rank == victim) {
      EXPECT_EQ(outcome, "killed");
    } else {
      EXPECT_TRUE(says(outcome, fmt::format("peer_lost: rank {} died", victim))) << rank << ": " << outcome;
    }
  }
}

TEST_P(FabricDrill, KilledWhileOthersSleep) {
  for (const int32_t victim : {0, world() - 1}) {
    kill_asleep(world(), victim, [](Node& node) { wait_until(node, [] { return false; }); });
  }
  EXPECT_EQ(folder_.entries(), 0U);
}

TEST_P(FabricDrill, KilledWhileOthersExchange) {
  for (const int32_t victim : {0, world() - 1}) {
    kill_asleep(world(), victim, [&](Node& node) {
      if (node.rank() == victim) std::this_thread::sleep_for(kBound);
      node.exchange("");
    });
  }
}

TEST_P(FabricDrill, KilledWhileOthersLeave) {
  kill_asleep(world(), 1, [&](Node& node) {
    if (node.rank() == 1) std::this_thread::sleep_for(kBound);
    node.leave();
  });
}

TEST_P(FabricDrill, ExitWithoutLeavingIsADeath) {
  Processes processes(world());
  for (int32_t rank = 0; rank < world(); ++rank) {
    processes.start(rank, [&](int32_t r, const std::shared_ptr<Store>& store, const auto&) {
      Node node(options(r, world(), store, kDeadline));
      node.map(4096, 4096, 1);
      node.exchange("");
      if (r == 1) _exit(0);
      fails_in_time([&] { wait_until(node, [] { return false; }); });
    });
  }
  processes.serve();
  for (int32_t rank = 0; rank < world(); ++rank) {
    const std::string outcome = processes.wait(rank);
    if (rank != 1) {
      EXPECT_TRUE(says(outcome, "peer_lost: rank 1 died")) << outcome;
    }
  }
}

TEST_P(FabricDeadline, AStoppedRankIsATimeout) {
  Processes processes(world());
  for (int32_t rank = 0; rank < world(); ++rank) {
    processes.start(rank, [&](int32_t r, const std::shared_ptr<Store>& store, const auto& say) {
      Node node(options(r, world(), store, kDeadline));
      say('r');
      if (r == 1) raise(SIGSTOP);
      fails_in_time([&] { node.exchange(""); });
    });
  }
  processes.serve();
  for (int32_t rank = 0; rank < world(); ++rank) {
    if (rank == 1) continue;
    const std::string outcome = processes.wait(rank);
    EXPECT_TRUE(says(outcome, "timeout: ")) << outcome;
    EXPECT_TRUE(says(outcome, "in exchange() for rank 1: ")) << outcome;
  }
  // When it wakes up it finds the session dead.
  processes.signal(1, SIGCONT);
  EXPECT_NE(processes.wait(1), "");
}

TEST_P(FabricDeadline, ARankThatNeverComesIsATimeout) {
  Processes processes(world());
  for (int32_t rank = 0; rank < world() - 1; ++rank) {
    processes.start(rank, [&](int32_t r, const std::shared_ptr<Store>& store, const auto&) {
      fails_in_time([&] { Node node(options(r, world(), store, kDeadline)); });
    });
  }
  processes.serve();
  for (int32_t rank = 0; rank < world() - 1; ++rank) {
    const std::string outcome = processes.wait(rank);
    EXPECT_TRUE(says(outcome, "timeout: ")) << outcome;
    EXPECT_TRUE(says(outcome, fmt::format("for rank {} of job 'test'", world() - 1))) << outcome;
  }
  EXPECT_EQ(folder_.entries(), kStoreFolder);
}

TEST_P(FabricDeadline, RankZeroThatNeverComesIsATimeout) {
  Processes processes(world());
  for (int32_t rank = 1; rank < world(); ++rank) {
    processes.start(rank, [&](int32_t r, const std::shared_ptr<Store>& store, const auto&) {
      fails_in_time([&] { Node node(options(r, world(), store, kDeadline)); });
    });
  }
  processes.serve();
  for (int32_t rank = 1; rank < world(); ++rank) {
    const std::string outcome = processes.wait(rank);
    EXPECT_TRUE(says(outcome, "timeout: nobody set store key 'test/fabric'")) << outcome;
  }
}

// Lets this process open only `more` descriptors more.
void limit_descriptors(rlim_t more) {
  size_t open = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++open;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = open - 1 + more;  // the listing itself is one
  setrlimit(RLIMIT_NOFILE, &limit);
}

TEST_P(FabricDeadline, TooFewDescriptorsAreNoSpaceOnEveryRank) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the checks of sanitizers open descriptors themselves";
#endif
  // However many one rank is short of, and wherever that shows. All at once, as some of them have to wait for a
  // deadline.
  for (const int32_t poor : {0, world() - 1}) {
    std::vector<rlim_t> spare;
    for (rlim_t more = 0; more <= static_cast<rlim_t>(3 * world() + 8); more += 1 + more / 3) spare.push_back(more);
    std::vector<std::unique_ptr<Processes>> jobs;
    for (const rlim_t more : spare) {
      jobs.push_back(std::make_unique<Processes>(world()));
      for (int32_t rank = 0; rank < world(); ++rank) {
        jobs.back()->start(rank, [&](int32_t r, const std::shared_ptr<Store>& store, const auto&) {
          if (r == poor) limit_descriptors(more);
          Node node(options(r, world(), store, milliseconds(5'000)));
          node.map(4096, 4096, 1);
          node.leave();
        });
      }
    }
    for (const auto& job : jobs) job->serve();
    int failures = 0;
    for (size_t i = 0; i < jobs.size(); ++i) {
      std::vector<std::string> outcomes;
      for (int32_t rank = 0; rank < world(); ++rank) outcomes.push_back(jobs[i]->wait(rank));
      const std::string& own = outcomes[static_cast<size_t>(poor)];
      failures += own.empty() ? 0 : 1;
      for (const std::string& outcome : outcomes) {
        if (own.empty()) {
          EXPECT_EQ(outcome, "") << spare[i];
        } else if (&outcome == &own) {
          EXPECT_TRUE(says(own, "no_space: ") && says(own, "ulimit -n")) << spare[i] << ": " << own;
        } else {
          // Who could not even open a connection is only missed by the others.
          EXPECT_TRUE(says(outcome, "no_space: ") || says(outcome, "timeout: ") || says(outcome, "peer_lost: "))
              << spare[i] << ": " << outcome;
        }
      }
    }
    EXPECT_GE(failures, 3);
    EXPECT_LT(failures, static_cast<int>(spare.size()));
    jobs.clear();
    EXPECT_EQ(folder_.entries(), 0U);
  }
}

TEST_P(FabricDrill, TooMuchMemoryIsNoSpaceOnEveryRank) {
  const auto outcomes = run_processes(world(), [&](int32_t rank, const std::shared_ptr<Store>& store) {
    Node node(options(rank, world(), store, kDeadline));
    fails_in_time([&] { node.map(int64_t{1} << 47, 4096, 1); });
  });
  for (const std::string& outcome : outcomes) {
    EXPECT_TRUE(says(outcome, "no_space: ")) << outcome;
    EXPECT_TRUE(says(outcome, fmt::format("{} windows of {} bytes", world(), int64_t{1} << 47))) << outcome;
  }
  const auto overflow = run_processes(world(), [&](int32_t rank, const std::shared_ptr<Store>& store) {
    Node node(options(rank, world(), store, kDeadline));
    fails_in_time([&] { node.map(INT64_MAX, INT64_MAX, INT32_MAX); });
  });
  for (const std::string& outcome : overflow) EXPECT_TRUE(says(outcome, "no_space: ")) << outcome;
}

TEST_P(FabricDrill, TooLittleAddressSpaceOnOneRankIsNoSpaceOnAll) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need the address space";
#endif
  constexpr int64_t kBytes = int64_t{64} << 20;
  const auto outcomes = run_processes(world(), [&](int32_t rank, const std::shared_ptr<Store>& store) {
    Node node(options(rank, world(), store, milliseconds(20'000)));
    if (rank == 1) {
      std::ifstream file("/proc/self/statm");
      rlim_t pages = 0;
      file >> pages;
      const rlimit limit{pages * 4096 + kBytes + (kBytes >> 1), RLIM_INFINITY};
      setrlimit(RLIMIT_AS, &limit);
    }
    fails_in_time([&] { node.map(kBytes, 4096, 1); });
  });
  for (const std::string& outcome : outcomes) {
    EXPECT_TRUE(says(outcome, "no_space: rank 1: cannot map ")) << outcome;
    EXPECT_TRUE(says(outcome, std::to_string(kBytes))) << outcome;
  }
}

TEST_P(FabricDrill, AFileSizeLimitIsNoSpaceAndNoSignal) {
  const auto outcomes = run_processes(world(), [&](int32_t rank, const std::shared_ptr<Store>& store) {
    Node node(options(rank, world(), store, kDeadline));
    const rlimit limit{1 << 20, RLIM_INFINITY};
    if (rank == 1) setrlimit(RLIMIT_FSIZE, &limit);
    fails_in_time([&] { node.map(2 << 20, 4096, 1); });
  });
  for (const std::string& outcome : outcomes) {
    EXPECT_TRUE(says(outcome, "no_space: rank 1: cannot create the window of rank 1 of 2097152 bytes")) << outcome;
  }
}

TEST_P(FabricDrill, StrangersAreIgnored) {
  const std::shared_ptr<Store> store = make_thread_store();
  std::vector<Descriptor> strangers;
  std::vector<std::string> outcomes(static_cast<size_t>(world()));
  const auto attach = [&](int32_t rank) {
    outcomes[static_cast<size_t>(rank)] = outcome_of([&] {
      Node node(options(rank, world(), store));
      require(node.exchange(std::to_string(rank)).back() == std::to_string(world() - 1), "it works");
      node.leave();
    });
  };
  std::vector<std::thread> threads;
  threads.emplace_back(attach, 0);
  const std::string address = store->get("test/fabric", milliseconds(20'000));
  const std::string path = address.substr(0, address.find('\n'));
  const Patience patience{Clock::now() + kBound, {}, [] { return "late"; }};
  const auto connect = [&](const std::string& bytes) {
    strangers.push_back(connect_to(path, patience));
    ASSERT_TRUE(strangers.back());
    if (!bytes.empty()) send_bytes(strangers.back(), bytes, {}, patience);
  };
  connect("");                      // silent
  connect("x");                     // silent after a byte
  connect(std::string(4096, 'x'));  // noise
  // The right form with another nonce, and half of it.
  std::string hello("TIDE\1\0\0\0\1\0\0\0", 12);
  hello += std::string(1, static_cast<char>(world())) + std::string(3, '\0') + std::string(32, '0');
  connect(hello);
  connect(hello.substr(0, 20));
  connect("");
  strangers.back().close();  // gone at once
  for (int i = 0; i < 40; ++i) connect("");
  std::this_thread::sleep_for(milliseconds(100));
  for (int32_t rank = 1; rank < world(); ++rank) threads.emplace_back(attach, rank);
  for (std::thread& thread : threads) thread.join();
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
  // The one with the wrong nonce was told nothing.
  char byte = 0;
  EXPECT_EQ(read(strangers[3].get(), &byte, 1), 0);
  EXPECT_EQ(folder_.entries(), 0U);
}

TEST_P(FabricDrill, NothingIsLeftBehind) {
  // Once before, so that what is made once a process is made.
  run_threads(world(),
              [&](int32_t rank, const std::shared_ptr<Store>& store) { Node node(options(rank, world(), store)); });
  const Holdings before = holdings(folder_);
  for (int round = 0; round < 20; ++round) {
    const auto outcomes = run_threads(world(), [&](int32_t rank, const std::shared_ptr<Store>& store) {
      Node node(options(rank, world(), store));
      node.map(8192, 8192, 4);
      // Every other time without leaving, and at times without anybody noticing.
      if (round % 2 == 0) node.leave();
    });
    if (round % 2 == 0) {
      for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
    }
  }
  EXPECT_EQ(holdings(folder_), before);
  kill_asleep(world(), 1, [](Node& node) { wait_until(node, [] { return false; }); });
  EXPECT_EQ(holdings(folder_), before);
}

TEST_P(FabricDrill, UseAfterForkIsClosed) {
  const auto outcomes = run_processes(world(), [&](int32_t rank, const std::shared_ptr<Store>& store) {
    auto node = std::make_unique<Node>(options(rank, world(), store));
    node->map(4096, 4096, 1);
    node->shared()[rank] = static_cast<std::byte>(rank + 1);
    node->exchange("");
    const pid_t child = fork();
    if (child == 0) {
      const std::vector<std::function<void()>> calls = {
          [&] { node->exchange(""); }, [&] { node->check(false); },
          [&] { node->leave(); },      [&] { node->sleep(node->doorbell(), Clock::now() + kBound); },
          [&] { node->publish({1}); }, [&] { node->abort(ErrorCode::system, "from a child"); },
          [&] { node->map(1, 1, 1); }};
      int bad = 0;
      for (size_t i = 0; i + 1 < calls.size(); ++i) bad += says(outcome_of(calls[i]), "closed: ") ? 0 : 1;
      // Tensors that live in the memory can still be read.
      for (int32_t r = 0; r < world(); ++r) bad += node->shared()[r] == static_cast<std::byte>(r + 1) ? 0 : 1;
      node.reset();
      _exit(bad);
    }
    int status = 0;
    waitpid(child, &status, 0);
    require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "calls in a child are refused");
    // The child's end and its destructor meant nothing to the ranks.
    node->exchange("");
    node->check(true);
    node->leave();
  });
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
}

// From here on pidfd_open does not exist for this process.
void forbid_pidfd() {
  sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{4, filter};
  require(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
  require(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "a filter");
}

TEST_P(FabricDrill, WithoutPidfdsADeathIsStillSeen) {
  Processes processes(world());
  for (int32_t rank = 0; rank < world(); ++rank) {
    processes.start(rank, [&](int32_t r, const std::shared_ptr<Store>& store, const auto& say) {
      forbid_pidfd();
      const int quiet = open("/dev/null", O_WRONLY | O_CLOEXEC);
      dup2(quiet, STDERR_FILENO);
      Node node(options(r, world(), store, kDeadline));
      say('r');
      fails_in_time([&] { wait_until(node, [] { return false; }); });
    });
  }
  processes.serve();
  for (int32_t rank = 0; rank < world(); ++rank) ASSERT_EQ(processes.hear(rank), 'r');
  processes.signal(1, SIGKILL);
  for (int32_t rank = 0; rank < world(); ++rank) {
    const std::string outcome = processes.wait(rank);
    if (rank != 1) {
      EXPECT_TRUE(says(outcome, "peer_lost: rank 1 died")) << outcome;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, FabricDeadline, ::testing::Values(3, 8),
                         [](const auto& param) { return std::to_string(param.param); });
INSTANTIATE_TEST_SUITE_P(Worlds, FabricDrill, ::testing::Values(2, 3, 8),
                         [](const auto& param) { return std::to_string(param.param); });

TEST(RuntimeFolder, OnlyItsOwnKindIsRemovedForAnother) {
  PrivateRuntimeDir folder;
  const std::string base = folder.path();
  namespace fs = std::filesystem;
  const auto make = [&](const std::string& name, fs::perms mode, bool listening) {
    fs::create_directory(base + "/" + name);
    fs::permissions(base + "/" + name, mode);
    const std::string socket = base + "/" + name + "/socket";
    if (listening) {
      listen_at(socket, 1);
    } else {
      std::ofstream(socket) << "a file";
    }
    return socket;
  };
  const std::string good = make("tide-abcdef", fs::perms::owner_all, true);
  const std::string open = make("tide-open", fs::perms::all, true);
  const std::string other = make("other", fs::perms::owner_all, true);
  const std::string file = make("tide-file", fs::perms::owner_all, false);
  for (const std::string& path : {good, open, other, file}) remove_abandoned(path);
  remove_abandoned(base + "/tide-abcdef");
  remove_abandoned("");
  EXPECT_FALSE(fs::exists(base + "/tide-abcdef"));
  EXPECT_TRUE(fs::exists(open));
  EXPECT_TRUE(fs::exists(other));
  EXPECT_TRUE(fs::exists(file));
}

}  // namespace
}  // namespace tide::fabric::testing
