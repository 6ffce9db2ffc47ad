#include "fabric/node.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <utility>

#include "fabric/control.h"
#include "fabric/meeting.h"
#include "fabric/os_error.h"
#include "fabric/socket.h"
#include "fabric/window.h"
#include "fmt/format.h"

namespace tide::fabric {
namespace {

using std::chrono::milliseconds;

constexpr int32_t kMostRanks = 1024;
constexpr uint64_t kMostBlob = uint64_t{64} << 20;
constexpr milliseconds kSleepSlice{50};
constexpr int64_t kPairAlignment = 128;  // processors fetch cache lines in pairs

// The steps of set-up; what a frame of rank A is in must be what rank B is in.
enum class Step : uint32_t { arrive = 1, exchange, map_sizes, map_create, map_descriptors, map_reserve };

const char* name(uint32_t step) {
  switch (static_cast<Step>(step)) {
    case Step::arrive:
      return "the meeting";
    case Step::exchange:
      return "exchange()";
    case Step::map_sizes:
    case Step::map_create:
    case Step::map_descriptors:
    case Step::map_reserve:
      return "map()";
  }
  return "an unknown step";
}

void append_length(std::string& text, uint64_t value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// What a rank says about its own part of a step: nothing, or how it failed.
std::string describe(const Error& error) { return fmt::format("{}:{}", static_cast<int>(error.code()), error.what()); }

template <typename Part>
std::string outcome_of(Part&& part) {
  try {
    part();
    return {};
  } catch (const Error& error) {
    return describe(error);
  } catch (const std::bad_alloc&) {
    return describe(Error(ErrorCode::no_space, "no memory for the fabric's own tables"));
  }
}

// Throws the first failure by rank: the same on every rank.
void throw_first(const std::vector<std::string>& outcomes) {
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const std::string& outcome = outcomes[rank];
    if (outcome.empty()) continue;
    const size_t colon = std::min(outcome.find(':'), outcome.size());
    int code = 0;
    for (const char digit : std::string_view(outcome).substr(0, std::min<size_t>(colon, 3)))
      code = code * 10 + digit - '0';
    const bool known = code >= 0 && code <= static_cast<int>(ErrorCode::system);
    const std::string sentence = outcome.substr(std::min(colon + 1, outcome.size()));
    throw Error(known ? static_cast<ErrorCode>(code) : ErrorCode::system, fmt::format("rank {}: {}", rank, sentence));
  }
}

}  // namespace

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

Node::Impl::~Impl() {
  if (control() && getpid() == process && !left) control().depart(Presence::dropped);
}

void Node::Impl::require_own_process(const char* call) const {
  if (getpid() == process) return;
  throw Error(ErrorCode::closed, fmt::format("{} in a forked child: the memory is shared with the process that made "
                                             "it, but not its place among the ranks; make a session of its own",
                                             call));
}

void Node::Impl::require_attached(const char* call) const {
  require_own_process(call);
  if (left) throw Error(ErrorCode::closed, fmt::format("{} after leave: make a new node", call));
}

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

void Node::Impl::attach() {
  if (world() < 1 || world() > kMostRanks) {
    throw Error(ErrorCode::invalid_argument, fmt::format("world is {}: give 1 to {} ranks", world(), kMostRanks));
  }
  if (rank() < 0 || rank() >= world()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("rank is {}: give a rank from 0 to {}", rank(), world() - 1));
  }
  if (world() > 1 && options.store == nullptr) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("store is null with world {}: pass a store that all ranks share", world()));
  }
  if (options.deadline.count() <= 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("deadline is {} ms: give a positive time", options.deadline.count()));
  }
  collective("the meeting", [&] {
    try {
      meet(options, deadline, meeting, [this] {
        if (control()) check(true, true);
      });
    } catch (const Closed&) {
      closed_by(0);
    }
    // Nobody is attached before everybody is.
    gather(Step::arrive, {});
  });
}

std::string Node::Impl::missing(uint32_t steps, int32_t otherwise) const {
  std::string text;
  for (int32_t r = 0; r < world(); ++r) {
    if (control().steps(r) < steps) text += fmt::format("{}{}", text.empty() ? "" : ", ", r);
  }
  return text.empty() ? fmt::format("{}", otherwise) : text;
}

Patience Node::Impl::patience(int32_t peer, Step step) const {
  return {deadline, [self = const_cast<Impl*>(this)] { self->check(true, true); },
          [this, peer, step] {
            return fmt::format("rank {} waited {} ms in {} for rank {}: it is stuck, stopped or makes another call",
                               rank(), options.deadline.count(), name(static_cast<uint32_t>(step)),
                               missing(control().steps(rank()), peer));
          }};
}

// The peer closed its socket: an abort or a death explains it better, and may be seen a little later.
void Node::Impl::closed_by(int32_t peer) {
  for (int i = 0; i < 50; ++i) {
    check(true, true);
    std::this_thread::sleep_for(milliseconds(10));
  }
  throw Error(ErrorCode::peer_lost, fmt::format("rank {} closed its connection to rank {}", peer, rank()));
}

Frame Node::Impl::receive(int32_t from, Step step, uint64_t most) {
  Frame frame;
  try {
    frame = receive_frame(meeting.sockets[rank() == 0 ? static_cast<size_t>(from) : 0], most, patience(from, step));
  } catch (const Closed&) {
    closed_by(from);
  }
  if (frame.kind != static_cast<uint32_t>(step)) {
    throw Error(ErrorCode::mismatch, fmt::format("rank {} is in {} and rank {} in {}: make the same calls in the same "
                                                 "order on every rank",
                                                 rank(), name(static_cast<uint32_t>(step)), from, name(frame.kind)));
  }
  return frame;
}

void Node::Impl::send(int32_t to, Step step, std::span<const std::string_view> payload,
                      std::span<const int> descriptors) {
  try {
    send_frame(meeting.sockets[rank() == 0 ? static_cast<size_t>(to) : 0], static_cast<uint32_t>(step), payload,
               descriptors, patience(to, step));
  } catch (const Closed&) {
    closed_by(to);
  }
}

std::vector<std::string> Node::Impl::gather(Step step, std::string_view mine) {
  if (world() == 1) return {std::string(mine)};
  deadline = Clock::now() + options.deadline;
  control().begin_step();
  return rank() == 0 ? gather_at_hub(step, mine) : gather_at_spoke(step, mine);
}

std::vector<std::string> Node::Impl::gather_at_hub(Step step, std::string_view mine) {
  std::vector<std::string> blobs(static_cast<size_t>(world()));
  blobs[0] = mine;
  for (int32_t r = 1; r < world(); ++r) blobs[static_cast<size_t>(r)] = receive(r, step, kMostBlob).payload;
  std::string lengths;
  for (const std::string& blob : blobs) append_length(lengths, blob.size());
  std::vector<std::string_view> parts{lengths};
  parts.insert(parts.end(), blobs.begin(), blobs.end());
  for (int32_t r = 1; r < world(); ++r) send(r, step, parts, {});
  return blobs;
}

std::vector<std::string> Node::Impl::gather_at_spoke(Step step, std::string_view mine) {
  const std::string_view parts[] = {mine};
  send(0, step, parts, {});
  const auto ranks = static_cast<size_t>(world());
  const std::string all = receive(0, step, ranks * (kMostBlob + sizeof(uint64_t))).payload;
  std::vector<std::string> blobs(ranks);
  size_t at = ranks * sizeof(uint64_t);
  for (size_t r = 0; r < ranks; ++r) {
    uint64_t length = 0;
    if (at <= all.size()) std::memcpy(&length, all.data() + r * sizeof(length), sizeof(length));
    if (at > all.size() || length > all.size() - at) {
      throw Error(ErrorCode::mismatch, "rank 0 sent a message of another form: run the same build on every rank");
    }
    blobs[r] = all.substr(at, length);
    at += length;
  }
  return blobs;
}

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

void Node::Impl::check(bool thorough, bool in_setup) {
  require_attached("check");
  if (control().aborted()) {
    const Control::Abort record = *control().abort_record();
    if (in_setup) throw Error(record.code, record.sentence);
    throw Error(ErrorCode::aborted,
                fmt::format("rank {} failed first ({}): {}", record.rank, tide::name(record.code), record.sentence));
  }
  throw_lost();
  if (!thorough && !control().somebody_departed()) return;
  // Deaths first: a rank that was told of one may be on its way out already.
  poll_lives();
  check_departures();
}

void Node::Impl::throw_lost() const {
  const Control::Lost lost = control().lost();
  switch (lost.loss) {
    case Loss::none:
      return;
    case Loss::died:
      throw Error(ErrorCode::peer_lost,
                  fmt::format("rank {} died: its process has ended without closing its session; look at its own output "
                              "and start all ranks again",
                              lost.rank));
    case Loss::dropped:
      throw Error(
          ErrorCode::peer_lost,
          fmt::format("rank {} dropped its session without closing it together with the others; look at its own "
                      "error",
                      lost.rank));
    case Loss::left:
      throw Error(ErrorCode::peer_lost,
                  fmt::format("rank {} closed its session before a call that others are in: make the same calls on "
                              "every rank",
                              lost.rank));
  }
}

void Node::Impl::poll_lives() {
  lives.clear();
  for (const Descriptor& life : meeting.lives) {
    if (life) lives.push_back({life.get(), POLLIN, 0});
  }
  if (poll(lives.data(), lives.size(), 0) <= 0) return;
  for (size_t r = 0, at = 0; r < meeting.lives.size(); ++r) {
    if (!meeting.lives[r] || !ended(lives[at++].revents)) continue;
    const auto peer = static_cast<int32_t>(r);
    const Presence presence = control().presence(peer);
    // Who has called leave() may end; whether it did so too early is asked elsewhere.
    if (presence == Presence::leaving) continue;
    control().report_lost(presence == Presence::dropped ? Loss::dropped : Loss::died, peer);
    throw_lost();
  }
}

void Node::Impl::check_departures() {
  const bool leaving = control().presence(rank()) == Presence::leaving;
  for (int32_t r = 0; r < world(); ++r) {
    if (r == rank()) continue;
    const Presence presence = control().presence(r);
    if (presence == Presence::dropped) {
      control().report_lost(Loss::dropped, r);
    } else if (presence == Presence::leaving && !leaving && control().last_published(r) < published) {
      control().report_lost(Loss::left, r);
    }
  }
  throw_lost();
}

void Node::Impl::leave() {
  require_own_process("leave");
  if (left) return;
  if (control().presence(rank()) != Presence::leaving) control().depart(Presence::leaving);
  const Clock::time_point end = Clock::now() + options.deadline;
  while (true) {
    const uint32_t seen = control().doorbell();
    std::string at_work;
    for (int32_t r = 0; r < world(); ++r) {
      if (control().presence(r) == Presence::leaving) continue;
      at_work += fmt::format("{}{}", at_work.empty() ? "" : ", ", r);
    }
    if (at_work.empty()) {
      left = true;
      return;
    }
    check(true, false);
    if (Clock::now() >= end) {
      throw Error(ErrorCode::timeout, fmt::format("rank {} waited {} ms for rank {} to close the session too: close it "
                                                  "on every rank",
                                                  rank(), options.deadline.count(), at_work));
    }
    control().sleep(seen, std::min<std::chrono::nanoseconds>(kSleepSlice, end - Clock::now()));
  }
}

Node::Node(const NodeOptions& options) : impl_(std::make_unique<Impl>(options)) { impl_->attach(); }

Node::~Node() = default;

int32_t Node::rank() const { return impl_->rank(); }
int32_t Node::world() const { return impl_->world(); }

std::vector<std::string> Node::exchange(const std::string& mine) {
  if (mine.size() > kMostBlob) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a blob of {} bytes to exchange: give at most {}", mine.size(), kMostBlob));
  }
  return impl_->collective("exchange", [&] { return impl_->gather(Step::exchange, mine); });
}

void Node::map(int64_t window_bytes, int64_t shared_bytes, int32_t counters) {
  if (impl_->mapped) throw Error(ErrorCode::invalid_argument, "map() was called before: a node maps its memory once");
  impl_->collective("map", [&] { impl_->map(window_bytes, shared_bytes, counters); });
}

std::byte* Node::window(int32_t local) const { return impl_->windows[static_cast<size_t>(local)].data(); }
std::byte* Node::shared() const { return impl_->shared.data(); }

std::atomic<uint64_t>& Node::counter(int32_t at, int32_t id, int32_t from) const {
  static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));
  std::byte* pair = impl_->counter_memory.data() + (int64_t{at} * impl_->world() + from) * impl_->pair_bytes;
  return reinterpret_cast<std::atomic<uint64_t>*>(pair)[id];
}

void Node::ring(int32_t at) { impl_->control().ring(at); }
uint32_t Node::doorbell() const { return impl_->control().doorbell(); }

void Node::sleep(uint32_t seen, Clock::time_point deadline) {
  impl_->require_own_process("sleep");
  impl_->control().sleep(seen, std::min<std::chrono::nanoseconds>(kSleepSlice, deadline - Clock::now()));
}

void Node::check(bool thorough) { impl_->check(thorough, false); }

void Node::abort(ErrorCode code, std::string_view sentence) {
  impl_->require_own_process("abort");
  impl_->control().abort(code, sentence);
}

void Node::publish(const CallRecord& record) {
  impl_->require_own_process("publish");
  impl_->published = record.sequence;
  impl_->control().publish(record);
}

CallRecord Node::published(int32_t at, uint64_t sequence) const { return impl_->control().published(at, sequence); }

void Node::leave() { impl_->leave(); }

}  // namespace tide::fabric
