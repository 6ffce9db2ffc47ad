#include "fabric/launcher_store.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>
#include <map>
#include <thread>
#include <vector>

#include "fabric/folder.h"
#include "fabric/os_error.h"
#include "fabric/socket.h"
#include "fabric/store_wire.h"

namespace tide::fabric {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostConnections = 4096;
constexpr size_t kMostHeld = size_t{1} << 30;  // bytes of all keys and values
constexpr int64_t kMostWaitMs = int64_t{7} * 24 * 3600 * 1000;

// A request that comes in, perhaps waits for its key, and goes out as an answer.
struct Connection {
  enum class State { reading, waiting, answering };

  Descriptor socket;
  State state = State::reading;
  StoreRequest request;
  size_t got = 0;    // of the request's header
  std::string body;  // key and value, as far as they have come
  Clock::time_point deadline;
  std::string answer;
  size_t sent = 0;

  std::string key() const { return body.substr(0, request.key_bytes); }
};

}  // namespace

struct StoreServer::Impl {
  Impl() : listener(listen_at(folder.socket_path(), 1024)), stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!stop) throw os_error("open an event", errno);
    address = std::string(kStoreScheme).append(folder.socket_path());
  }

  ~Impl() {
    if (!thread.joinable()) return;
    const uint64_t one = 1;
    (void)!write(stop.get(), &one, sizeof(one));
    thread.join();
  }

  void run() {
    while (true) {
      polled.clear();
      polled.push_back({stop.get(), POLLIN, 0});
      // Over the limit, or out of descriptors, newcomers wait in the queue of the listener.
      polled.push_back({connections.size() < kMostConnections && !exhausted ? listener.get() : -1, POLLIN, 0});
      Clock::time_point next = Clock::now() + std::chrono::seconds(1);
      for (const Connection& connection : connections) {
        polled.push_back({connection.socket.get(), events(connection), 0});
        if (connection.state == Connection::State::waiting) next = std::min(next, connection.deadline);
      }
      exhausted = false;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
      poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(left.count(), 0)));
      if (polled[0].revents != 0) return;
      size_t index = 2;
      for (auto it = connections.begin(); it != connections.end(); ++index) {
        it = advance(*it, polled[index].revents) ? std::next(it) : connections.erase(it);
      }
      if (polled[1].revents != 0) accept_all();
    }
  }

  static short events(const Connection& connection) {
    switch (connection.state) {
      case Connection::State::reading:
        return POLLIN;
      case Connection::State::waiting:
        return POLLRDHUP;
      case Connection::State::answering:
        return POLLOUT;
    }
    return 0;
  }

  void accept_all() {
    try {
      while (connections.size() < kMostConnections) {
        Descriptor socket = accept_from(listener);
        if (!socket) return;
        connections.emplace_back().socket = std::move(socket);
      }
    } catch (const Error&) {
      exhausted = true;
    }
  }

  // False when the connection is done with.
  bool advance(Connection& connection, short revents) {
    try {
      if (connection.state == Connection::State::reading && revents != 0) {
        if (!read(connection)) return false;
        revents = 0;
      }
      if (connection.state == Connection::State::waiting && !wait(connection, revents)) return false;
      return connection.state != Connection::State::answering || write_answer(connection);
    } catch (const Closed&) {
      return false;
    } catch (const Error&) {
      return false;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

  bool read(Connection& connection) {
    StoreRequest& request = connection.request;
    Received nothing;
    if (connection.got < sizeof(request)) {
      char* header = reinterpret_cast<char*>(&request);
      connection.got +=
          receive_some(connection.socket, {header + connection.got, sizeof(request) - connection.got}, nothing);
      if (connection.got < sizeof(request)) return true;
      if (request.magic != kStoreMagic || request.key_bytes > kMostStoreBytes ||
          request.value_bytes > kMostStoreBytes) {
        return false;
      }
    }
    const size_t whole = request.key_bytes + request.value_bytes;
    while (connection.body.size() < whole) {
      // Memory is taken as bytes come, not as they are promised.
      const size_t had = connection.body.size();
      connection.body.resize(std::min(whole, had + (size_t{256} << 10)));
      const size_t got =
          receive_some(connection.socket, {connection.body.data() + had, connection.body.size() - had}, nothing);
      connection.body.resize(had + got);
      if (got == 0) return true;
    }
    return act(connection);
  }

  bool act(Connection& connection) {
    if (connection.request.call == StoreCall::set) {
      set(connection);
      return true;
    }
    if (connection.request.call != StoreCall::get) return false;
    connection.state = Connection::State::waiting;
    connection.deadline =
        Clock::now() + std::chrono::milliseconds(std::clamp<int64_t>(connection.request.deadline_ms, 0, kMostWaitMs));
    return true;
  }

  void set(Connection& connection) {
    const std::string key = connection.key();
    const auto old = values.find(key);
    const size_t freed = old == values.end() ? 0 : key.size() + old->second.size();
    if (held - freed + connection.body.size() > kMostHeld) {
      answer(connection, StoreStatus::full, {});
      return;
    }
    held += connection.body.size() - freed;
    values[key] = connection.body.substr(connection.request.key_bytes);
    answer(connection, StoreStatus::ok, {});
    // Waiters are looked at again at once.
    for (Connection& other : connections) {
      if (other.state == Connection::State::waiting && other.key() == key) {
        answer(other, StoreStatus::ok, values[key]);
      }
    }
  }

  bool wait(Connection& connection, short revents) {
    if (const auto found = values.find(connection.key()); found != values.end()) {
      answer(connection, StoreStatus::ok, found->second);
    } else if (revents != 0) {
      return false;
    } else if (Clock::now() >= connection.deadline) {
      answer(connection, StoreStatus::timeout, {});
    }
    return true;
  }

  static void answer(Connection& connection, StoreStatus status, std::string_view value) {
    StoreAnswer header;
    header.status = status;
    header.bytes = value.size();
    connection.answer.assign(reinterpret_cast<const char*>(&header), sizeof(header));
    connection.answer += value;
    connection.state = Connection::State::answering;
  }

  static bool write_answer(Connection& connection) {
    const std::string_view left = std::string_view(connection.answer).substr(connection.sent);
    connection.sent += send_some(connection.socket, left, {});
    return connection.sent < connection.answer.size();
  }

  RuntimeFolder folder;
  Descriptor listener;
  Descriptor stop;
  std::string address;
  std::thread thread;

  std::list<Connection> connections;
  std::vector<pollfd> polled;
  std::map<std::string, std::string> values;
  size_t held = 0;
  bool exhausted = false;
};

StoreServer::StoreServer() : impl_(std::make_unique<Impl>()) {}

StoreServer::~StoreServer() = default;

void StoreServer::serve() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  impl_->thread = std::thread([this] { impl_->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

const std::string& StoreServer::address() const { return impl_->address; }

}  // namespace tide::fabric
