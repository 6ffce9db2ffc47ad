#include "fabric/meeting.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "fabric/folder.h"
#include "fabric/os_error.h"
#include "fmt/format.h"

namespace tide::fabric {
namespace {

using std::chrono::milliseconds;

// Changes whenever a structure of the fabric changes: ranks of different builds must not meet.
constexpr uint32_t kVersion = 1;
constexpr uint32_t kMagic = 0x45444954;
constexpr size_t kNonceBytes = 16;
constexpr size_t kNonceDigits = 2 * kNonceBytes;
constexpr size_t kSentence = 480;
constexpr uint32_t kLifeFrame = 0x4C494645;

struct Hello {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  int32_t rank = 0;
  int32_t world = 0;
  char nonce[kNonceDigits] = {};
};

struct Welcome {
  uint32_t magic = kMagic;
  uint32_t refused = 0;  // 1 + code of the error
  char nonce[kNonceDigits] = {};
  char sentence[kSentence] = {};  // why it is refused
};

template <typename Message>
std::string_view bytes_of(const Message& message) {
  return {reinterpret_cast<const char*>(&message), sizeof(message)};
}

// What the store holds: the path, then the nonce that connecting ranks send, then the one that rank 0 answers with.
struct Address {
  std::string path, ask, answer;

  std::string text() const { return fmt::format("{}\n{}\n{}", path, ask, answer); }
  static Address parse(const std::string& text, const std::string& key) {
    const size_t first = text.find('\n');
    const size_t second = first == std::string::npos ? first : text.find('\n', first + 1);
    if (second == std::string::npos || second - first - 1 != kNonceDigits || text.size() - second - 1 != kNonceDigits) {
      throw Error(ErrorCode::mismatch, fmt::format("store key '{}' holds no address of rank 0: give every session that "
                                                   "shares a store a job name of its own",
                                                   key));
    }
    return {text.substr(0, first), text.substr(first + 1, kNonceDigits), text.substr(second + 1)};
  }
};

std::string key_of(const NodeOptions& options) { return options.job + "/fabric"; }

std::string absent_ranks(const Control& control, int32_t world) {
  std::string text;
  for (int32_t r = 0; r < world; ++r) {
    if (control.presence(r) == Presence::absent) text += fmt::format("{}{}", text.empty() ? "" : ", ", r);
  }
  return text;
}

class Host {
 public:
  Host(const NodeOptions& options, Clock::time_point deadline, Meeting& meeting, const std::function<void()>& watch)
      : options_(options), deadline_(deadline), meeting_(meeting), watch_(watch) {}

  void run() {
    const int64_t bytes = Control::bytes(options_.world);
    control_memory_ = create_memory("the control memory", bytes);
    reserve(control_memory_, "the control memory", 0, whole_pages(bytes), {});
    meeting_.control = Control(Window(control_memory_, "the control memory", bytes), 0, options_.world);
    meeting_.control.arrive(0);
    meeting_.sockets.resize(static_cast<size_t>(options_.world));
    meeting_.lives.resize(static_cast<size_t>(options_.world));
    if (options_.world == 1) return;
    life_ = open_life();
    RuntimeFolder folder;
    address_ = {folder.socket_path(), random_hex(kNonceBytes), random_hex(kNonceBytes)};
    listener_ = listen_at(address_.path, options_.world + 16);
    options_.store->set(key_of(options_), address_.text());
    try {
      while (arrived_ < options_.world) gather();
    } catch (const Error& error) {
      turn_away(error);
      throw;
    }
    listener_.close();
    strangers_.clear();
    folder.remove();
    tell_lives();
    meeting_.own_life = std::move(life_.kept);
  }

 private:
  // A connection that has not yet proved anything.
  struct Stranger {
    Descriptor socket;
    Hello hello{};
    size_t got = 0;
    Received received;
  };

  void gather() {
    polled_.clear();
    ranks_.clear();
    add(listener_, 0);
    for (const Stranger& stranger : strangers_) add(stranger.socket, 0);
    const size_t strangers = strangers_.size();
    for (size_t r = 1; r < meeting_.sockets.size(); ++r) {
      // Only what is open: poll() counts the rest against the limit of descriptors.
      if (!meeting_.sockets[r]) continue;
      add(meeting_.sockets[r], r);
      add(meeting_.lives[r], r);
    }
    const int ready = poll(polled_.data(), polled_.size(), slice_ms(deadline_));
    if (ready < 0 && errno != EINTR) throw os_error("wait for ranks", errno == EINVAL ? EMFILE : errno);
    // The watch sees deaths, and why somebody who has arrived gave up.
    watch_();
    if (ready > 0) {
      for (size_t i = 1 + strangers; i < polled_.size(); ++i) {
        // Nobody has anything to say yet, so it has closed.
        if (polled_[i].revents != 0) throw gave_up(ranks_[i]);
      }
      for (size_t i = strangers; i > 0; --i) {
        if (polled_[i].revents != 0 && !listen_to(strangers_[i - 1])) {
          strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(i - 1));
        }
      }
      if (polled_[0].revents != 0) accept_all();
    }
    if (Clock::now() >= deadline_) {
      throw Error(ErrorCode::timeout,
                  fmt::format("rank 0 waited {} ms for rank {} of job '{}' to arrive: start it, or give a longer "
                              "deadline",
                              options_.deadline.count(), absent_ranks(meeting_.control, options_.world), options_.job));
    }
  }

  void add(const Descriptor& descriptor, size_t rank) {
    polled_.push_back({descriptor.get(), POLLIN, 0});
    ranks_.push_back(rank);
  }

  static Error gave_up(size_t rank) {
    return Error(ErrorCode::peer_lost,
                 fmt::format("rank {} ended or gave up while the ranks met: look at its own error", rank));
  }

  void accept_all() {
    while (Descriptor socket = accept_from(listener_)) {
      // Silent strangers must not use up our descriptors; the oldest has had its time.
      if (strangers_.size() >= static_cast<size_t>(options_.world) + 16) strangers_.erase(strangers_.begin());
      strangers_.emplace_back().socket = std::move(socket);
    }
  }

  // False when the connection is done with: admitted, or dropped.
  bool listen_to(Stranger& stranger) {
    try {
      char* hello = reinterpret_cast<char*>(&stranger.hello);
      stranger.got +=
          receive_some(stranger.socket, {hello + stranger.got, sizeof(Hello) - stranger.got}, stranger.received);
    } catch (const Closed&) {
      return false;
    }
    if (stranger.got < sizeof(Hello)) return true;
    const Hello& hello = stranger.hello;
    if (hello.magic != kMagic || std::string_view(hello.nonce, kNonceDigits) != address_.ask) return false;
    if (hello.version != kVersion) {
      throw Error(ErrorCode::mismatch,
                  fmt::format("rank {} speaks version {} of the fabric, rank 0 version {}: run the same build on "
                              "every rank",
                              hello.rank, hello.version, kVersion));
    }
    if (hello.world != options_.world) {
      throw Error(ErrorCode::mismatch, fmt::format("world is {} on rank 0 and {} on rank {}: give the same everywhere",
                                                   options_.world, hello.world, hello.rank));
    }
    if (hello.rank < 1 || hello.rank >= options_.world) {
      throw Error(ErrorCode::mismatch,
                  fmt::format("a peer calls itself rank {} of world {}: give each a rank of its own from 0 to {}",
                              hello.rank, options_.world, options_.world - 1));
    }
    const auto rank = static_cast<size_t>(hello.rank);
    if (meeting_.sockets[rank]) {
      throw Error(ErrorCode::mismatch,
                  fmt::format("two processes call themselves rank {}: give each a rank of its own", hello.rank));
    }
    if (stranger.received.descriptors_lost) throw os_error(fmt::format("admit rank {}", hello.rank), EMFILE);
    if (stranger.received.descriptors.size() != 1) return false;
    admit(stranger, rank);
    return false;
  }

  // Tells those who stand before the door why nobody is let in any more. Best effort.
  void turn_away(const Error& error) {
    Welcome welcome;
    welcome.refused = 1 + static_cast<uint32_t>(error.code());
    std::memcpy(welcome.nonce, address_.answer.data(), kNonceDigits);
    const std::string_view sentence = error.what();
    std::memcpy(welcome.sentence, sentence.data(), std::min(sentence.size(), kSentence));
    try {
      accept_all();
    } catch (const Error&) {
    }
    for (const Stranger& stranger : strangers_) {
      try {
        send_some(stranger.socket, bytes_of(welcome), {});
      } catch (const Closed&) {
      } catch (const Error&) {
      }
    }
  }

  void admit(Stranger& stranger, size_t rank) {
    Welcome welcome;
    std::memcpy(welcome.nonce, address_.answer.data(), kNonceDigits);
    const int descriptors[] = {control_memory_.get(), life_.watched.get()};
    try {
      send_bytes(stranger.socket, bytes_of(welcome), descriptors, patience());
    } catch (const Closed&) {
      throw gave_up(rank);
    }
    meeting_.sockets[rank] = std::move(stranger.socket);
    meeting_.lives[rank] = std::move(stranger.received.descriptors.front());
    meeting_.control.arrive(static_cast<int32_t>(rank));
    ++arrived_;
  }

  void tell_lives() {
    for (size_t to = 1; to < meeting_.sockets.size(); ++to) {
      for (size_t of = 1; of < meeting_.lives.size(); ++of) {
        if (of == to) continue;
        const int descriptors[] = {meeting_.lives[of].get()};
        send_frame(meeting_.sockets[to], kLifeFrame, {}, descriptors, patience());
      }
    }
  }

  Patience patience() const {
    return {deadline_, watch_, [this] {
              return fmt::format("rank 0 could not answer all ranks of job '{}' within {} ms", options_.job,
                                 options_.deadline.count());
            }};
  }

  const NodeOptions& options_;
  Clock::time_point deadline_;
  Meeting& meeting_;
  const std::function<void()>& watch_;

  Descriptor control_memory_;
  Life life_;
  Address address_;
  Descriptor listener_;
  std::vector<Stranger> strangers_;
  std::vector<pollfd> polled_;
  std::vector<size_t> ranks_;  // by what is polled
  int32_t arrived_ = 1;
};

class Guest {
 public:
  Guest(const NodeOptions& options, Clock::time_point deadline, Meeting& meeting, const std::function<void()>& watch)
      : options_(options), deadline_(deadline), meeting_(meeting), watch_(watch) {}

  void run() {
    meeting_.lives.resize(static_cast<size_t>(options_.world));
    try {
      meeting_.sockets.push_back(find());
      greet();
      for (int32_t of = 1; of < options_.world; ++of) {
        if (of != options_.rank) receive_life(of);
      }
    } catch (...) {
      // A rank is missing, so nobody needs the folder any more, and rank 0 may not be there to remove it.
      remove_abandoned(address_.path);
      throw;
    }
  }

 private:
  // The store may still hold the address of an earlier session: it is read again until somebody listens there.
  Descriptor find() {
    while (true) {
      const auto left = std::chrono::ceil<milliseconds>(deadline_ - Clock::now());
      address_ =
          Address::parse(options_.store->get(key_of(options_), std::max(left, milliseconds{1})), key_of(options_));
      Descriptor socket = connect_to(address_.path, patience_for("rank 0 to accept the connection"));
      if (socket) return socket;
      if (Clock::now() >= deadline_) {
        throw Error(ErrorCode::timeout,
                    fmt::format("rank {} waited {} ms for rank 0 of job '{}', which does not listen "
                                "at the address in the store: it has failed or ended",
                                options_.rank, options_.deadline.count(), options_.job));
      }
      std::this_thread::sleep_for(milliseconds(20));
    }
  }

  void greet() {
    const Descriptor& socket = meeting_.sockets.front();
    Life life = open_life();
    Hello hello;
    hello.rank = options_.rank;
    hello.world = options_.world;
    std::memcpy(hello.nonce, address_.ask.data(), kNonceDigits);
    Welcome welcome;
    Received received;
    const Patience patience = patience_for("rank 0 to answer");
    try {
      const int descriptors[] = {life.watched.get()};
      send_bytes(socket, bytes_of(hello), descriptors, patience);
    } catch (const Closed&) {
      // What rank 0 said before it closed can still be read.
    }
    try {
      receive_bytes(socket, {reinterpret_cast<char*>(&welcome), sizeof(welcome)}, received, patience);
    } catch (const Closed&) {
      throw Error(ErrorCode::peer_lost, fmt::format("rank 0 closed the connection of rank {} while the ranks met: see "
                                                    "its own error",
                                                    options_.rank));
    }
    meeting_.own_life = std::move(life.kept);
    if (welcome.magic != kMagic || std::string_view(welcome.nonce, kNonceDigits) != address_.answer) {
      throw Error(ErrorCode::mismatch,
                  fmt::format("whoever listens at {} is not rank 0 of job '{}': give every session "
                              "that shares a store a job name of its own",
                              address_.path, options_.job));
    }
    if (welcome.refused != 0) {
      const bool known = welcome.refused - 1 <= static_cast<uint32_t>(ErrorCode::system);
      throw Error(known ? static_cast<ErrorCode>(welcome.refused - 1) : ErrorCode::system,
                  std::string(welcome.sentence, strnlen(welcome.sentence, kSentence)));
    }
    if (received.descriptors_lost) throw os_error("receive the control memory", EMFILE);
    if (received.descriptors.size() != 2) {
      throw Error(ErrorCode::mismatch, fmt::format("rank 0 sent {} descriptors instead of 2: run the same build on "
                                                   "every rank",
                                                   received.descriptors.size()));
    }
    meeting_.lives.front() = std::move(received.descriptors[1]);
    meeting_.control = Control(Window(received.descriptors[0], "the control memory", Control::bytes(options_.world)),
                               options_.rank, options_.world);
  }

  void receive_life(int32_t of) {
    Frame frame = receive_frame(
        meeting_.sockets.front(), 0,
        {deadline_, watch_, [this] {
           return fmt::format(
               "rank {} waited {} ms for rank {} of job '{}' to arrive: start it, or give a longer deadline",
               options_.rank, options_.deadline.count(), late_ranks(), options_.job);
         }});
    if (frame.received.descriptors_lost) throw os_error(fmt::format("receive the life of rank {}", of), EMFILE);
    if (frame.kind != kLifeFrame || frame.received.descriptors.size() != 1) {
      throw Error(ErrorCode::mismatch, "rank 0 sent something else than lives: run the same build on every rank");
    }
    meeting_.lives[static_cast<size_t>(of)] = std::move(frame.received.descriptors.front());
  }

  std::string late_ranks() const {
    const std::string absent = absent_ranks(meeting_.control, options_.world);
    return absent.empty() ? "0" : absent;
  }

  Patience patience_for(const char* what) const {
    return {deadline_, watch_, [this, what] {
              return fmt::format("rank {} waited {} ms for {} of job '{}': look at rank 0, or give a longer deadline",
                                 options_.rank, options_.deadline.count(), what, options_.job);
            }};
  }

  const NodeOptions& options_;
  Clock::time_point deadline_;
  Meeting& meeting_;
  const std::function<void()>& watch_;
  Address address_;
};

}  // namespace

void meet(const NodeOptions& options, Clock::time_point deadline, Meeting& meeting,
          const std::function<void()>& watch) {
  if (options.rank == 0) {
    Host(options, deadline, meeting, watch).run();
  } else {
    Guest(options, deadline, meeting, watch).run();
  }
}

}  // namespace tide::fabric
