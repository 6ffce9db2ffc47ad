#include "cli/program_text.h"

#include <algorithm>
#include <array>
#include <set>

#include "cli/text.h"
#include "fmt/format.h"

namespace tide::cli {
namespace {

constexpr int32_t kMostSources = 16;

std::string whose(const Target& to) {
  switch (to.reach) {
    case Reach::self:
      return "this rank";
    case Reach::local:
      return fmt::format("local {}", to.index);
    case Reach::node:
      return "every local rank";
    case Reach::rail:
      return fmt::format("node {}", to.index);
  }
  return "?";
}

std::string range(std::string_view what, int64_t begin, int64_t end) {
  if (end - begin == 1) return fmt::format("{} {}", what, count_text(begin));
  return fmt::format("{}s {} to {}", what, count_text(begin), count_text(end - 1));
}

int64_t source_bytes(const Operation& op) {
  return op.shape.rows * op.shape.row_bytes / itemsize(op.dst_dtype) * itemsize(op.src_dtype);
}

}  // namespace

bool moves_bytes(OpKind kind) {
  switch (kind) {
    case OpKind::copy:
    case OpKind::cast:
    case OpKind::put:
    case OpKind::sum:
    case OpKind::land:
    case OpKind::zero:
      return true;
    default:
      return false;
  }
}

std::string_view ProgramText::queue(const Operation& op) const {
  return space_.queues[static_cast<size_t>(op.queue)].name;
}

std::string_view ProgramText::counter(const Operation& op) const {
  return space_.counters[static_cast<size_t>(op.counter)].name;
}

std::string ProgramText::peer(const Operation& op) const {
  return op.to.reach == Reach::node ? "every peer" : whose(op.to);
}

std::string ProgramText::region(RegionId id) const {
  const auto tensors = static_cast<int64_t>(layout_.params().size());
  if (id >= program_.first_call_region) {
    const int64_t index = id - program_.first_call_region;
    if (index >= tensors) return "output";
    return fmt::format("{} '{}'", program_.collective == Collective::all_gather ? "shard" : "grad",
                       layout_.group().tensors[static_cast<size_t>(index)].name);
  }
  if (is_landing(id)) return "landing";
  if (id == space_.staging) return "staging";
  if (id == space_.groups[static_cast<size_t>(group_)].shards) return "resident shards";
  return fmt::format("region {}", id);
}

std::string ProgramText::tensor_rows(int64_t param, int64_t begin, int64_t end) const {
  const ParamLayout& layout = layout_.params()[static_cast<size_t>(param)];
  const std::string& name = layout_.group().tensors[static_cast<size_t>(param)].name;
  const int64_t width = std::max<int64_t>(layout.row_elements, 1);
  if (begin % width == 0 && end % width == 0) {
    return fmt::format("'{}' {}", name, range("row", begin / width, end / width));
  }
  const int64_t row = begin / width;
  if ((end - 1) / width == row) {
    return fmt::format("'{}' row {}, {}", name, count_text(row), range("element", begin % width, end - row * width));
  }
  return fmt::format("'{}' row {} element {} to row {} element {}", name, count_text(row), count_text(begin % width),
                     count_text((end - 1) / width), count_text((end - 1) % width));
}

std::string ProgramText::owned_rows(int64_t param, int64_t begin, int64_t end) const {
  const ParamLayout& layout = layout_.params()[static_cast<size_t>(param)];
  const int64_t first = layout.first_row(program_.rank) * layout.row_elements;
  return tensor_rows(param, first + begin, first + end);
}

std::string ProgramText::call_place(const Ref& ref, int64_t bytes) const {
  const int64_t index = ref.region - program_.first_call_region;
  if (index >= static_cast<int64_t>(layout_.params().size())) {
    return output_place(ref.offset / int64_t{sizeof(float)}, (ref.offset + bytes) / int64_t{sizeof(float)});
  }
  // Call-scope regions of tensors are aligned to one element.
  const int64_t item = program_.regions[static_cast<size_t>(ref.region)].alignment;
  if (program_.collective == Collective::all_gather) {
    return "shard " + owned_rows(index, ref.offset / item, (ref.offset + bytes) / item);
  }
  return "grad " + tensor_rows(index, ref.offset / item, (ref.offset + bytes) / item);
}

std::string ProgramText::output_place(int64_t begin, int64_t end) const {
  const std::vector<Segment> found = segments(layout_, program_.rank, {}, begin, end);
  if (found.size() == 1 && found[0].elements == end - begin) {
    return "output " + owned_rows(found[0].param, found[0].param_begin, found[0].param_begin + found[0].elements);
  }
  return "output " + range("element", begin, end);
}

std::string ProgramText::landing_place(const Ref& ref, int64_t bytes, const Target& to) const {
  const bool shared = space_.regions[static_cast<size_t>(ref.region)].scope == Scope::node;
  const std::string landing = shared ? "shared landing" : fmt::format("landing of {}", whose(to));
  for (size_t p = 0; p < layout_.params().size(); ++p) {
    const ParamLayout& param = layout_.params()[p];
    const int64_t offset = ref.offset - param.landing_base;
    if (offset < 0 || offset >= param.shard_bytes * layout_.world()) continue;
    const int64_t item = itemsize(param.gather_dtype);
    return fmt::format("{} {}", landing, tensor_rows(static_cast<int64_t>(p), offset / item, (offset + bytes) / item));
  }
  return fmt::format("{} + {}", landing, count_text(ref.offset));
}

std::string ProgramText::staging_place(const Ref& ref, const Target& to, bool written) const {
  const int64_t peers = std::max(plan_.local - 1, 1);
  const int64_t block = ref.offset / plan_.chunk_bytes;
  const int64_t from = block % peers;
  const int32_t owner = written && to.reach == Reach::local ? to.index : program_.rank;
  const int64_t within = ref.offset % plan_.chunk_bytes;
  const int64_t contributor = from < owner ? from : from + 1;
  const std::string tail = within == 0 ? "" : fmt::format(" + {}", count_text(within));
  if (written) return fmt::format("staging of {}, slot {}{}", whose(to), block / peers, tail);
  return fmt::format("local {}'s in slot {}{}", contributor, block / peers, tail);
}

std::string ProgramText::place(const Ref& ref, int64_t bytes, const Target& to, bool written) const {
  if (ref.region >= program_.first_call_region) return call_place(ref, bytes);
  if (is_landing(ref.region)) return landing_place(ref, bytes, to);
  if (ref.region == space_.staging) return staging_place(ref, to, written);
  const auto params = layout_.params();
  for (size_t p = 0; p < params.size(); ++p) {
    const int64_t item = itemsize(params[p].shard_dtype);
    const int64_t offset = ref.offset - params[p].packed_shard_base;
    if (offset < 0 || offset >= params[p].padded_elements() * item) continue;
    return "resident shard " + owned_rows(static_cast<int64_t>(p), offset / item, (offset + bytes) / item);
  }
  return fmt::format("{} + {}", region(ref.region), count_text(ref.offset));
}

std::string ProgramText::operation(const Operation& op) const {
  const int64_t bytes = op.shape.rows * op.shape.row_bytes;
  switch (op.kind) {
    case OpKind::signal:
      return fmt::format("signal {} to {}", counter(op), peer(op));
    case OpKind::wait:
      return fmt::format("wait   {} from {}{}", counter(op), peer(op),
                         op.n == 1 ? "" : fmt::format(", {} times", op.n));
    case OpKind::record:
      return fmt::format("record event {}", op.counter);
    case OpKind::join:
      return fmt::format("join   event {}", op.counter);
    case OpKind::zero:
      return fmt::format("zero   {} B  {}", count_text(bytes), place(op.dst, bytes, op.to, true));
    case OpKind::sum:
    case OpKind::land: {
      std::string text = fmt::format("{:<6} {} B  ", name(op.kind), count_text(bytes));
      const int32_t shown = std::min(op.source_count, kMostSources);
      for (int32_t s = 0; s < shown; ++s) {
        const Ref& source = program_.sources[static_cast<size_t>(op.first_source + s)];
        text += fmt::format("{}{}", s == 0 ? "" : " + ", place(source, source_bytes(op), {}, false));
      }
      if (shown < op.source_count) text += fmt::format(" + {} more", op.source_count - shown);
      return fmt::format("{}, {} -> {}", text, name(op.src_dtype), place(op.dst, bytes, op.to, true));
    }
    default:
      break;
  }
  const std::string types =
      op.kind == OpKind::cast ? fmt::format("{} to {}  ", name(op.src_dtype), name(op.dst_dtype)) : "";
  return fmt::format("{:<6} {} B  {}{} -> {}", name(op.kind), count_text(bytes), types,
                     place(op.src, op.kind == OpKind::cast ? source_bytes(op) : bytes, {}, false),
                     place(op.dst, bytes, op.to, true));
}

// "236 operations: 100 copy, 20 sum, ...".
std::string ProgramText::counts() const {
  std::array<int64_t, static_cast<size_t>(OpKind::join) + 1> counts{};
  for (const Operation& op : program_.ops) ++counts[static_cast<size_t>(op.kind)];
  std::string text = plural(static_cast<int64_t>(program_.ops.size()), "operation");
  bool first = true;
  for (size_t kind = 0; kind < counts.size(); ++kind) {
    if (counts[kind] == 0) continue;
    text += fmt::format("{} {} {}", first ? ":" : ",", count_text(counts[kind]), name(static_cast<OpKind>(kind)));
    first = false;
  }
  return text;
}

std::string ProgramText::regions() const {
  std::set<RegionId> named;
  int64_t tensors = 0;
  int64_t bytes = 0;
  for (const Operation& op : program_.ops) {
    if (!moves_bytes(op.kind)) continue;
    named.insert(op.dst.region);
    if (op.src.region >= 0) named.insert(op.src.region);
  }
  for (const Ref& source : program_.sources) named.insert(source.region);
  std::string text;
  const auto add = [&](const std::string& what, std::string_view scope, int64_t size) {
    text += fmt::format("  {:<16} {:>12}  {}\n", what, bytes_text(size), scope);
  };
  for (const RegionId id : named) {
    const Region& one = program_.regions[static_cast<size_t>(id)];
    const bool tensor = id >= program_.first_call_region && region(id) != "output";
    tensors += tensor ? 1 : 0;
    bytes += tensor ? one.bytes : 0;
    if (tensor) continue;
    add(region(id),
        one.scope == Scope::node   ? "one on the node, shared by its ranks"
        : one.scope == Scope::rank ? "one in each rank, reached by its peers"
                                   : "of the call, private to this rank",
        one.bytes);
  }
  if (tensors > 0) {
    add(program_.collective == Collective::all_gather ? "shards" : "grads",
        fmt::format("of the call, private to this rank: {}", plural(tensors, "tensor")), bytes);
  }
  return text;
}

std::string ProgramText::header() const {
  int64_t written = 0;
  int64_t summed = 0;
  int64_t read = 0;
  for (const Operation& op : program_.ops) {
    const int64_t bytes = op.shape.rows * op.shape.row_bytes;
    if (op.kind == OpKind::copy || op.kind == OpKind::cast || op.kind == OpKind::put) {
      const bool each =
          op.to.reach == Reach::node && program_.regions[static_cast<size_t>(op.dst.region)].scope == Scope::rank;
      written += bytes * (each ? program_.local : 1);
    }
    if (op.kind == OpKind::sum || op.kind == OpKind::land) {
      summed += bytes;
      read += source_bytes(op) * op.source_count;
    }
  }
  std::string text = fmt::format("{} of group '{}', rank {} of {}, landing {}\n", name(program_.collective),
                                 layout_.group().name, program_.rank, program_.local, name(plan_.landing));
  text += counts() + "\n";
  if (written > 0) text += fmt::format("copies write {}\n", exact_bytes_text(written));
  if (summed > 0) {
    text += fmt::format("sums read {} and write {}\n", exact_bytes_text(read), exact_bytes_text(summed));
  }
  const std::string named = regions();
  if (!named.empty()) text += "regions\n" + named;
  return text +
         "Queues run side by side, each from top to bottom; a wait lets its queue go on once the signal is there.\n";
}

Sections::Section Sections::of_reduce(const Operation& op) {
  const int64_t peers = program_.local - 1;
  if (op.kind == OpKind::zero) return {"padding of the output"};
  if (op.kind == OpKind::signal && op.counter == space_.opened) return {"staging is free for the next call"};
  if (peers == 0) return {"fold of this rank's own gradients"};
  if (op.queue == space_.push) {
    const int64_t chunk = pushed_ / peers;
    if (op.kind == OpKind::signal && op.counter == space_.staged) ++pushed_;
    return {fmt::format("chunk {}: push to its owners", chunk), chunk};
  }
  if (op.kind == OpKind::wait && op.counter == space_.staged) ++taken_;
  const int64_t chunk = std::max<int64_t>(taken_ - 1, 0) / peers;
  return {fmt::format("chunk {}: fold of this rank's part", chunk), chunk};
}

Sections::Section Sections::next(const Operation& op) {
  switch (program_.collective) {
    case Collective::reduce_scatter:
      return of_reduce(op);
    case Collective::release:
      return {"this rank reads the landing no longer"};
    case Collective::all_gather:
      break;
  }
  if (moves_bytes(op.kind)) return {"this rank's pieces to their final place"};
  if (op.counter == space_.arrived) return {"until the pieces of every rank are there"};
  return {"until the last readers have left the landing"};
}

}  // namespace tide::cli
