#include "cli/program_text.h"

#include <array>

#include "cli/text.h"
#include "fmt/format.h"

namespace tide::cli {
namespace {

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

std::string quoted(std::string_view text) {
  std::string result(1, '"');
  for (const char c : text) {
    if (c == '"' || c == '\\') result.push_back('\\');
    result.push_back(c);
  }
  result.push_back('"');
  return result;
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

const std::string& ProgramText::queue(const Operation& op) const {
  return space_.queues[static_cast<size_t>(op.queue)].name;
}

std::string ProgramText::tensor_place(const std::string& what, int64_t param, int64_t offset, int64_t item) const {
  const ParamLayout& layout = layout_.params()[static_cast<size_t>(param)];
  const int64_t element = offset / item;
  const int64_t row = layout.row_elements == 0 ? 0 : element / layout.row_elements;
  const int64_t column = layout.row_elements == 0 ? 0 : element % layout.row_elements;
  return fmt::format("{} '{}' row {}{}", what, layout_.group().tensors[static_cast<size_t>(param)].name, row,
                     column == 0 ? "" : fmt::format(" element {}", column));
}

std::string ProgramText::place(const Ref& ref, const Target& to, bool destination) const {
  const Space::GroupPlace& here = space_.groups[static_cast<size_t>(group_)];
  if (ref.region >= program_.first_call_region) {
    const int64_t index = ref.region - program_.first_call_region;
    if (index < static_cast<int64_t>(layout_.params().size())) {
      if (program_.collective == Collective::all_gather) {
        const DType dtype = layout_.params()[static_cast<size_t>(index)].shard_dtype;
        return tensor_place("shard", index, ref.offset, itemsize(dtype));
      }
      const Region& region = program_.regions[static_cast<size_t>(ref.region)];
      return tensor_place("grad", index, ref.offset, region.alignment);
    }
    return fmt::format("out element {}", ref.offset / int64_t{sizeof(float)});
  }
  if (ref.region == here.landing) {
    for (size_t p = 0; p < layout_.params().size(); ++p) {
      const ParamLayout& param = layout_.params()[p];
      const int64_t bytes = param.shard_bytes * layout_.world();
      if (ref.offset < param.landing_base || ref.offset >= param.landing_base + bytes) continue;
      const bool shared = space_.regions[static_cast<size_t>(ref.region)].scope == Scope::node;
      return tensor_place(shared ? "shared landing" : fmt::format("landing of {}", whose(to)), static_cast<int64_t>(p),
                          ref.offset - param.landing_base, itemsize(param.gather_dtype));
    }
  }
  if (ref.region == space_.staging) {
    const int64_t block = ref.offset / plan_.chunk_bytes;
    const int64_t slot = block / std::max(plan_.local - 1, 1);
    const int64_t from = block % std::max(plan_.local - 1, 1);
    const int32_t owner = destination && to.reach == Reach::local ? to.index : program_.rank;
    return fmt::format("staging of {}, slot {}, block of local {} + {}", destination ? whose(to) : "this rank", slot,
                       from < owner ? from : from + 1, ref.offset % plan_.chunk_bytes);
  }
  if (ref.region == here.shards) return fmt::format("resident shards + {}", ref.offset);
  return fmt::format("region {} + {}", ref.region, ref.offset);
}

std::string ProgramText::operation(const Operation& op) const {
  const auto counter = [&] { return space_.counters[static_cast<size_t>(op.counter)].name; };
  const int64_t bytes = op.shape.rows * op.shape.row_bytes;
  switch (op.kind) {
    case OpKind::signal:
      return fmt::format("signal '{}' -> {}", counter(), op.to.reach == Reach::node ? "every peer" : whose(op.to));
    case OpKind::wait:
      return fmt::format("wait for {} of '{}' from {}", op.n, counter(), whose(op.to));
    case OpKind::record:
      return fmt::format("record event {}", op.counter);
    case OpKind::join:
      return fmt::format("join event {}", op.counter);
    case OpKind::zero:
      return fmt::format("zero {} of {} (padding)", bytes_text(bytes), place(op.dst, op.to, true));
    case OpKind::sum:
    case OpKind::land: {
      std::string text =
          fmt::format("{} {} elements of {} contributions of {} -> {}:", name(op.kind), bytes / int64_t{sizeof(float)},
                      op.source_count, name(op.src_dtype), place(op.dst, op.to, true));
      for (int32_t s = 0; s < op.source_count; ++s) {
        const Ref& source = program_.sources[static_cast<size_t>(op.first_source + s)];
        text += fmt::format("{} {}", s == 0 ? "" : ";", place(source, {}, false));
      }
      return text;
    }
    default:
      break;
  }
  const std::string types =
      op.kind == OpKind::cast ? fmt::format(" {} to {}", name(op.src_dtype), name(op.dst_dtype)) : "";
  return fmt::format("{}{} {} of {} -> {}", name(op.kind), types, bytes_text(bytes), place(op.src, {}, false),
                     place(op.dst, op.to, true));
}

std::string ProgramText::header() const {
  std::array<int64_t, 2> moved{};
  int64_t signals = 0;
  int64_t waits = 0;
  for (const Operation& op : program_.ops) {
    const int64_t bytes = op.shape.rows * op.shape.row_bytes;
    if (op.kind == OpKind::copy || op.kind == OpKind::cast || op.kind == OpKind::put) {
      const bool copies =
          op.to.reach == Reach::node && program_.regions[static_cast<size_t>(op.dst.region)].scope == Scope::rank;
      moved[0] += bytes * (copies ? program_.local : 1);
    }
    if (op.kind == OpKind::sum || op.kind == OpKind::land) moved[1] += bytes;
    signals += op.kind == OpKind::signal ? 1 : 0;
    waits += op.kind == OpKind::wait ? 1 : 0;
  }
  return fmt::format(
      "{} of group '{}', rank {} of {}\n{} operations: {} written by copies, {} by sums; {} signals, {} waits\n"
      "Queues run side by side, each from top to bottom; a wait lets its queue go on once the signal is there.\n\n",
      name(program_.collective), layout_.group().name, program_.rank, program_.local, program_.ops.size(),
      bytes_text(moved[0]), bytes_text(moved[1]), signals, waits);
}

std::string ProgramText::dot(int64_t limit) const {
  std::string text = "digraph program {\n  rankdir=LR;\n  node [shape=box, fontsize=10];\n";
  const int64_t shown = std::min<int64_t>(limit, static_cast<int64_t>(program_.ops.size()));
  for (size_t q = 0; q < space_.queues.size(); ++q) {
    text += fmt::format("  subgraph cluster_{} {{\n    label={};\n", q, quoted(space_.queues[q].name));
    int64_t last = -1;
    for (int64_t i = 0; i < shown; ++i) {
      const Operation& op = program_.ops[static_cast<size_t>(i)];
      if (op.queue != static_cast<QueueId>(q)) continue;
      text += fmt::format("    op{} [label={}];\n", i, quoted(fmt::format("{}: {}", i, operation(op))));
      if (last >= 0) text += fmt::format("    op{} -> op{};\n", last, i);
      last = i;
    }
    text += "  }\n";
  }
  for (int64_t i = 0; i < shown; ++i) {
    const Operation& op = program_.ops[static_cast<size_t>(i)];
    if (op.kind != OpKind::signal && op.kind != OpKind::wait) continue;
    const std::string peer = op.to.reach == Reach::node ? "every peer" : whose(op.to);
    const std::string counter = quoted(space_.counters[static_cast<size_t>(op.counter)].name);
    const std::string node = quoted(peer);
    text += op.kind == OpKind::signal ? fmt::format("  op{} -> {} [style=dashed, label={}];\n", i, node, counter)
                                      : fmt::format("  {} -> op{} [style=dashed, label={}];\n", node, i, counter);
  }
  if (shown < static_cast<int64_t>(program_.ops.size())) {
    text += fmt::format("  more [shape=plaintext, label=\"{} more operations: see --limit\"];\n",
                        static_cast<int64_t>(program_.ops.size()) - shown);
  }
  return text + "}\n";
}

}  // namespace tide::cli
