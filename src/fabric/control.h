// What the ranks of a node tell each other through a small shared memory, from the moment they meet: who is there, who
// is lost, why the session was aborted, what everybody is doing, and the bells that wake sleepers.
//
// Nothing read here is used as a bound or an offset without a check.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "fabric/node.h"
#include "fabric/window.h"

namespace tide::fabric {

enum class Presence : uint32_t {
  absent,   // has not arrived yet
  present,  // at work
  leaving,  // has called leave(); it stays so after a successful leave()
  dropped,  // destroyed without having left
};

enum class Loss : uint32_t { none, died, dropped, left };

class Control {
 public:
  static int64_t bytes(int32_t world);

  Control() = default;
  Control(Window window, int32_t rank, int32_t world);  // over zero-filled memory of bytes(world)

  explicit operator bool() const { return window_.data() != nullptr; }

  // Presence. Each change rings everybody who could wait for it.
  Presence presence(int32_t at) const;
  void arrive(int32_t at);
  void depart(Presence how);
  bool somebody_departed() const;

  // The first loss that any rank has seen, so that all name the same one.
  struct Lost {
    Loss loss = Loss::none;
    int32_t rank = 0;
  };
  void report_lost(Loss loss, int32_t at);
  Lost lost() const;

  // The abort of the session: the first one is kept.
  struct Abort {
    int32_t rank = 0;
    ErrorCode code = ErrorCode::system;
    std::string sentence;
  };
  void abort(ErrorCode code, std::string_view sentence);
  bool aborted() const;
  std::optional<Abort> abort_record() const;

  // Set-up steps that a rank has begun: tells who is missing in one.
  void begin_step();
  uint32_t steps(int32_t at) const;

  void publish(const CallRecord& record);
  CallRecord published(int32_t at, uint64_t sequence) const;
  uint64_t last_published(int32_t at) const;

  // Bells.
  uint32_t doorbell() const;
  void ring(int32_t at);
  void ring_all();
  void sleep(uint32_t seen, std::chrono::nanoseconds limit);

 private:
  struct Header;
  struct Seat;
  Header& header() const;
  Seat& seat(int32_t at) const;

  Window window_;
  int32_t rank_ = 0;
  int32_t world_ = 0;
};

}  // namespace tide::fabric
