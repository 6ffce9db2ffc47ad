#include "cli/program_dot.h"

#include <algorithm>

#include "cli/text.h"
#include "fmt/format.h"

namespace tide::cli {
namespace {

std::string dot_string(std::string_view text) {
  std::string result(1, '"');
  for (const char c : text) {
    if (c == '"' || c == '\\') result.push_back('\\');
    result.push_back(c);
  }
  result.push_back('"');
  return result;
}

// Cluster of the operations of queue `q`.
std::string queue_cluster(const ProgramText& text, const Space& space, QueueId q, int64_t shown) {
  std::string dot = fmt::format("  subgraph cluster_{} {{\n    label={};\n", q,
                                dot_string("queue " + space.queues[static_cast<size_t>(q)].name));
  int64_t last = -1;
  for (int64_t i = 0; i < shown; ++i) {
    const Operation& op = text.program().ops[static_cast<size_t>(i)];
    if (op.queue != q) continue;
    dot += fmt::format("    op{} [label={}];\n", i, dot_string(fmt::format("{}: {}", i, text.operation(op))));
    if (last >= 0) dot += fmt::format("    op{} -> op{};\n", last, i);
    last = i;
  }
  return last < 0 ? "" : dot + "  }\n";
}

// What ties an operation to another queue or rank.
std::string edges(const ProgramText& text, int64_t i, const Operation& op) {
  const auto counter_node = [&](std::string_view where) {
    return dot_string(fmt::format("{} {} {}", text.counter(op), where, text.peer(op)));
  };
  switch (op.kind) {
    case OpKind::signal:
      return fmt::format("  {0} [shape=ellipse];\n  op{1} -> {0} [style=dashed];\n", counter_node("at"), i);
    case OpKind::wait:
      return fmt::format("  {0} [shape=ellipse];\n  {0} -> op{1} [style=dashed];\n", counter_node("from"), i);
    case OpKind::record:
      return fmt::format("  event{0} [shape=diamond, label=\"event {0}\"];\n  op{1} -> event{0};\n", op.counter, i);
    case OpKind::join:
      return fmt::format("  event{0} [shape=diamond, label=\"event {0}\"];\n  event{0} -> op{1};\n", op.counter, i);
    default:
      return "";
  }
}

}  // namespace

std::string program_dot(const ProgramText& text, const Space& space, int64_t limit) {
  const auto operations = static_cast<int64_t>(text.program().ops.size());
  const int64_t shown = std::min(limit, operations);
  std::string dot = "digraph program {\n  rankdir=LR;\n  node [shape=box, fontsize=10];\n";
  for (size_t q = 0; q < space.queues.size(); ++q) {
    dot += queue_cluster(text, space, static_cast<QueueId>(q), shown);
  }
  for (int64_t i = 0; i < shown; ++i) dot += edges(text, i, text.program().ops[static_cast<size_t>(i)]);
  if (shown < operations) {
    dot += fmt::format("  more [shape=plaintext, label=\"{}: see --limit\"];\n",
                       plural(operations - shown, "more operation"));
  }
  return dot + "}\n";
}

}  // namespace tide::cli
