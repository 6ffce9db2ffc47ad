#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "fabric/node_impl.h"
#include "fabric/os_error.h"
#include "fabric/outcome.h"

namespace tide::fabric {
namespace {

constexpr int64_t kPairAlignment = 128;  // processors fetch cache lines in pairs

}  // namespace

void Node::Impl::check_room(int64_t window_bytes, int64_t shared_bytes, int32_t counters) const {
  const std::string sizes = fmt::format("{} windows of {} bytes, {} shared bytes and {} counters a pair of ranks",
                                        world(), window_bytes, shared_bytes, counters);
  // Far below overflow, far above any machine.
  constexpr int64_t kMost = int64_t{1} << 50;
  if (window_bytes < 0 || shared_bytes < 0 || counters < 0) {
    throw Error(ErrorCode::invalid_argument, fmt::format("map of {}: sizes are not negative", sizes));
  }
  const int64_t pairs = static_cast<int64_t>(world()) * world();
  const bool fits = window_bytes <= kMost && shared_bytes <= kMost;
  const std::optional<int64_t> available = available_memory();
  const int64_t total = fits ? window_bytes * world() + shared_bytes + pairs * pair_bytes : 0;
  if (fits && total <= available.value_or(kMost)) return;
  throw Error(ErrorCode::no_space,
              fmt::format("{} do not fit: the machine has {} bytes available; choose a landing that takes less (ring), "
                          "smaller groups, or free memory",
                          sizes, available ? std::to_string(*available) : "too few"));
}

void Node::Impl::map_window(int32_t of, const Descriptor& memory, int64_t bytes) {
  windows[static_cast<size_t>(of)] = Window(memory, fmt::format("the window of rank {}", of), bytes);
}

// Hands each descriptor that came to `take`, or notes in `failure` why that cannot be.
void Node::Impl::receive_descriptors(Frame frame, size_t expected, const std::function<void(size_t, Descriptor&)>& take,
                                     std::string& failure) const {
  const std::string outcome = outcome_of([&] {
    if (frame.received.descriptors_lost) throw os_error("receive a window", EMFILE);
    // Rank 0 had none to pass on, and reports why.
    if (frame.received.descriptors.empty()) return;
    if (frame.received.descriptors.size() != expected) {
      throw Error(ErrorCode::mismatch, fmt::format("{} descriptors came instead of {}: run the same build on every "
                                                   "rank",
                                                   frame.received.descriptors.size(), expected));
    }
    for (size_t i = 0; i < expected; ++i) take(i, frame.received.descriptors[i]);
  });
  if (failure.empty()) failure = outcome;
}

// Rank 0 collects every rank's window and sends them out one at a time, so that few descriptors are open at once.
// `own`: the window and, on rank 0, the shared memory and the counters; elsewhere own[1] is filled in.
void Node::Impl::swap_descriptors(std::array<Descriptor, 3>& own, const std::array<int64_t, 3>& bytes,
                                  std::string& failure) {
  const auto map_common = [&](size_t i, const Descriptor& memory) {
    if (i == 0) map_window(0, memory, bytes[0]);
    if (i == 1) shared = Window(memory, "the shared memory", bytes[1]);
    if (i == 2) counter_memory = Window(memory, "the memory of the counters", bytes[2]);
  };
  if (rank() == 0) {
    failure = outcome_of([&] {
      for (size_t i = 0; i < own.size(); ++i) map_common(i, own[i]);
    });
    const int common[] = {own[0].get(), own[1].get(), own[2].get()};
    for (int32_t r = 1; r < world(); ++r) send(r, Step::map_descriptors, {}, common);
    for (int32_t of = 1; of < world(); ++of) {
      Descriptor memory;
      receive_descriptors(
          receive(of, Step::map_descriptors, 0), 1,
          [&](size_t, Descriptor& received) {
            map_window(of, received, bytes[0]);
            memory = std::move(received);
          },
          failure);
      const int passed[] = {memory.get()};
      for (int32_t to = 1; to < world(); ++to) {
        if (to != of)
          send(to, Step::map_descriptors, {}, memory ? std::span<const int>(passed) : std::span<const int>());
      }
    }
    return;
  }
  const int window[] = {own[0].get()};
  send(0, Step::map_descriptors, {}, window);
  failure = outcome_of([&] { map_window(rank(), own[0], bytes[0]); });
  receive_descriptors(
      receive(0, Step::map_descriptors, 0), 3,
      [&](size_t i, Descriptor& received) {
        map_common(i, received);
        if (i == 1) own[1] = std::move(received);
      },
      failure);
  for (int32_t of = 1; of < world(); ++of) {
    if (of == rank()) continue;
    receive_descriptors(
        receive(0, Step::map_descriptors, 0), 1,
        [&](size_t, Descriptor& received) { map_window(of, received, bytes[0]); }, failure);
  }
}

void Node::Impl::map(int64_t window_bytes, int64_t shared_bytes, int32_t counters) {
  constexpr int64_t kPerLine = kPairAlignment / int64_t{sizeof(uint64_t)};
  pair_bytes = (std::max<int64_t>(counters, 1) + kPerLine - 1) / kPerLine * kPairAlignment;
  agree_on_sizes(window_bytes, shared_bytes, counters);

  const std::array<int64_t, 3> bytes = {window_bytes, shared_bytes, pair_bytes * world() * world()};
  const std::function<void()> watch = [this] { check(true, true); };
  std::array<Descriptor, 3> own;
  std::string failure = outcome_of([&] {
    // Each rank reserves its own window, which places it in the memory near to where it runs.
    const std::string what = fmt::format("the window of rank {}", rank());
    own[0] = create_memory(what, bytes[0]);
    reserve(own[0], what, 0, whole_pages(bytes[0]), watch);
    if (rank() != 0) return;
    own[1] = create_memory("the shared memory", bytes[1]);
    own[2] = create_memory("the memory of the counters", bytes[2]);
    reserve(own[2], "the memory of the counters", 0, whole_pages(bytes[2]), watch);
  });
  throw_first(gather(Step::map_create, failure));

  windows.resize(static_cast<size_t>(world()));
  swap_descriptors(own, bytes, failure);
  if (failure.empty()) {
    failure = outcome_of([&] {
      // Each rank an even part, so that the shared memory is spread over the memories of the machine.
      const int64_t pages = whole_pages(bytes[1]) / page_bytes();
      reserve(own[1], "the shared memory", pages * rank() / world() * page_bytes(),
              pages * (rank() + 1) / world() * page_bytes(), watch);
    });
  }
  throw_first(gather(Step::map_reserve, failure));
  for (const Window& window : windows) {
    if (window.data() == nullptr) throw Error(ErrorCode::mismatch, "a window did not arrive: run the same build");
  }
  mapped = true;
}

// Same sizes everywhere, and room for them, before anything is reserved: the kernel would rather kill a process than
// refuse a page.
void Node::Impl::agree_on_sizes(int64_t window_bytes, int64_t shared_bytes, int32_t counters) {
  const std::array<int64_t, 3> sizes = {window_bytes, shared_bytes, counters};
  constexpr std::array<const char*, 3> kNames = {"window_bytes", "shared_bytes", "counters"};
  std::string mine(reinterpret_cast<const char*>(sizes.data()), sizeof(sizes));
  mine += outcome_of([&] { check_room(window_bytes, shared_bytes, counters); });
  std::vector<std::string> blobs = gather(Step::map_sizes, mine);
  std::array<int64_t, 3> first{};
  for (size_t r = 0; r < blobs.size(); ++r) {
    std::array<int64_t, 3> theirs{};
    if (blobs[r].size() < sizeof(theirs)) throw Error(ErrorCode::mismatch, "sizes of another form: run the same build");
    std::memcpy(theirs.data(), blobs[r].data(), sizeof(theirs));
    blobs[r].erase(0, sizeof(theirs));
    if (r == 0) first = theirs;
    for (size_t i = 0; i < first.size(); ++i) {
      if (first[i] == theirs[i]) continue;
      throw Error(ErrorCode::mismatch, fmt::format("{} of map() is {} on rank 0 and {} on rank {}: give the same "
                                                   "everywhere",
                                                   kNames[i], first[i], theirs[i], r));
    }
  }
  throw_first(blobs);
}

}  // namespace tide::fabric
