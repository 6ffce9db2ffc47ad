// Unix sockets between processes of one user, with deadlines, frames and descriptors.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/descriptor.h"
#include "tide/error.h"

namespace tide::fabric {

// How long and how a wait on a socket waits.
struct Patience {
  std::chrono::steady_clock::time_point deadline;
  std::function<void()> watch;        // called at least every 50 ms; throws what ends the wait early; may be empty
  std::function<std::string()> late;  // the sentence of Error(timeout)
};

// Milliseconds of one slice of a wait that ends at `deadline`: for poll().
int slice_ms(std::chrono::steady_clock::time_point deadline);

// The peer has closed, or ended. Apart from Error, so that a caller who knows more can say more.
struct Closed {};

Descriptor listen_at(const std::string& path, int backlog);

// A waiting connection of this user, or an empty descriptor when there is none; connections of other users are closed.
Descriptor accept_from(const Descriptor& listener);

// Empty when nobody listens there. Throws Error(system) if another user does.
Descriptor connect_to(const std::string& path, const Patience& patience);

// Waits until `fd` has one of `events`.
void wait_ready(int fd, short events, const Patience& patience);

// Whole buffers. Descriptors travel with the first byte. Throw Closed.
void send_bytes(const Descriptor& socket, std::string_view bytes, std::span<const int> descriptors,
                const Patience& patience);
struct Received {
  std::vector<Descriptor> descriptors;
  bool descriptors_lost = false;  // this process had no room for them
};
void receive_bytes(const Descriptor& socket, std::span<char> bytes, Received& received, const Patience& patience);

// What can be had at once, at most `bytes`; 0: nothing yet. Throws Closed.
size_t receive_some(const Descriptor& socket, std::span<char> bytes, Received& received);
// What can be sent at once. Throws Closed.
size_t send_some(const Descriptor& socket, std::string_view bytes, std::span<const int> descriptors);

struct Frame {
  uint32_t kind = 0;
  std::string payload;
  Received received;
};

void send_frame(const Descriptor& socket, uint32_t kind, std::span<const std::string_view> payload,
                std::span<const int> descriptors, const Patience& patience);

// Throws Error(mismatch) for what is no frame or is longer than `most` bytes, Error(no_space), Closed.
Frame receive_frame(const Descriptor& socket, uint64_t most, const Patience& patience);

// `bytes` random bytes as lower-case hexadecimal digits.
std::string random_hex(size_t bytes);

}  // namespace tide::fabric
