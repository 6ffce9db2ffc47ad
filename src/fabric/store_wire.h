// What a client of the launcher's store and its server say to each other: one request and one answer a connection.
#pragma once

#include <cstdint>
#include <string_view>

namespace tide::fabric {

inline constexpr std::string_view kStoreScheme = "unix:";
inline constexpr uint32_t kStoreMagic = 0x45524F53;

enum class StoreCall : uint32_t { set = 1, get = 2 };

// Followed by the key and, for set, the value.
struct StoreRequest {
  uint32_t magic = kStoreMagic;
  StoreCall call = StoreCall::get;
  uint64_t key_bytes = 0;
  uint64_t value_bytes = 0;
  int64_t deadline_ms = 0;  // of a get
};

enum class StoreStatus : uint32_t { ok = 0, timeout = 1, full = 2 };

// Followed by the value of a get.
struct StoreAnswer {
  uint32_t magic = kStoreMagic;
  StoreStatus status = StoreStatus::ok;
  uint64_t bytes = 0;
};

}  // namespace tide::fabric
