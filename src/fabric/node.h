// The ranks of one machine: shared windows, counters, doorbells, deaths and aborts.
//
// Knows memory and counters, nothing of programs. Windows are sealed memfds passed over a unix socket in a private
// (0700) folder that is removed once everybody has attached, so a crash leaves nothing behind. Peer credentials (uid)
// and a job nonce are checked. A peer's death is seen through a pidfd. No bound or offset is ever read from peer
// memory. Threading: one thread drives a Node; ring() and the counters may be used from any process. Every wait has a
// deadline.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tide/error.h"
#include "tide/session.h"

namespace tide::fabric {

using Clock = std::chrono::steady_clock;

struct NodeOptions {
  int32_t rank = 0;
  int32_t world = 1;
  std::shared_ptr<Store> store;  // may be null for world 1
  std::string job;
  std::chrono::milliseconds deadline{60'000};
};

// What a rank is doing, published before the first signal of a call so that peers can tell a mismatch from a wait.
struct CallRecord {
  uint64_t sequence = 0;  // 1-based; 0: none yet
  uint32_t kind = 0;
  uint32_t group = 0;
  uint64_t mask_hash = 0;  // of everything else that must agree (gradient mask, dtype, accumulate, alpha)
};

class Node {
 public:
  // Meets the other ranks: sockets, credentials, pidfds. Collective. Throws Error(timeout | peer_lost | mismatch |
  // system).
  explicit Node(const NodeOptions& options);
  ~Node();  // never blocks
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  int32_t rank() const;
  int32_t world() const;

  // All-gather of small blobs (up to 64 MiB each) over the sockets, by rank. Collective.
  std::vector<std::string> exchange(const std::string& mine);

  // Creates and maps one window of `window_bytes` a rank, one node-shared memory of `shared_bytes`, and `counters`
  // counters for every (consumer, producer) pair, all zero-filled with space reserved. Collective, once. Afterwards the
  // sockets' folder is gone. Throws Error(no_space) with sizes, on every rank, when any rank cannot.
  void map(int64_t window_bytes, int64_t shared_bytes, int32_t counters);

  std::byte* window(int32_t local) const;  // rank `local`'s window in this address space, page aligned
  std::byte* shared() const;

  // Counter `id` at rank `at`, incremented by rank `from` only.
  std::atomic<uint64_t>& counter(int32_t at, int32_t id, int32_t from) const;

  // Wakes rank `at` if it sleeps in sleep(). Call after incrementing one of its counters (release order).
  void ring(int32_t at);

  // The doorbell protocol: read doorbell(), look at every counter of interest, and if nothing moved sleep(value):
  // returns when the bell was rung since, a slice of time passed, or the deadline. Does not spin.
  uint32_t doorbell() const;
  void sleep(uint32_t seen, Clock::time_point deadline);

  // Throws Error(aborted) with the culprit's sentence if any rank aborted, Error(peer_lost) naming the rank if one died
  // or left, Error(closed) in a forked child. Cheap enough to call at every wake-up; `thorough` also polls the pidfds.
  void check(bool thorough);

  // Marks the session dead on every rank, with a code and a sentence (cut to 480 bytes), and wakes all. Keeps the
  // first.
  void abort(ErrorCode code, std::string_view sentence);

  void publish(const CallRecord& record);
  CallRecord published(int32_t at, uint64_t sequence) const;  // sequence 0 if overwritten or not there yet

  // Leaves together: returns once every rank has called it, or throws Error(timeout | peer_lost). Idempotent.
  void leave();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tide::fabric
