// Plans: the choices that shape programs and memory, but never results.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tide/layout.h"
#include "tide/program.h"

namespace tide {

// Where gathered parameters stand on a host.
enum class Landing : uint8_t {
  ring,          // node-shared slots, taken in turn by the groups; a slot holds one group at a time
  resident,      // a node-shared landing of its own for every group; unchanged shards need no second move
  home,          // shards live in the node-shared landing; a gather moves nothing. One node, no cast
  private_copy,  // a ring of slots in every rank, for code that writes to gathered parameters ("private" in files)
};
std::string_view name(Landing landing);
Landing parse_landing(std::string_view text);  // throws Error(invalid_argument)

struct Plan {
  int32_t version = 1;
  int32_t nodes = 1;  // M; this form plans one node
  int32_t local = 1;  // L
  Landing landing = Landing::resident;
  int32_t ring_depth = 3;            // slots of ring and private landings
  int64_t alignment = 256;           // A
  int64_t chunk_bytes = 256 * 1024;  // staging of one contribution, in gradient bytes
  int32_t staging_slots = 2;         // chunks in flight at an owner
  int32_t passes = 1;                // sweeps over the output that a reduce-scatter is cut into
};

// Checks every field; throws Error(invalid_argument) or Error(unsupported) naming field and value.
void check(const Plan& plan);

// One session's memory, counters and queues: what its programs name. A pure function of (plan, layouts), so every rank
// and every tool derives the same tables.
struct Space {
  std::vector<Region> regions;  // rank and node scope only
  std::vector<Counter> counters;
  std::vector<Queue> queues;

  struct GroupPlace {
    RegionId landing = -1;    // region that holds the group's landing, at offset 0
    RegionId shards = -1;     // rank-scope region of the resident packed shards; -1: shards are bound per call
    CounterId released = -1;  // of the landing's slot
  };
  std::vector<GroupPlace> groups;  // one a layout
  RegionId staging = -1;           // rank scope: staging_slots x (L-1) blocks of chunk_bytes
  CounterId arrived = -1;          // all-gather: pieces of `from` are in place
  CounterId staged = -1;           // reduce-scatter: a chunk of `from` is in this rank's staging
  CounterId drained = -1;          // reduce-scatter: owner `from` has read this rank's chunk, its block is free
  CounterId opened = -1;           // reduce-scatter: owner `from` has finished its call, its staging is free (primed)
  QueueId gather = 0;
  QueueId push = 1;
  QueueId sum = 2;
};

// `resident_shards[g]`: the group's shards live in a region of the session (home landings need none).
// Throws Error(unsupported) for home with a cast. Layout worlds must equal nodes*local and alignments the plan's.
Space make_space(const Plan& plan, std::span<const Layout> layouts, const std::vector<bool>& resident_shards);

// Bytes that the session's regions take on one node: node-scope once, rank-scope for each local rank.
int64_t node_bytes(const Plan& plan, const Space& space);

// FNV-1a over names, shapes, dtypes, trainability and options of a layout: what ranks compare at registration.
uint64_t fingerprint(const Layout& layout);
uint64_t fingerprint(const Plan& plan);

// JSON. `layouts` gives the per-group account (bytes, landing, descriptors); parse checks version, unknown fields and
// that the plan was made for these groups. Throws Error(invalid_argument) with field and value.
std::string to_json(const Plan& plan, std::span<const Layout> layouts);
Plan parse_plan(std::string_view json, std::span<const Layout> layouts);

}  // namespace tide
