// Sessions: the collectives of one model, between the processes of one machine.
//
//   Session session({.rank = r, .world = n, .store = store});
//   auto layer = session.register_group(group, {});
//   session.commit();
//   session.all_gather(layer, shards);              // session.landing(layer, p) now holds tensor p, whole
//   session.release(layer);
//   session.reduce_scatter(layer, grads, out, {.alpha = 1.0F / n});
//   session.close();
//
// Collective: commit, all_gather, reduce_scatter and close, called by every rank in the same order. Calls are made by
// one thread at a time, any thread. Every wait ends by the deadline. After an error of a collective the session is
// dead: later calls throw Error(aborted) and only destruction is left, which never blocks.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tide/dtype.h"
#include "tide/layout.h"
#include "tide/plan.h"

namespace tide {

// A key-value store that all ranks of a job share, given by the caller (torchrun's, MPI's, or the launcher's).
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits until the key exists. Throws Error(timeout) naming the key.
  virtual std::string get(const std::string& key, std::chrono::milliseconds deadline) = 0;
};

// A store for ranks that are threads of one process. Thread-safe.
std::shared_ptr<Store> make_thread_store();

// The store of `tide launch`: a server in the launcher, clients that find it by TIDE_STORE.
// Throws Error(invalid_argument) when the variable is missing.
std::shared_ptr<Store> connect_launcher_store();

struct SessionOptions {
  int32_t rank = 0;
  int32_t world = 1;
  std::shared_ptr<Store> store;                // may be null for world 1
  std::string job = "tide";                    // key prefix: distinct for every session that shares a store
  Plan plan;                                   // rank 0's is used; nodes and local are set from world
  std::chrono::milliseconds deadline{60'000};  // of every wait
};

struct GroupOptions {
  bool cast = false;
  DType gather_dtype = DType::bf16;
  bool resident_shards = false;  // the session holds the shards; see shard_memory()
};

struct ReduceOptions {
  DType grad_dtype = DType::bf16;
  float alpha = 1.0F;
  bool accumulate = false;
};

using GroupId = int32_t;

struct GroupStats {
  int64_t gathers = 0, kept = 0, reduces = 0;
  int64_t bytes_moved = 0;  // written by this rank into landings and staging
  double wait_seconds = 0;  // of this rank, asleep or spinning for peers
};

class Session {
 public:
  explicit Session(SessionOptions options);
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  // Local. Throws Error(invalid_argument) for a bad group or a name used before; only before commit().
  GroupId register_group(const Group& group, const GroupOptions& options);

  // Meets the other ranks, compares every group and option, maps the memory. Throws Error(mismatch) on every rank when
  // any two differ, naming the first difference.
  void commit();

  // Shards: one pointer a tensor, padded_rows*row_elements of shard_dtype of which the valid rows are read; null for
  // tensors without rows here. Empty span for resident shards. `unchanged`: this rank's shards are what they were at
  // its previous gather of this group, so they need not move again where the landing still holds them. On return
  // landing() holds every tensor until release().
  void all_gather(GroupId group, std::span<const void* const> shards, bool unchanged = false);
  void release(GroupId group);

  // Grads: one pointer a tensor, contiguous unsharded rows of grad_dtype; null where there is none (the same on every
  // rank). `out`: packed_elements(layout, present) floats, padding written as zero. Caller's memory.
  void reduce_scatter(GroupId group, std::span<const void* const> grads, float* out, const ReduceOptions& options);

  // Address of tensor `param`, unsharded and contiguous; fixed for the life of the session.
  void* landing(GroupId group, int64_t param) const;
  // Resident shards (and home landings): where this rank's shard of `param` lives.
  void* shard_memory(GroupId group, int64_t param) const;

  const Layout& layout(GroupId group) const;
  const Plan& plan() const;
  GroupStats stats(GroupId group) const;
  int64_t memory_bytes() const;  // of the node: see node_bytes()

  // Leaves together with the others, within the deadline. Idempotent.
  void close();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tide
