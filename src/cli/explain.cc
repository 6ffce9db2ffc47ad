// tide explain: the program of one rank, in words or as a graph.
#include <algorithm>
#include <limits>
#include <memory>

#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/program_dot.h"
#include "cli/program_size.h"
#include "cli/program_text.h"
#include "cli/text.h"
#include "cli/workload.h"
#include "fmt/format.h"
#include "tide/collectives.h"
#include "tide/error.h"

namespace tide::cli {
namespace {

constexpr double kMostOperations = 4e6;

struct Options {
  WorkloadOptions workload;
  std::string collective = "all-gather";
  std::string group_name, group_index = "0", rank = "0", limit = "200";
  bool named = false;  // by --group-name
  bool keep = false, dot = false, json = false;
};

int32_t find_group(const Options& options, const Workload& work) {
  const auto groups = static_cast<int64_t>(work.layouts.size());
  if (!options.named) {
    return static_cast<int32_t>(parse_whole("--group-index", options.group_index, 0, groups - 1));
  }
  for (int32_t g = 0; g < groups; ++g) {
    if (work.layouts[static_cast<size_t>(g)].group().name == options.group_name) return g;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("--group-name is '{}': no group has that name, tide plan lists them, as '{}'",
                          excerpt(options.group_name), work.layouts[0].group().name));
}

Program build(const Options& options, const Workload& work, const Space& space, int32_t group) {
  const Layout& layout = work.layouts[static_cast<size_t>(group)];
  const auto rank = static_cast<int32_t>(parse_whole("--rank", options.rank, 0, work.plan.local - 1));
  if (options.keep && options.collective != "all-gather") {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--keep is given with --collective {}: only an all-gather keeps "
                            "pieces, leave it out",
                            excerpt(options.collective)));
  }
  check_size(layout, operation_bound(work.plan, layout, work.grad_dtype), kMostOperations);
  if (options.collective == "all-gather") {
    return all_gather(work.plan, space, layout, group, rank, options.keep ? Pieces::keep : Pieces::move);
  }
  if (options.collective == "release") return release(work.plan, space, layout, group, rank);
  if (options.collective == "reduce-scatter") {
    return reduce_scatter(work.plan, space, layout, rank, work.grad_dtype, {});
  }
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("--collective is '{}': give all-gather, release or reduce-scatter", excerpt(options.collective)));
}

Json place_json(const ProgramText& text, const Ref& ref) {
  return {{"region", ref.region}, {"name", text.region(ref.region)}, {"offset", ref.offset}};
}

Json operation_json(const ProgramText& text, size_t index, const Operation& op, const Sections::Section& section) {
  Json json{{"index", index},
            {"section", section.title},
            {"chunk", section.chunk < 0 ? Json(nullptr) : Json(section.chunk)},
            {"queue", text.queue(op)},
            {"kind", name(op.kind)},
            {"bytes", moves_bytes(op.kind) ? op.shape.rows * op.shape.row_bytes : 0},
            {"to", {{"reach", name(op.to.reach)}, {"index", op.to.index}}},
            {"text", text.operation(op)}};
  if (op.kind == OpKind::signal || op.kind == OpKind::wait) {
    json["counter"] = text.counter(op);
    json["n"] = op.n;
  }
  if (op.kind == OpKind::record || op.kind == OpKind::join) json["event"] = op.counter;
  if (!moves_bytes(op.kind)) return json;
  json["destination"] = place_json(text, op.dst);
  json["sources"] = Json::array();
  if (op.src.region >= 0) json["sources"].push_back(place_json(text, op.src));
  for (int32_t s = 0; s < op.source_count; ++s) {
    json["sources"].push_back(place_json(text, text.program().sources[static_cast<size_t>(op.first_source + s)]));
  }
  return json;
}

void print_json_program(const ProgramText& text, const Space& space, const std::string& group, Landing landing) {
  const Program& program = text.program();
  Json regions = Json::array();
  for (size_t r = 0; r < program.regions.size(); ++r) {
    const Region& region = program.regions[r];
    regions.push_back({{"region", r},
                       {"name", text.region(static_cast<RegionId>(r))},
                       {"scope", name(region.scope)},
                       {"bytes", region.bytes}});
  }
  Json operations = Json::array();
  Sections sections(space, program);
  for (size_t i = 0; i < program.ops.size(); ++i) {
    operations.push_back(operation_json(text, i, program.ops[i], sections.next(program.ops[i])));
  }
  print_json({{"collective", name(program.collective)},
              {"group", group},
              {"landing", name(landing)},
              {"rank", program.rank},
              {"local", program.local},
              {"regions", regions},
              {"operations", operations}});
}

void print_text(const ProgramText& text, const Space& space, int64_t limit) {
  const Program& program = text.program();
  fmt::print("{}", text.header());
  const auto operations = static_cast<int64_t>(program.ops.size());
  const int64_t shown = std::min(limit, operations);
  Sections sections(space, program);
  std::string title;
  for (int64_t i = 0; i < shown; ++i) {
    const Operation& op = program.ops[static_cast<size_t>(i)];
    Sections::Section section = sections.next(op);
    if (section.title != title) fmt::print("\n{}\n", section.title);
    title = std::move(section.title);
    fmt::print("{:>7}  {:<6}  {}\n", i, text.queue(op), text.operation(op));
  }
  if (shown < operations) fmt::print("\n... {}: see --limit\n", plural(operations - shown, "more operation"));
}

int run_explain(const Options& options) {
  const int64_t asked = parse_whole("--limit", options.limit, 0);
  const int64_t limit = asked == 0 ? std::numeric_limits<int64_t>::max() : asked;
  const Workload work = options.workload.only();
  const Space space = make_space(work.plan, work.layouts, work.resident_shards);
  const int32_t group = find_group(options, work);
  const Program program = build(options, work, space, group);
  const Layout& layout = work.layouts[static_cast<size_t>(group)];
  const ProgramText text(work.plan, space, layout, group, program);
  if (options.dot) {
    fmt::print("{}", program_dot(text, space, limit));
  } else if (options.json) {
    print_json_program(text, space, layout.group().name, work.plan.landing);
  } else {
    print_text(text, space, limit);
  }
  return 0;
}

}  // namespace

void add_explain(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("explain", "The program of one rank, operation by operation");
  options->workload.add_to(*command, false);
  command->add_option("--collective", options->collective, "all-gather, release or reduce-scatter")
      ->capture_default_str()
      ->type_name("NAME");
  auto* by_index = command->add_option("--group-index", options->group_index, "Which group, from 0");
  by_index->capture_default_str()->type_name("I");
  auto* by_name = command->add_option("--group-name", options->group_name, "Which group, by name");
  by_name->type_name("NAME")->excludes(by_index);
  command->add_option("--rank", options->rank, "Whose program")->capture_default_str()->type_name("R");
  command->add_option("--limit", options->limit, "Operations to print as text or graph; 0 for all")
      ->capture_default_str()
      ->type_name("N");
  command->add_flag("--keep", options->keep, "A gather whose pieces already stand in the landing");
  auto* dot = command->add_flag("--dot", options->dot, "Print a Graphviz graph: queues, events and counters");
  command->add_flag("--json", options->json, "Print JSON, every operation")->excludes(dot);
  command->callback([options, by_name, &run] {
    options->named = by_name->count() > 0;
    run = [options] { return run_explain(*options); };
  });
}

}  // namespace tide::cli
