// All-gather on one node: every rank writes its pieces at their final addresses in the landing (paper 3.1).
//
// Bytes a rank: S written once into a node-shared landing, L*S into private landings; nothing is staged or packed.
// Rounds: one. Copies: at most one a tensor. Signals: L-1 out, waits: 2(L-1).
//
//   gather  wait released[j] for every peer j     the slot's last readers have left
//           copy | cast each piece -> landing     (move only)
//           signal arrived -> node
//           wait arrived[j] for every peer j
#include "fmt/format.h"
#include "program/issue.h"
#include "tide/collectives.h"
#include "tide/error.h"

namespace tide {
namespace {

void write_pieces(Program& program, const Space& space, const Layout& layout, const Space::GroupPlace& place) {
  const auto params = layout.params();
  for (size_t p = 0; p < params.size(); ++p) {
    const ParamLayout& param = params[p];
    const int64_t shard_item = itemsize(param.shard_dtype);
    Ref source{place.shards, param.packed_shard_base};
    if (place.shards < 0) {
      source = {add_call_region(program, param.padded_elements() * shard_item, shard_item), 0};
    }
    const int64_t bytes = param.valid_elements(program.rank) * itemsize(param.gather_dtype);
    if (bytes == 0) continue;
    Operation op;
    op.kind = param.shard_dtype == param.gather_dtype ? OpKind::copy : OpKind::cast;
    op.queue = space.gather;
    op.to = {Reach::node, 0};
    op.src_dtype = param.shard_dtype;
    op.dst_dtype = param.gather_dtype;
    op.src = source;
    op.dst = {place.landing, param.landing(program.rank)};
    op.shape = {1, bytes, 0, 0};
    program.ops.push_back(op);
  }
}

}  // namespace

Program all_gather(const Plan& plan, const Space& space, const Layout& layout, int32_t group, int32_t rank,
                   Pieces pieces) {
  const bool home = plan.landing == Landing::home;
  if (pieces == Pieces::keep && !home && plan.landing != Landing::resident) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("pieces of group '{}' cannot be kept in a {} landing, other groups use its slot: move them",
                            layout.group().name, name(plan.landing)));
  }
  const Space::GroupPlace& place = space.groups[static_cast<size_t>(group)];
  Program program = start_program(Collective::all_gather, plan, space, rank);
  // The next write to a home landing is the optimizer's, which the reduce-scatter orders behind every reader.
  for (int32_t j = 0; j < plan.local && !home; ++j) {
    if (j != rank) wait(program, space.gather, j, place.released);
  }
  if (pieces == Pieces::move && !home) write_pieces(program, space, layout, place);
  if (plan.local > 1) signal(program, space.gather, {Reach::node, 0}, space.arrived);
  for (int32_t j = 0; j < plan.local; ++j) {
    if (j != rank) wait(program, space.gather, j, space.arrived);
  }
  return program;
}

}  // namespace tide
