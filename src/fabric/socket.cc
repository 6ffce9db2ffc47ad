#include "fabric/socket.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <thread>

#include "fabric/os_error.h"
#include "fmt/format.h"

namespace tide::fabric {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kSlice{50};
constexpr size_t kMostDescriptors = 8;

struct FrameHeader {
  uint32_t magic = 0;
  uint32_t kind = 0;
  uint64_t bytes = 0;
};
constexpr uint32_t kFrameMagic = 0x54494446;

Descriptor open_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw os_error("open a unix socket", errno);
  return socket;
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("'{}' is no path of a socket: it has to have 1 to {} bytes",
                                                         path, sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

bool of_this_user(const Descriptor& socket) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  return getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

void step(const Patience& patience) {
  if (patience.watch) patience.watch();
  if (Clock::now() >= patience.deadline) throw Error(ErrorCode::timeout, patience.late());
}

bool gone(int number) { return number == EPIPE || number == ECONNRESET || number == ENOTCONN; }

}  // namespace

int slice_ms(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp(left, milliseconds{0}, kSlice).count());
}

Descriptor listen_at(const std::string& path, int backlog) {
  Descriptor socket = open_socket();
  const sockaddr_un address = address_of(path);
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(socket.get(), backlog) != 0) {
    throw os_error(fmt::format("listen at {}", path), errno);
  }
  return socket;
}

Descriptor accept_from(const Descriptor& listener) {
  while (true) {
    Descriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket && of_this_user(socket)) return socket;
    if (socket || errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
    throw os_error("accept a connection", errno);
  }
}

Descriptor connect_to(const std::string& path, const Patience& patience) {
  Descriptor socket = open_socket();
  const sockaddr_un address = address_of(path);
  while (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == ENOENT || errno == ECONNREFUSED || errno == ENOTDIR) return {};
    // EAGAIN: the queue of the listener is full.
    if (errno != EAGAIN && errno != EINTR) throw os_error(fmt::format("connect to {}", path), errno);
    std::this_thread::sleep_for(milliseconds(2));
    step(patience);
  }
  if (!of_this_user(socket)) {
    throw Error(ErrorCode::system, fmt::format("another user listens at {}: remove it or name another folder in "
                                               "TIDE_RUNTIME_DIR",
                                               path));
  }
  return socket;
}

void wait_ready(int fd, short events, const Patience& patience) {
  while (true) {
    pollfd polled{fd, events, 0};
    const int ready = poll(&polled, 1, slice_ms(patience.deadline));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR && errno != EAGAIN) throw os_error("wait for a socket", errno);
    step(patience);
  }
}

size_t send_some(const Descriptor& socket, std::string_view bytes, std::span<const int> descriptors) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  const ssize_t sent = sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) return static_cast<size_t>(sent);
  // ETOOMANYREFS: too many descriptors on their way; receivers will take some.
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ETOOMANYREFS) return 0;
  if (gone(errno)) throw Closed{};
  throw os_error("send to a peer", errno);
}

size_t receive_some(const Descriptor& socket, std::span<char> bytes, Received& received) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
    if (gone(errno)) throw Closed{};
    throw os_error("receive from a peer", errno);
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      received.descriptors.emplace_back(fd);
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) received.descriptors_lost = true;
  if (got == 0 && !bytes.empty()) throw Closed{};
  return static_cast<size_t>(got);
}

void send_bytes(const Descriptor& socket, std::string_view bytes, std::span<const int> descriptors,
                const Patience& patience) {
  while (!bytes.empty()) {
    const size_t sent = send_some(socket, bytes, descriptors);
    if (sent == 0) {
      wait_ready(socket.get(), POLLOUT, patience);
      // A socket may be writable and yet take no descriptors.
      if (!descriptors.empty()) {
        step(patience);
        std::this_thread::sleep_for(milliseconds(1));
      }
      continue;
    }
    bytes.remove_prefix(sent);
    descriptors = {};
  }
}

void receive_bytes(const Descriptor& socket, std::span<char> bytes, Received& received, const Patience& patience) {
  while (!bytes.empty()) {
    const size_t got = receive_some(socket, bytes, received);
    if (got == 0) wait_ready(socket.get(), POLLIN, patience);
    bytes = bytes.subspan(got);
  }
}

void send_frame(const Descriptor& socket, uint32_t kind, std::span<const std::string_view> payload,
                std::span<const int> descriptors, const Patience& patience) {
  FrameHeader header{kFrameMagic, kind, 0};
  for (const std::string_view part : payload) header.bytes += part.size();
  send_bytes(socket, {reinterpret_cast<const char*>(&header), sizeof(header)}, descriptors, patience);
  for (const std::string_view part : payload) send_bytes(socket, part, {}, patience);
}

Frame receive_frame(const Descriptor& socket, uint64_t most, const Patience& patience) {
  FrameHeader header;
  Frame frame;
  receive_bytes(socket, {reinterpret_cast<char*>(&header), sizeof(header)}, frame.received, patience);
  if (header.magic != kFrameMagic || header.bytes > most) {
    throw Error(ErrorCode::mismatch, fmt::format("a peer sent a frame of {} bytes and mark {:#x}, at most {} bytes and "
                                                 "mark {:#x} were expected: run the same build on every rank",
                                                 header.bytes, header.magic, most, kFrameMagic));
  }
  try {
    frame.payload.resize(header.bytes);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::no_space, fmt::format("no memory for a message of {} bytes from a peer", header.bytes));
  }
  frame.kind = header.kind;
  receive_bytes(socket, frame.payload, frame.received, patience);
  return frame;
}

std::string random_hex(size_t bytes) {
  std::string hex;
  while (hex.size() < 2 * bytes) {
    unsigned char byte = 0;
    if (getrandom(&byte, 1, 0) == 1) {
      hex += fmt::format("{:02x}", byte);
    } else if (errno != EINTR) {
      throw os_error("get random bytes", errno);
    }
  }
  return hex;
}

}  // namespace tide::fabric
