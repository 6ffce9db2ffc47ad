#include <algorithm>

#include "fmt/format.h"
#include "tide/error.h"
#include "tide/plan.h"

namespace tide {
namespace {

constexpr int64_t kPage = 4096;

void check_layout(const Plan& plan, const Layout& layout) {
  const int64_t world = int64_t{plan.nodes} * plan.local;
  if (layout.world() != world) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("group '{}' is laid out for world {}, the plan has {} x {} ranks: lay it out again",
                            layout.group().name, layout.world(), plan.nodes, plan.local));
  }
  if (layout.options().alignment != plan.alignment) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("group '{}' is laid out with alignment {}, the plan has {}: lay it out again",
                            layout.group().name, layout.options().alignment, plan.alignment));
  }
  if (plan.landing != Landing::home) return;
  const auto params = layout.params();
  for (size_t p = 0; p < params.size(); ++p) {
    if (params[p].shard_dtype == params[p].gather_dtype) continue;
    throw Error(
        ErrorCode::unsupported,
        fmt::format("landing home keeps shards where they are gathered, so it cannot cast '{}' of group '{}' from "
                    "{} to {}: choose landing resident or ring",
                    layout.group().tensors[p].name, layout.group().name, name(params[p].shard_dtype),
                    name(params[p].gather_dtype)));
  }
}

}  // namespace

Space make_space(const Plan& plan, std::span<const Layout> layouts, const std::vector<bool>& resident_shards) {
  check(plan);
  if (resident_shards.size() != layouts.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("resident_shards has {} entries for {} groups: give one a group", resident_shards.size(),
                            layouts.size()));
  }
  for (const Layout& layout : layouts) check_layout(plan, layout);

  Space space;
  space.queues = {{"gather"}, {"push"}, {"sum"}};
  const auto add_region = [&](Scope scope, int64_t bytes) {
    space.regions.push_back({scope, bytes, kPage});
    return static_cast<RegionId>(space.regions.size() - 1);
  };
  const auto add_counter = [&](std::string name, int64_t primed) {
    space.counters.push_back({std::move(name), primed});
    return static_cast<CounterId>(space.counters.size() - 1);
  };

  space.arrived = add_counter("arrived", 0);
  space.staged = add_counter("staged", 0);
  space.drained = add_counter("drained", 0);
  space.opened = add_counter("opened", 1);
  space.staging = add_region(Scope::rank, plan.staging_slots * int64_t{plan.local - 1} * plan.chunk_bytes);

  const bool slots = plan.landing == Landing::ring || plan.landing == Landing::private_copy;
  const Scope scope = plan.landing == Landing::private_copy ? Scope::rank : Scope::node;
  const size_t depth = slots ? std::min<size_t>(static_cast<size_t>(plan.ring_depth), layouts.size()) : layouts.size();
  std::vector<Space::GroupPlace> landings;
  for (size_t slot = 0; slot < depth; ++slot) {
    int64_t bytes = 0;
    for (size_t g = slot; g < layouts.size(); g += depth) bytes = std::max(bytes, layouts[g].landing_bytes());
    const std::string counter = slots ? fmt::format("released slot {}", slot) : fmt::format("released group {}", slot);
    landings.push_back({add_region(scope, bytes), -1, add_counter(counter, 1)});
  }
  for (size_t g = 0; g < layouts.size(); ++g) {
    Space::GroupPlace place = landings[g % depth];
    if (resident_shards[g] && plan.landing != Landing::home) {
      place.shards = add_region(Scope::rank, layouts[g].packed_shard_bytes());
    }
    space.groups.push_back(place);
  }
  return space;
}

int64_t node_bytes(const Plan& plan, const Space& space) {
  int64_t bytes = 0;
  for (const Region& region : space.regions) bytes += region.bytes * (region.scope == Scope::rank ? plan.local : 1);
  return bytes;
}

}  // namespace tide
