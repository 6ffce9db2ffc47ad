// The inside of a Node, by what its parts do: node_attach.cc, node_gather.cc, node_map.cc, node_watch.cc.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/control.h"
#include "fabric/meeting.h"
#include "fabric/node.h"
#include "fabric/socket.h"
#include "fabric/window.h"
#include "fmt/format.h"

namespace tide::fabric {

inline constexpr uint64_t kMostBlob = uint64_t{64} << 20;
inline constexpr std::chrono::milliseconds kSleepSlice{50};

// The steps of set-up; what a frame of rank A is in must be what rank B is in.
enum class Step : uint32_t { arrive = 1, exchange, map_sizes, map_create, map_descriptors, map_reserve };

struct Node::Impl {
  explicit Impl(const NodeOptions& node_options) : options(node_options) {}
  ~Impl();

  void attach();

  // Runs a collective step of set-up; a failure here is told to all.
  template <typename Run>
  auto collective(const char* what, Run&& run);

  std::vector<std::string> gather(Step step, std::string_view mine);
  std::vector<std::string> gather_at_hub(Step step, std::string_view mine);
  std::vector<std::string> gather_at_spoke(Step step, std::string_view mine);
  Frame receive(int32_t from, Step step, uint64_t most);
  void send(int32_t to, Step step, std::span<const std::string_view> payload, std::span<const int> descriptors);
  Patience patience(int32_t peer, Step step) const;

  void map(int64_t window_bytes, int64_t shared_bytes, int32_t counters);
  void check_room(int64_t window_bytes, int64_t shared_bytes, int32_t counters) const;
  void map_window(int32_t of, const Descriptor& memory, int64_t bytes);
  void agree_on_sizes(int64_t window_bytes, int64_t shared_bytes, int32_t counters);
  void swap_descriptors(std::array<Descriptor, 3>& own, const std::array<int64_t, 3>& bytes, std::string& failure);
  void receive_descriptors(Frame frame, size_t expected, const std::function<void(size_t, Descriptor&)>& take,
                           std::string& failure) const;

  void require_own_process(const char* call) const;
  void require_attached(const char* call) const;
  // Aborts keep the culprit's code during set-up, where all ranks fail alike.
  void check(bool thorough, bool in_setup);
  void poll_lives();
  void throw_lost() const;
  void check_departures();
  [[noreturn]] void closed_by(int32_t peer);
  std::string missing(uint32_t steps, int32_t otherwise) const;
  void leave();

  NodeOptions options;
  pid_t process = getpid();
  Clock::time_point deadline;  // of the step under way
  Meeting meeting;
  std::vector<pollfd> lives;
  std::vector<Window> windows;
  Window shared, counter_memory;
  int64_t pair_bytes = 0;
  uint64_t published = 0;
  bool mapped = false;
  bool left = false;

  int32_t rank() const { return options.rank; }
  int32_t world() const { return options.world; }
  Control& control() { return meeting.control; }
  const Control& control() const { return meeting.control; }
};

template <typename Run>
auto Node::Impl::collective(const char* what, Run&& run) {
  require_attached(what);
  try {
    deadline = Clock::now() + options.deadline;
    if (control()) check(true, true);
    return run();
  } catch (const Error& error) {
    if (control()) control().abort(error.code(), error.what());
    throw;
  } catch (const std::bad_alloc&) {
    const std::string sentence = fmt::format("rank {} has no memory left in {}", rank(), what);
    if (control()) control().abort(ErrorCode::no_space, sentence);
    throw Error(ErrorCode::no_space, sentence);
  }
}

}  // namespace tide::fabric
