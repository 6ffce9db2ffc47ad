// The key-value store that `tide launch` serves to the processes it starts, on a unix socket in a private folder.
// Clients: connect_launcher_store() of tide/session.h.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace tide::fabric {

// Of one key, and of one value.
inline constexpr size_t kMostStoreBytes = size_t{16} << 20;

class StoreServer {
 public:
  StoreServer();   // listens: clients may connect and wait
  ~StoreServer();  // ends the thread, closes all connections and removes the folder
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // Answers from now on, in a thread of its own, which takes no signals. Apart from the constructor, so that a launcher
  // can fork before it has threads.
  void serve();

  // For the variable TIDE_STORE.
  const std::string& address() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tide::fabric
