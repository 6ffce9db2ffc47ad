// Programs: what one rank does in one collective call, as pure data.
//
// A program is a list of operations in the rank's total issue order. Each operation belongs to a queue; queues run in
// order and concurrently with each other, and they outlive calls, as streams do. The laws that every builder keeps
// and the verifier checks are in docs/design.md:
//   1 a program is immutable, and a Binding supplies addresses and counter bases for one call;
//   2 a counter has one producing and one consuming queue, and every increment is awaited once, in order;
//   3 counters only grow, waits are only >=, and there is no branch;
//   4 ranks that execute strictly in issue order do not deadlock;
//   5 nothing is assumed of bytes that an earlier call left;
//   6 a rail put is one contiguous range with one signal.
// Sizes and offsets are bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tide/dtype.h"

namespace tide {

enum class OpKind : uint8_t {
  copy,    // dst <- src, the same bytes
  cast,    // dst <- convert(src, src_dtype -> dst_dtype), round to nearest even
  put,     // copy to a rail peer's window (several nodes)
  signal,  // counter at `to` += 1, after every earlier operation of this queue is visible to `to`
  wait,    // blocks the queue until this rank's `counter` has grown by n more than all earlier waits on it asked for
  sum,     // dst (f32) <- [acc ? dst : 0] + alpha * fold of sources in order, each widened to f32
  land,    // dst (f32) <- fold of f32 node partials (several nodes)
  zero,    // dst <- 0
  record,  // marks event `counter` of this rank, after every earlier operation of this queue
  join,    // blocks the queue until event `counter` of this rank is recorded in this call
};

enum class Reach : uint8_t { self, local, node, rail };

// Whose memory `dst` (or whose counter) an operation addresses; for a wait, whose signals it takes. `node` is every
// local rank, the rank itself included for copies into private landings and left out for signals.
// Sources are always the rank's own view.
struct Target {
  Reach reach = Reach::self;
  int32_t index = 0;  // local rank for `local`, node for `rail`; 0 otherwise
};

using RegionId = int32_t;
using CounterId = int32_t;
using QueueId = int32_t;

// Who owns the bytes of a region.
enum class Scope : uint8_t {
  call,  // supplied by the binding of each call; private to the rank
  rank,  // in the rank's window: one instance a rank, reachable by its local peers
  node,  // in the node's window: one instance that all local ranks share
};

struct Region {
  Scope scope = Scope::call;
  int64_t bytes = 0;
  int64_t alignment = 1;
};

struct Ref {
  RegionId region = -1;
  int64_t offset = 0;  // bytes
};

// `rows` runs of `row_bytes` destination bytes. Pitches are between the starts of runs.
// One run (rows == 1) ignores the pitches. For cast and sum row_bytes counts destination bytes; source bytes follow
// from the dtypes.
struct Shape {
  int64_t rows = 1;
  int64_t row_bytes = 0;
  int64_t src_pitch = 0;
  int64_t dst_pitch = 0;
};

struct Operation {
  OpKind kind = OpKind::copy;
  QueueId queue = 0;
  Target to;
  DType src_dtype = DType::u8;
  DType dst_dtype = DType::u8;
  Ref dst;
  Ref src;  // copy, cast, put
  Shape shape;
  int32_t first_source = 0;  // sum, land: sources[first_source, first_source + source_count), in fold order
  int32_t source_count = 0;
  CounterId counter = -1;  // signal, wait: counter; record, join: event
  int64_t n = 0;           // signal: 1; wait: increments it takes
};

// A counter of the communicator. There is one instance at every consumer for every producing local rank ("from"), so
// `counter` c from local rank j at local rank i has exactly one producer and one consumer.
struct Counter {
  std::string name;
  int64_t primed = 0;  // value at the start of the session: credits that need no earlier signal
};

struct Queue {
  std::string name;
  bool after_caller = true;  // starts behind what the caller did before the call
  bool completes = true;     // the call completes only when this queue's operations have
};

enum class Collective : uint8_t { all_gather, release, reduce_scatter };
std::string_view name(Collective collective);
std::string_view name(OpKind kind);
std::string_view name(Reach reach);
std::string_view name(Scope scope);

struct Program {
  Collective collective = Collective::all_gather;
  int32_t nodes = 1;  // M
  int32_t local = 1;  // L
  int32_t rank = 0;
  // Region table: first the session's own regions (the same ids in every program of the session), from
  // `first_call_region` on the call-scope ones that a Binding supplies.
  std::vector<Region> regions;
  RegionId first_call_region = 0;
  std::vector<Operation> ops;  // in issue order
  std::vector<Ref> sources;    // operands of sum and land
  int32_t events = 0;          // record/join indices are below this
};

// What changes from call to call. Counter bases are kept by whoever runs programs: a finished call adds its totals.
struct Binding {
  // One base address for each call-scope region of the program, in region order: for an all-gather the shards (one a
  // tensor of the group), for a reduce-scatter the gradients (one a tensor) and then the packed fp32 output. Null for a
  // region of no bytes. Owned by the caller, untouched after the call completes.
  std::span<std::byte* const> call_regions;
  float alpha = 1.0F;       // sum: scales the fold
  bool accumulate = false;  // sum: adds to what the output holds, after alpha
};

}  // namespace tide
