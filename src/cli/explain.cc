// tide explain: the program of one rank, in words or as a graph.
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/program_text.h"
#include "cli/text.h"
#include "cli/workload.h"
#include "fmt/format.h"
#include "tide/collectives.h"
#include "tide/error.h"

namespace tide::cli {
namespace {

struct Options {
  WorkloadOptions workload;
  std::string collective = "all-gather";
  std::string group_name;
  int32_t group = 0;
  int32_t rank = 0;
  int64_t limit = 200;
  bool keep = false, dot = false, json = false;
};

int32_t find_group(const Options& options, const Workload& work) {
  if (!options.group_name.empty()) {
    for (size_t g = 0; g < work.layouts.size(); ++g) {
      if (work.layouts[g].group().name == options.group_name) return static_cast<int32_t>(g);
    }
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--group-name is '{}': no group has that name, see tide plan", options.group_name));
  }
  if (options.group < 0 || static_cast<size_t>(options.group) >= work.layouts.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--group-index is {}: give 0 to {}", options.group, int64_t(work.layouts.size()) - 1));
  }
  return options.group;
}

Program build(const Options& options, const Workload& work, const Space& space, int32_t group) {
  const Layout& layout = work.layouts[static_cast<size_t>(group)];
  if (options.collective == "all-gather") {
    return all_gather(work.plan, space, layout, group, options.rank, options.keep ? Pieces::keep : Pieces::move);
  }
  if (options.collective == "release") return release(work.plan, space, layout, group, options.rank);
  if (options.collective == "reduce-scatter") {
    return reduce_scatter(work.plan, space, layout, options.rank, work.grad_dtype, {});
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("--collective is '{}': give all-gather, release or reduce-scatter", options.collective));
}

void print_json(const ProgramText& text, const Program& program, const std::string& group) {
  nlohmann::ordered_json ops = nlohmann::ordered_json::array();
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Operation& op = program.ops[i];
    ops.push_back({{"index", i},
                   {"queue", text.queue(op)},
                   {"kind", name(op.kind)},
                   {"bytes", moves_bytes(op.kind) ? op.shape.rows * op.shape.row_bytes : 0},
                   {"text", text.operation(op)}});
  }
  const nlohmann::ordered_json all{{"collective", name(program.collective)},
                                   {"group", group},
                                   {"rank", program.rank},
                                   {"local", program.local},
                                   {"operations", ops}};
  fmt::print("{}\n", all.dump(2));
}

int run_explain(const Options& options) {
  const Workload work = options.workload.resolve(options.workload.locals()[0], options.workload.landing());
  const Space space = make_space(work.plan, work.layouts, work.resident_shards);
  const int32_t group = find_group(options, work);
  const Program program = build(options, work, space, group);
  const Layout& layout = work.layouts[static_cast<size_t>(group)];
  const ProgramText text(work.plan, space, layout, group, program);
  if (options.dot) {
    fmt::print("{}", text.dot(options.limit));
    return 0;
  }
  if (options.json) {
    print_json(text, program, layout.group().name);
    return 0;
  }
  fmt::print("{}", text.header());
  const auto shown = std::min<int64_t>(options.limit, static_cast<int64_t>(program.ops.size()));
  for (int64_t i = 0; i < shown; ++i) {
    const Operation& op = program.ops[static_cast<size_t>(i)];
    fmt::print("{:>6}  {:<7} {}\n", i, text.queue(op), text.operation(op));
  }
  if (shown < static_cast<int64_t>(program.ops.size())) {
    fmt::print("        ... {} more, see --limit\n", static_cast<int64_t>(program.ops.size()) - shown);
  }
  return 0;
}

}  // namespace

void add_explain(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("explain", "The program of one rank, operation by operation");
  options->workload.add_to(*command, false);
  command->add_option("--collective", options->collective, "all-gather, release or reduce-scatter")
      ->capture_default_str();
  command->add_option("--group-index", options->group, "Which group, from 0")->capture_default_str();
  command->add_option("--group-name", options->group_name, "Which group, by name");
  command->add_option("--rank", options->rank, "Whose program")->capture_default_str();
  command->add_option("--limit", options->limit, "Operations to print")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--keep", options->keep, "A gather whose pieces already stand in the landing");
  command->add_flag("--dot", options->dot, "Print a Graphviz graph: queues, events and counters");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options, &run] { run = [options] { return run_explain(*options); }; });
}

}  // namespace tide::cli
