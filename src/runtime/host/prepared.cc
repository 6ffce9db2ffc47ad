#include "runtime/host/prepared.h"

#include <algorithm>

#include "fmt/format.h"
#include "tide/error.h"

namespace tide::host {
namespace {

// Throws unless `rows` runs of `row_bytes` from `ref` lie inside its region.
void check_range(const Program& program, size_t index, std::string_view what, Ref ref, const Shape& shape,
                 int64_t row_bytes, int64_t pitch) {
  const Operation& op = program.ops[index];
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::check_failed, fmt::format("operation {} ({}) of an {} program of rank {}: {} {}", index,
                                                     name(op.kind), name(program.collective), program.rank, what, why));
  };
  if (ref.region < 0 || static_cast<size_t>(ref.region) >= program.regions.size()) {
    refuse(fmt::format("names region {} of {}", ref.region, program.regions.size()));
  }
  const int64_t begin = ref.offset + (shape.rows > 1 ? std::min<int64_t>(0, (shape.rows - 1) * pitch) : 0);
  const int64_t end = ref.offset + row_bytes + (shape.rows > 1 ? std::max<int64_t>(0, (shape.rows - 1) * pitch) : 0);
  const int64_t bytes = program.regions[static_cast<size_t>(ref.region)].bytes;
  if (begin < 0 || end > bytes) {
    refuse(fmt::format("takes bytes {} to {} of region {}, which has {}", begin, end, ref.region, bytes));
  }
}

bool moves_bytes(OpKind kind) {
  return kind == OpKind::copy || kind == OpKind::cast || kind == OpKind::sum || kind == OpKind::zero;
}

void check_operation(const Space& space, const Program& program, size_t index) {
  const Operation& op = program.ops[index];
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    throw Error(code, fmt::format("operation {} ({}) of an {} program of rank {} {}", index, name(op.kind),
                                  name(program.collective), program.rank, why));
  };
  if (op.kind == OpKind::put || op.kind == OpKind::land || op.to.reach == Reach::rail) {
    refuse(ErrorCode::unsupported, "needs rails between nodes: run it on one node");
  }
  if (op.queue < 0 || static_cast<size_t>(op.queue) >= space.queues.size()) {
    refuse(ErrorCode::check_failed, fmt::format("is on queue {} of {}", op.queue, space.queues.size()));
  }
  if (op.to.reach == Reach::local && (op.to.index < 0 || op.to.index >= program.local)) {
    refuse(ErrorCode::check_failed, fmt::format("addresses local rank {} of {}", op.to.index, program.local));
  }
  if (op.kind == OpKind::record || op.kind == OpKind::join) {
    if (op.counter < 0 || op.counter >= program.events) {
      refuse(ErrorCode::check_failed, fmt::format("names event {} of {}", op.counter, program.events));
    }
    return;
  }
  if (op.kind == OpKind::signal || op.kind == OpKind::wait) {
    if (op.counter < 0 || static_cast<size_t>(op.counter) >= space.counters.size()) {
      refuse(ErrorCode::check_failed, fmt::format("names counter {} of {}", op.counter, space.counters.size()));
    }
    if (op.kind == OpKind::wait && op.to.reach == Reach::node) {
      refuse(ErrorCode::check_failed, "waits for all ranks at once: wait for each");
    }
    return;
  }
  const Shape& shape = op.shape;
  check_range(program, index, "destination", op.dst, shape, shape.row_bytes, shape.dst_pitch);
  const bool remote = op.to.reach != Reach::self;
  if (remote && program.regions[static_cast<size_t>(op.dst.region)].scope == Scope::call) {
    refuse(ErrorCode::check_failed, "writes to a call region of another rank");
  }
  if (op.kind == OpKind::zero) return;
  const int64_t src_row_bytes = shape.row_bytes / itemsize(op.dst_dtype) * itemsize(op.src_dtype);
  if (op.kind != OpKind::sum) {
    check_range(program, index, "source", op.src, shape, op.kind == OpKind::copy ? shape.row_bytes : src_row_bytes,
                shape.src_pitch);
    return;
  }
  if (op.source_count < 1 || op.first_source < 0 ||
      static_cast<size_t>(op.first_source) + static_cast<size_t>(op.source_count) > program.sources.size()) {
    refuse(ErrorCode::check_failed, fmt::format("takes {} sources from number {} of {}", op.source_count,
                                                op.first_source, program.sources.size()));
  }
  for (int32_t s = 0; s < op.source_count; ++s) {
    check_range(program, index, "source", program.sources[static_cast<size_t>(op.first_source + s)], shape,
                src_row_bytes, shape.src_pitch);
  }
}

}  // namespace

Prepared::Prepared(const Space& space, Program program) : program_(std::move(program)), queues_(space.queues.size()) {
  for (size_t i = 0; i < program_.ops.size(); ++i) {
    check_operation(space, program_, i);
    const Operation& op = program_.ops[i];
    queues_[static_cast<size_t>(op.queue)].push_back(static_cast<int32_t>(i));
    if (!moves_bytes(op.kind)) continue;
    const Scope scope = program_.regions[static_cast<size_t>(op.dst.region)].scope;
    if (scope == Scope::call) continue;
    const int64_t copies = op.to.reach == Reach::node && scope == Scope::rank ? program_.local : 1;
    bytes_moved_ += op.shape.rows * op.shape.row_bytes * copies;
  }
}

}  // namespace tide::host
