// The launcher: what ranks are given, how a job ends, and that nothing is left of it.
#include "fabric/launch.h"

#include <gtest/gtest.h>

#include <thread>

#include "fabric/node.h"
#include "fabric/socket.h"
#include "fabric_ranks.h"

namespace tide::fabric::testing {
namespace {

class Launch : public ::testing::Test {
 protected:
  void SetUp() override { before_ = holdings(folder_); }
  void TearDown() override {
    EXPECT_EQ(holdings(folder_), before_);
    // No child is left, not even a zombie.
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
  }

  // Runs a shell script on every rank; $O is a folder for its traces.
  LaunchOptions script(int32_t ranks, const std::string& text) const {
    LaunchOptions options;
    options.ranks = ranks;
    options.command = {"/bin/sh", "-c", "O=" + traces_.path() + "; " + text};
    options.failure_grace = milliseconds(500);
    options.stop_grace = milliseconds(500);
    return options;
  }

  bool exists(const std::string& trace) const { return std::filesystem::exists(traces_.path() + "/" + trace); }
  std::string read(const std::string& trace) const {
    std::ifstream file(traces_.path() + "/" + trace);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void await(const std::string& trace) const {
    for (int i = 0; i < 1000 && !exists(trace); ++i) std::this_thread::sleep_for(milliseconds(10));
    ASSERT_TRUE(exists(trace)) << trace;
  }

  // Whether a process ends soon: its killing may still be under way. "Z": a zombie of whoever inherits orphans here.
  static bool ends(const std::string& process) {
    for (int i = 0; i < 1000; ++i) {
      std::ifstream status("/proc/" + std::to_string(std::atoi(process.c_str())) + "/stat");
      std::string number, name, state = "gone";
      status >> number >> name >> state;
      if (state == "gone" || state == "Z" || state == "X") return true;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return false;
  }

  struct Traces {
    std::string path_ = "/tmp/launch-test-XXXXXX";
    Traces() {
      if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("mkdtemp");
    }
    ~Traces() { std::filesystem::remove_all(path_); }
    const std::string& path() const { return path_; }
  };

  PrivateRuntimeDir folder_;
  Traces traces_;
  Holdings before_;
};

TEST_F(Launch, GivesEveryRankItsPlace) {
  LaunchOptions options = script(3, "echo \"$TIDE_WORLD $TIDE_JOB $TIDE_STORE\" > $O/$TIDE_RANK");
  setenv("TIDE_RANK", "99", 1);  // of a launcher around this one
  options.job = "a job";
  EXPECT_EQ(launch(options), 0);
  unsetenv("TIDE_RANK");
  for (const char* rank : {"0", "1", "2"}) {
    EXPECT_TRUE(says(read(rank), "3 a job unix:" + folder_.path() + "/tide-")) << read(rank);
  }
  EXPECT_FALSE(exists("99"));
}

TEST_F(Launch, JobNamesDiffer) {
  EXPECT_EQ(launch(script(1, "echo $TIDE_JOB > $O/first")), 0);
  EXPECT_EQ(launch(script(1, "echo $TIDE_JOB > $O/second")), 0);
  EXPECT_GT(read("first").size(), 5U);
  EXPECT_NE(read("first"), read("second"));
}

TEST_F(Launch, ArgumentsAreNotReadByAShell) {
  LaunchOptions options = script(1, "");
  options.command = {"sh", "-c", "printf %s \"$1\" > " + traces_.path() + "/out", "x", "a $(id) * ;"};
  EXPECT_EQ(launch(options), 0);
  EXPECT_EQ(read("out"), "a $(id) * ;");
}

TEST_F(Launch, ReturnsTheStatusOfTheFirstToFail) {
  EXPECT_EQ(launch(script(3, "test $TIDE_RANK = 1 && exit 7; sleep 0.2; test $TIDE_RANK = 2 && exit 8; exit 0")), 7);
  EXPECT_EQ(launch(script(2, "test $TIDE_RANK = 1 && kill -KILL $$; exit 0")), 128 + SIGKILL);
  EXPECT_EQ(launch(script(1, "exit 1")), 1);
}

TEST_F(Launch, TheOthersMayReportAFailureBeforeTheyAreStopped) {
  LaunchOptions options = script(3, "test $TIDE_RANK = 1 && exit 7; sleep 0.3; echo seen > $O/$TIDE_RANK; exit 1");
  options.failure_grace = milliseconds(20'000);
  EXPECT_EQ(launch(options), 7);
  EXPECT_EQ(read("0"), "seen\n");
  EXPECT_EQ(read("2"), "seen\n");
}

TEST_F(Launch, StopsWhoeverDoesNotEnd) {
  const Clock::time_point begin = Clock::now();
  EXPECT_EQ(launch(script(2,
                          "test $TIDE_RANK = 1 && exit 7; trap 'echo > $O/told; exit 0' TERM; "
                          "while true; do sleep 0.05; done")),
            7);
  EXPECT_TRUE(exists("told"));
  EXPECT_LT(Clock::now() - begin, milliseconds(20'000));
}

TEST_F(Launch, KillsWhoeverDoesNotListenAndItsChildren) {
  // The rank and a child of it, both deaf, and a stopped one.
  EXPECT_EQ(launch(script(3,
                          "test $TIDE_RANK = 1 && exit 7; test $TIDE_RANK = 2 && kill -STOP $$; trap '' TERM; "
                          "sleep 300 & echo $! > $O/child; wait; sleep 300")),
            7);
  ASSERT_GT(std::atoi(read("child").c_str()), 1);
  EXPECT_TRUE(ends(read("child")));
}

TEST_F(Launch, PassesSignalsOn) {
  // Only the launching thread takes them.
  sigset_t taken, before;
  sigemptyset(&taken);
  for (const int number : {SIGUSR1, SIGTERM}) sigaddset(&taken, number);
  pthread_sigmask(SIG_BLOCK, &taken, &before);
  std::thread sender([&] {
    await("ready0");
    await("ready1");
    kill(getpid(), SIGUSR1);
    await("usr1");
    kill(getpid(), SIGTERM);
  });
  LaunchOptions options = script(2,
                                 "trap 'echo > $O/usr$TIDE_RANK' USR1; trap 'echo > $O/term$TIDE_RANK; exit 0' TERM; "
                                 "echo > $O/ready$TIDE_RANK; while true; do sleep 0.05; done");
  options.stop_grace = milliseconds(10'000);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  const int status = launch(options);
  sender.join();
  EXPECT_EQ(status, 128 + SIGTERM);
  for (const char* trace : {"usr1", "term0", "term1"}) EXPECT_TRUE(exists(trace)) << trace;
}

TEST_F(Launch, NoRankOutlivesAKilledLauncher) {
  const pid_t launcher = fork();
  if (launcher == 0) {
    // A launcher that cannot clean up, so its folder is not this test's.
    _exit(launch(script(2, "echo $$ > $O/pid$TIDE_RANK; echo > $O/ready$TIDE_RANK; exec sleep 300")));
  }
  await("ready0");
  await("ready1");
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  for (const char* trace : {"pid0", "pid1"}) {
    ASSERT_GT(std::atoi(read(trace).c_str()), 1);
    EXPECT_TRUE(ends(read(trace))) << trace;
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    std::filesystem::remove_all(entry.path());
  }
}

TEST_F(Launch, InputGoesToRankZero) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  ASSERT_EQ(write(ends[1], "hello\n", 6), 6);
  close(ends[1]);
  const int saved = dup(STDIN_FILENO);
  dup2(ends[0], STDIN_FILENO);
  close(ends[0]);
  EXPECT_EQ(launch(script(2, "cat > $O/$TIDE_RANK")), 0);
  dup2(saved, STDIN_FILENO);
  close(saved);
  EXPECT_EQ(read("0"), "hello\n");
  EXPECT_EQ(read("1"), "");
}

TEST_F(Launch, WhatCannotBeRunIsNamed) {
  const auto outcome = [](const LaunchOptions& options) { return outcome_of([&] { launch(options); }); };
  LaunchOptions options = script(2, "");
  options.command = {"/does/not/exist"};
  EXPECT_TRUE(says(outcome(options), "invalid_argument: cannot run '/does/not/exist': No such file"))
      << outcome(options);
  options.command = {"/tmp"};
  EXPECT_TRUE(says(outcome(options), "invalid_argument: cannot run '/tmp'"));
  options.command = {};
  EXPECT_TRUE(says(outcome(options), "invalid_argument: the command is empty"));
  options = script(0, "");
  EXPECT_TRUE(says(outcome(options), "invalid_argument: ranks is 0"));
}

class LauncherStoreTest : public Launch {
 protected:
  void SetUp() override {
    Launch::SetUp();
    server_ = std::make_unique<StoreServer>();
    setenv("TIDE_STORE", server_->address().c_str(), 1);
    store_ = connect_launcher_store();
  }
  void TearDown() override {
    store_.reset();
    server_.reset();
    unsetenv("TIDE_STORE");
    Launch::TearDown();
  }
  std::unique_ptr<StoreServer> server_;
  std::shared_ptr<Store> store_;
};

TEST_F(LauncherStoreTest, KeepsWhatIsSet) {
  server_->serve();
  const std::string binary("a\0\n\xFF", 4);
  store_->set(binary, binary);
  EXPECT_EQ(store_->get(binary, milliseconds(1'000)), binary);
  store_->set(binary, "other");
  EXPECT_EQ(store_->get(binary, milliseconds(0)), "other");
  store_->set("", "");
  EXPECT_EQ(store_->get("", milliseconds(0)), "");
  const std::string large(kMostStoreBytes, 'v');
  store_->set("large", large);
  EXPECT_EQ(store_->get("large", milliseconds(10'000)), large);
}

TEST_F(LauncherStoreTest, RefusesWhatIsTooLarge) {
  server_->serve();
  const std::string large(kMostStoreBytes + 1, 'v');
  EXPECT_TRUE(says(outcome_of([&] { store_->set("key", large); }), "invalid_argument: 16777217 bytes"));
  EXPECT_TRUE(says(outcome_of([&] { store_->get(large, milliseconds(1)); }), "invalid_argument: 16777217 bytes"));
}

TEST_F(LauncherStoreTest, WaitsForAKeyUntilTheDeadline) {
  server_->serve();
  const Clock::time_point begin = Clock::now();
  EXPECT_TRUE(says(outcome_of([&] { store_->get("never", milliseconds(100)); }),
                   "timeout: nobody set store key 'never' within 100 ms"));
  EXPECT_GE(Clock::now() - begin, milliseconds(100));
  EXPECT_LT(Clock::now() - begin, milliseconds(10'000));
  std::vector<std::thread> waiters;
  std::vector<std::string> got(8);
  for (std::string& value : got) {
    waiters.emplace_back(
        [&] { value = outcome_of([&] { value = store_->get("key", milliseconds(20'000)); }) + value; });
  }
  std::this_thread::sleep_for(milliseconds(50));
  store_->set("key", "value");
  for (std::thread& waiter : waiters) waiter.join();
  for (const std::string& value : got) EXPECT_EQ(value, "value");
}

TEST_F(LauncherStoreTest, ASilentOrNoisyConnectionDisturbsNobody) {
  server_->serve();
  const Patience patience{Clock::now() + milliseconds(10'000), {}, [] { return "late"; }};
  const std::string path = server_->address().substr(5);
  const Descriptor silent = connect_to(path, patience);
  const Descriptor noisy = connect_to(path, patience);
  send_bytes(noisy, std::string(100, 'x'), {}, patience);
  { const Descriptor gone = connect_to(path, patience); }
  store_->set("key", "value");
  EXPECT_EQ(store_->get("key", milliseconds(1'000)), "value");
  char byte = 0;
  EXPECT_LE(::read(noisy.get(), &byte, 1), 0);
}

TEST_F(LauncherStoreTest, AServerThatIsGoneOrSilentIsSaid) {
  EXPECT_TRUE(says(outcome_of([&] { store_->get("key", milliseconds(50)); }), "timeout: nobody set store key 'key'"));
  server_.reset();
  EXPECT_TRUE(says(outcome_of([&] { store_->get("key", milliseconds(50)); }), "peer_lost: the launcher's store at"));
}

TEST_F(LauncherStoreTest, AnAddressThatIsNoneIsNamed) {
  setenv("TIDE_STORE", "tcp://host", 1);
  EXPECT_TRUE(says(outcome_of([] { connect_launcher_store(); }), "invalid_argument: TIDE_STORE is 'tcp://host'"));
  unsetenv("TIDE_STORE");
  EXPECT_TRUE(says(outcome_of([] { connect_launcher_store(); }), "invalid_argument: TIDE_STORE is not set"));
}

}  // namespace
}  // namespace tide::fabric::testing
