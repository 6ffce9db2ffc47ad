// Ranks for tests: the same function as threads of this process or as forked processes, each with what it returned or
// threw.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tide/error.h"
#include "tide/session.h"

namespace tide::test {

// A store for processes of one machine: a file a key in a folder of its own.
class FolderStore : public Store {
 public:
  explicit FolderStore(std::filesystem::path folder) : folder_(std::move(folder)) {}
  void set(const std::string& key, const std::string& value) override {
    const std::filesystem::path temporary = folder_ / (file(key) + "." + std::to_string(getpid()));
    std::ofstream(temporary, std::ios::binary) << value;
    std::filesystem::rename(temporary, folder_ / file(key));
  }
  std::string get(const std::string& key, std::chrono::milliseconds deadline) override {
    const auto end = std::chrono::steady_clock::now() + deadline;
    for (;;) {
      std::ifstream stream(folder_ / file(key), std::ios::binary);
      if (stream) return {std::istreambuf_iterator<char>(stream), {}};
      if (std::chrono::steady_clock::now() >= end) throw Error(ErrorCode::timeout, "no key '" + key + "'");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  static std::string file(const std::string& key) {
    std::string name;
    for (const char c : key) {
      char hex[3];
      std::snprintf(hex, sizeof(hex), "%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      name += hex;
    }
    return name;
  }
  std::filesystem::path folder_;
};

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "tide-test-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) throw Error(ErrorCode::system, "no temporary folder at " + path);
    path_ = path;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct Outcome {
  bool done = false;              // returned or threw; false: killed
  std::optional<ErrorCode> code;  // of a tide::Error
  std::string sentence;           // what it threw
  double seconds = 0;
  bool ok() const { return done && sentence.empty(); }
};

inline std::string to_string(const Outcome& outcome) {
  if (!outcome.done) return "killed";
  if (outcome.ok()) return "ok";
  return (outcome.code ? std::string(name(*outcome.code)) : std::string("other")) + ": " + outcome.sentence;
}

// One rank's work. It throws what is wrong.
using Work = std::function<void(const SessionOptions&)>;

inline Outcome attempt(const Work& work, const SessionOptions& options) {
  Outcome outcome;
  const auto begin = std::chrono::steady_clock::now();
  try {
    work(options);
  } catch (const Error& error) {
    outcome.code = error.code();
    outcome.sentence = error.what();
  } catch (const std::exception& error) {
    outcome.sentence = error.what();
  }
  outcome.done = true;
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return outcome;
}

inline std::vector<Outcome> run_threads(SessionOptions options, const Work& work) {
  std::vector<Outcome> outcomes(static_cast<size_t>(options.world));
  std::vector<std::thread> threads;
  if (options.store == nullptr) options.store = make_thread_store();
  for (int32_t rank = 0; rank < options.world; ++rank) {
    options.rank = rank;
    threads.emplace_back(
        [&outcomes, &work, options] { outcomes[static_cast<size_t>(options.rank)] = attempt(work, options); });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// Forked ranks. `meanwhile` runs in the parent with the children's process ids. `victims` are not waited for: they are
// killed once all others are done. Nobody outlives the call: what is left after `patience` is killed.
inline std::vector<Outcome> run_processes(SessionOptions options, const Work& work,
                                          const std::vector<int32_t>& victims = {},
                                          const std::function<void(const std::vector<pid_t>&)>& meanwhile = {},
                                          std::chrono::seconds patience = std::chrono::seconds(60)) {
  const TemporaryFolder folder;
  options.store = std::make_shared<FolderStore>(folder.path());
  std::vector<pid_t> children;
  std::vector<pollfd> pipes;
  std::fflush(nullptr);
  for (int32_t rank = 0; rank < options.world; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) throw Error(ErrorCode::system, "no pipe");
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      options.rank = rank;
      const Outcome outcome = attempt(work, options);
      std::ostringstream text;
      text << (outcome.code ? static_cast<int>(*outcome.code) : -1) << ' ' << outcome.seconds << ' '
           << outcome.sentence;
      const std::string line = text.str();
      const ssize_t written = write(ends[1], line.data(), line.size());
      _exit(written == static_cast<ssize_t>(line.size()) ? 0 : 3);
    }
    close(ends[1]);
    children.push_back(child);
    pipes.push_back({ends[0], POLLIN, 0});
  }
  if (meanwhile) meanwhile(children);

  const auto end = std::chrono::steady_clock::now() + patience;
  std::vector<std::string> lines(pipes.size());
  std::vector<bool> open(pipes.size(), true);
  const auto awaited = [&] {
    for (size_t rank = 0; rank < open.size(); ++rank) {
      const bool victim = std::find(victims.begin(), victims.end(), static_cast<int32_t>(rank)) != victims.end();
      if (open[rank] && !victim) return true;
    }
    return false;
  };
  while (awaited()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (poll(pipes.data(), pipes.size(), static_cast<int>(std::max<int64_t>(left.count(), 0))) <= 0) break;
    for (size_t rank = 0; rank < pipes.size(); ++rank) {
      if (pipes[rank].revents == 0) continue;
      char buffer[4096];
      const ssize_t got = read(pipes[rank].fd, buffer, sizeof(buffer));
      if (got > 0) {
        lines[rank].append(buffer, static_cast<size_t>(got));
        continue;
      }
      open[rank] = false;
      close(pipes[rank].fd);
      pipes[rank].fd = -1;
    }
  }
  for (const pollfd& left : pipes) {
    if (left.fd >= 0) close(left.fd);
  }
  for (const pid_t child : children) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  std::vector<Outcome> outcomes;
  for (const std::string& line : lines) {
    Outcome& outcome = outcomes.emplace_back();
    if (line.empty()) continue;
    std::istringstream text(line);
    int code = 0;
    text >> code >> outcome.seconds;
    text.get();
    outcome.sentence.assign(std::istreambuf_iterator<char>(text), {});
    if (code >= 0) outcome.code = static_cast<ErrorCode>(code);
    outcome.done = true;
  }
  return outcomes;
}

inline void expect_all_ok(const std::vector<Outcome>& outcomes) {
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_TRUE(outcomes[rank].ok()) << "rank " << rank << ": " << to_string(outcomes[rank]);
  }
}

}  // namespace tide::test
