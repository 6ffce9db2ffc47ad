#include <cstdlib>
#include <cstring>

#include "fabric/launcher_store.h"
#include "fabric/socket.h"
#include "fabric/store_wire.h"
#include "fmt/format.h"
#include "tide/error.h"
#include "tide/session.h"

namespace tide {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSetDeadline{30'000};
// So that the server, which knows whether the key exists, is the one to say that the time is up.
constexpr std::chrono::milliseconds kMargin{1'000};

// A connection a call: threads do not wait for each other, and forked children inherit nothing.
class LauncherStore final : public Store {
 public:
  explicit LauncherStore(std::string path) : path_(std::move(path)) {}

  void set(const std::string& key, const std::string& value) override {
    const auto answer = call(fabric::StoreCall::set, key, value, kSetDeadline);
    if (answer.status == fabric::StoreStatus::ok) return;
    throw Error(ErrorCode::no_space, fmt::format("the launcher's store is full: it did not take {} bytes for key '{}'",
                                                 value.size(), shorten(key)));
  }

  std::string get(const std::string& key, std::chrono::milliseconds deadline) override {
    auto answer = call(fabric::StoreCall::get, key, {}, deadline);
    if (answer.status == fabric::StoreStatus::ok) return std::move(answer.value);
    throw Error(ErrorCode::timeout, late(key, deadline));
  }

 private:
  struct Answer {
    fabric::StoreStatus status;
    std::string value;
  };

  static std::string shorten(const std::string& key) { return key.size() <= 80 ? key : key.substr(0, 77) + "..."; }

  static std::string late(const std::string& key, std::chrono::milliseconds deadline) {
    return fmt::format("nobody set store key '{}' within {} ms: look at the other ranks, or give a longer deadline",
                       shorten(key), deadline.count());
  }

  Error lost() const {
    return Error(
        ErrorCode::peer_lost,
        fmt::format("the launcher's store at {} is gone: `tide launch` has ended; start the job again", path_));
  }

  Answer call(fabric::StoreCall what, const std::string& key, const std::string& value,
              std::chrono::milliseconds deadline) {
    for (const std::string* part : {&key, &value}) {
      if (part->size() <= fabric::kMostStoreBytes) continue;
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} bytes for store key '{}': keys and values have at most {} bytes", part->size(),
                              shorten(key), fabric::kMostStoreBytes));
    }
    const fabric::Patience patience{Clock::now() + deadline + kMargin, {}, [&] { return late(key, deadline); }};
    const fabric::Descriptor socket = fabric::connect_to(path_, patience);
    if (!socket) throw lost();
    fabric::StoreRequest request;
    request.call = what;
    request.key_bytes = key.size();
    request.value_bytes = value.size();
    request.deadline_ms = deadline.count();
    fabric::StoreAnswer header;
    fabric::Received nothing;
    try {
      fabric::send_bytes(socket, {reinterpret_cast<const char*>(&request), sizeof(request)}, {}, patience);
      fabric::send_bytes(socket, key, {}, patience);
      fabric::send_bytes(socket, value, {}, patience);
      fabric::receive_bytes(socket, {reinterpret_cast<char*>(&header), sizeof(header)}, nothing, patience);
      if (header.magic != fabric::kStoreMagic || header.bytes > fabric::kMostStoreBytes) {
        throw Error(ErrorCode::mismatch, fmt::format("whoever serves {} is not the launcher of this version: use the "
                                                     "same build everywhere",
                                                     path_));
      }
      Answer answer{header.status, std::string(header.bytes, '\0')};
      fabric::receive_bytes(socket, answer.value, nothing, patience);
      return answer;
    } catch (const fabric::Closed&) {
      throw lost();
    }
  }

  std::string path_;
};

}  // namespace

std::shared_ptr<Store> connect_launcher_store() {
  const char* address = std::getenv("TIDE_STORE");
  if (address == nullptr || *address == '\0') {
    throw Error(ErrorCode::invalid_argument,
                "TIDE_STORE is not set: start this program with `tide launch`, or give the "
                "session a store");
  }
  const std::string_view text = address;
  if (!text.starts_with(fabric::kStoreScheme) || text.size() == fabric::kStoreScheme.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("TIDE_STORE is '{}': it has the form unix:PATH, as `tide launch` sets it", text));
  }
  return std::make_shared<LauncherStore>(std::string(text.substr(fabric::kStoreScheme.size())));
}

}  // namespace tide
