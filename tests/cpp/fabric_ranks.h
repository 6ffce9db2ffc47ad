// Ranks for tests of the fabric: as threads of this process, or as forked processes that can be stopped and killed.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "fabric/launcher_store.h"
#include "fabric/node.h"
#include "fmt/format.h"
#include "tide/error.h"
#include "tide/session.h"

namespace tide::fabric::testing {

using std::chrono::milliseconds;

inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::logic_error("not so: " + what);
}

// "" for success, "peer_lost: sentence" for an Error, the text of anything else.
inline std::string outcome_of(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const Error& error) {
    return fmt::format("{}: {}", name(error.code()), error.what());
  } catch (const std::exception& error) {
    return error.what();
  }
}

inline bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Sockets of the tests stand in a folder of their own, which has to be empty afterwards.
class PrivateRuntimeDir {
 public:
  PrivateRuntimeDir() : path_("/tmp/fabric-test-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("mkdtemp");
    setenv("TIDE_RUNTIME_DIR", path_.c_str(), 1);
  }
  ~PrivateRuntimeDir() {
    unsetenv("TIDE_RUNTIME_DIR");
    std::filesystem::remove_all(path_);
  }
  const std::string& path() const { return path_; }
  size_t entries() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) ++count;
    return count;
  }

 private:
  std::string path_;
};

// What a leak would show in.
struct Holdings {
  size_t descriptors = 0;
  size_t mappings = 0;
  size_t entries = 0;
  bool operator==(const Holdings&) const = default;
};

inline Holdings holdings(const PrivateRuntimeDir& folder) {
  Holdings found;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++found.descriptors;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) found.mappings += says(line, "memfd:tide") ? 1 : 0;
  found.entries = folder.entries();
  return found;
}

using Work = std::function<void(int32_t rank, const std::shared_ptr<Store>& store)>;

// Outcomes by rank.
inline std::vector<std::string> run_threads(int32_t world, const Work& work) {
  const std::shared_ptr<Store> store = make_thread_store();
  std::vector<std::string> outcomes(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] { outcomes[static_cast<size_t>(rank)] = outcome_of([&] { work(rank, store); }); });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// Forked ranks with a launcher's store. A child that says something is heard by the parent.
class Processes {
 public:
  using ChildWork =
      std::function<void(int32_t rank, const std::shared_ptr<Store>& store, const std::function<void(char)>& say)>;

  explicit Processes(int32_t world) : ranks_(static_cast<size_t>(world)) {}
  ~Processes() {
    for (Rank& rank : ranks_) {
      if (rank.process > 0) ::kill(rank.process, SIGKILL);
      if (rank.process > 0) waitpid(rank.process, nullptr, 0);
      if (rank.pipe >= 0) close(rank.pipe);
    }
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  void start(int32_t number, const ChildWork& work) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const pid_t process = fork();
    ASSERT_GE(process, 0);
    if (process == 0) {
      // Not even a failing test may leave ranks behind.
      alarm(100);
      setenv("TIDE_STORE", server_.address().c_str(), 1);
      const std::string outcome = outcome_of([&] {
        work(number, connect_launcher_store(), [&](char mark) {
          if (write(ends[1], &mark, 1) != 1) _exit(3);
        });
      });
      const std::string last = "=" + outcome;
      _exit(write(ends[1], last.data(), last.size()) == static_cast<ssize_t>(last.size()) ? 0 : 3);
    }
    close(ends[1]);
    Rank& rank = ranks_[static_cast<size_t>(number)];
    rank.process = process;
    rank.pipe = ends[0];
  }

  // After the last start, so that no thread is forked away from.
  void serve() { server_.serve(); }

  // Waits for the next mark of a child; 0 when it has ended instead.
  char hear(int32_t number) {
    char mark = 0;
    return read(ranks_[static_cast<size_t>(number)].pipe, &mark, 1) == 1 ? mark : '\0';
  }

  void signal(int32_t number, int what) {
    const pid_t process = ranks_[static_cast<size_t>(number)].process;
    ASSERT_GT(process, 0);  // 0 would be ourselves
    ::kill(process, what);
  }

  // Its outcome; "killed" if it did not live to tell.
  std::string wait(int32_t number) {
    Rank& rank = ranks_[static_cast<size_t>(number)];
    std::string heard;
    char buffer[1024];
    for (ssize_t got = 0; (got = read(rank.pipe, buffer, sizeof(buffer))) > 0;) heard.append(buffer, size_t(got));
    waitpid(rank.process, nullptr, 0);
    rank.process = 0;
    const size_t mark = heard.find('=');
    return mark == std::string::npos ? "killed" : heard.substr(mark + 1);
  }

 private:
  struct Rank {
    pid_t process = 0;
    int pipe = -1;
  };
  StoreServer server_;
  std::vector<Rank> ranks_;
};

inline std::vector<std::string> run_processes(int32_t world, const Work& work) {
  Processes processes(world);
  for (int32_t rank = 0; rank < world; ++rank) {
    processes.start(rank, [&](int32_t r, const std::shared_ptr<Store>& store, const auto&) { work(r, store); });
  }
  processes.serve();
  std::vector<std::string> outcomes;
  for (int32_t rank = 0; rank < world; ++rank) outcomes.push_back(processes.wait(rank));
  return outcomes;
}

inline NodeOptions options(int32_t rank, int32_t world, const std::shared_ptr<Store>& store,
                           milliseconds deadline = milliseconds(60'000)) {
  return {rank, world, store, "test", deadline};
}

// Waits for counters as an engine does: reads the bell, looks, sleeps.
inline void wait_until(Node& node, const std::function<bool()>& holds, milliseconds limit = milliseconds(60'000)) {
  const Clock::time_point deadline = Clock::now() + limit;
  while (true) {
    const uint32_t seen = node.doorbell();
    if (holds()) return;
    node.check(true);
    if (Clock::now() >= deadline) throw Error(ErrorCode::timeout, "nothing arrived");
    node.sleep(seen, deadline);
  }
}

inline uint64_t load(Node& node, int32_t at, int32_t id, int32_t from) {
  return node.counter(at, id, from).load(std::memory_order_acquire);
}

inline void signal(Node& node, int32_t at, int32_t id) {
  node.counter(at, id, node.rank()).fetch_add(1, std::memory_order_release);
  node.ring(at);
}

}  // namespace tide::fabric::testing
