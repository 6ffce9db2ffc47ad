#include "verify/memory.h"

#include "fmt/format.h"

namespace tide::verify {

bool moves(OpKind kind) { return kind == OpKind::copy || kind == OpKind::cast || kind == OpKind::put; }

bool writes(OpKind kind) { return moves(kind) || kind == OpKind::sum || kind == OpKind::land || kind == OpKind::zero; }

int64_t source_row_bytes(const Operation& op) {
  if (op.kind == OpKind::cast || op.kind == OpKind::sum) {
    return op.shape.row_bytes / itemsize(op.dst_dtype) * itemsize(op.src_dtype);
  }
  return op.shape.row_bytes;
}

Memory::Memory(const Ensemble& ensemble) : ensemble_(ensemble), world_(ensemble.world()) {
  for (const Region& region : ensemble.space.regions) {
    for (int32_t rank = 0; rank < world_; ++rank) {
      // Keeps the numbering regular; only the first instance of a node region is ever named.
      add(region.scope, region.bytes);
    }
  }
  for (size_t g = 0; g < ensemble.layouts.size(); ++g) {
    const Layout& layout = ensemble.layouts[g];
    const std::vector<bool>& present = ensemble.programs[g].present;
    const auto params = layout.params();
    shards_.push_back(places());
    for (int32_t rank = 0; rank < world_; ++rank) {
      for (const ParamLayout& param : params) add(Scope::call, param.padded_elements() * itemsize(param.shard_dtype));
    }
    gradients_.push_back(places());
    for (int32_t rank = 0; rank < world_; ++rank) {
      for (size_t p = 0; p < params.size(); ++p) {
        const bool reduced = params[p].trainable && (present.empty() || present[p]);
        add(Scope::call, reduced ? params[p].elements() * itemsize(ensemble.grad_dtype) : 0);
      }
    }
    outputs_.push_back(places());
    for (int32_t rank = 0; rank < world_; ++rank) {
      add(Scope::call, packed_elements(layout, present) * int64_t{sizeof(float)});
    }
  }
}

PlaceId Memory::add(Scope scope, int64_t bytes) {
  scopes_.push_back(scope);
  bytes_.push_back(bytes);
  return places() - 1;
}

PlaceId Memory::session(RegionId region, int32_t rank) const {
  const bool shared = ensemble_.space.regions[static_cast<size_t>(region)].scope == Scope::node;
  return region * world_ + (shared ? 0 : rank);
}

PlaceId Memory::landing(int32_t group, int32_t rank) const {
  return session(ensemble_.space.groups[static_cast<size_t>(group)].landing, rank);
}

Spot Memory::shard(int32_t group, int32_t rank, int64_t param) const {
  const size_t g = static_cast<size_t>(group);
  const ParamLayout& layout = ensemble_.layouts[g].params()[static_cast<size_t>(param)];
  if (ensemble_.plan.landing == Landing::home) return {landing(group, rank), layout.landing(rank)};
  const RegionId resident = ensemble_.space.groups[g].shards;
  if (resident >= 0) return {session(resident, rank), layout.packed_shard_base};
  const int32_t params = static_cast<int32_t>(ensemble_.layouts[g].params().size());
  return {shards_[g] + rank * params + static_cast<int32_t>(param), 0};
}

PlaceId Memory::gradient(int32_t group, int32_t rank, int64_t param) const {
  const size_t g = static_cast<size_t>(group);
  const int32_t params = static_cast<int32_t>(ensemble_.layouts[g].params().size());
  return gradients_[g] + rank * params + static_cast<int32_t>(param);
}

PlaceId Memory::output(int32_t group, int32_t rank) const { return outputs_[static_cast<size_t>(group)] + rank; }

Spot Memory::at(const Program& program, int32_t group, const Ref& ref, int32_t window) const {
  if (ref.region < program.first_call_region) return {session(ref.region, window), ref.offset};
  const size_t g = static_cast<size_t>(group);
  const int32_t params = static_cast<int32_t>(ensemble_.layouts[g].params().size());
  const int32_t k = ref.region - program.first_call_region;
  if (program.collective == Collective::all_gather) return {shards_[g] + program.rank * params + k, ref.offset};
  if (k == params) return {output(group, program.rank), ref.offset};
  return {gradient(group, program.rank, k), ref.offset};
}

std::vector<Spot> Memory::destinations(const Program& program, int32_t group, const Operation& op) const {
  if (op.to.reach == Reach::local) return {at(program, group, op.dst, op.to.index)};
  const bool everywhere = op.to.reach == Reach::node && op.dst.region < program.first_call_region &&
                          program.regions[static_cast<size_t>(op.dst.region)].scope == Scope::rank;
  if (!everywhere) return {at(program, group, op.dst, program.rank)};
  std::vector<Spot> spots;
  for (int32_t window = 0; window < program.local; ++window) spots.push_back(at(program, group, op.dst, window));
  return spots;
}

std::string Memory::name(PlaceId place) const {
  const int32_t session_places = static_cast<int32_t>(ensemble_.space.regions.size()) * world_;
  if (place < session_places) {
    const RegionId region = place / world_;
    std::string what = fmt::format("region {}", region);
    if (region == ensemble_.space.staging) what = "staging";
    for (size_t g = 0; g < ensemble_.space.groups.size(); ++g) {
      if (ensemble_.space.groups[g].landing == region) {
        what = fmt::format("the landing of group {}", g);
        break;
      }
      if (ensemble_.space.groups[g].shards == region) what = fmt::format("the shards of group {}", g);
    }
    if (ensemble_.space.regions[static_cast<size_t>(region)].scope == Scope::node) return what;
    return fmt::format("{} of rank {}", what, place % world_);
  }
  size_t g = ensemble_.layouts.size() - 1;
  while (shards_[g] > place) --g;
  if (place >= outputs_[g]) return fmt::format("the output of group {} of rank {}", g, place - outputs_[g]);
  const Group& group = ensemble_.layouts[g].group();
  const int32_t params = static_cast<int32_t>(group.tensors.size());
  const bool gradient = place >= gradients_[g];
  const int32_t index = place - (gradient ? gradients_[g] : shards_[g]);
  return fmt::format("the {} of '{}' of group {} of rank {}", gradient ? "gradient" : "shard",
                     group.tensors[static_cast<size_t>(index % params)].name, g, index / params);
}

}  // namespace tide::verify
