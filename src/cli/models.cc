// tide models: the built-in model shapes.
#include "tide/models.h"

#include <algorithm>
#include <memory>

#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/text.h"
#include "tide/layout.h"

namespace tide::cli {
namespace {

struct Totals {
  int64_t groups = 0, tensors = 0, parameters = 0;
  int64_t largest = 0;  // parameters of the largest group
};

Totals totals_of(std::string_view model) {
  Totals totals;
  for (const Group& group : model_groups(model, DType::bf16)) {
    const int64_t elements = Layout(group, {}).elements();
    ++totals.groups;
    totals.tensors += static_cast<int64_t>(group.tensors.size());
    totals.parameters += elements;
    totals.largest = std::max(totals.largest, elements);
  }
  return totals;
}

int run_models(bool json) {
  Json list = Json::array();
  if (!json)
    fmt::print("{:<24} {:>7} {:>8} {:>18} {:>18}\n", "model", "groups", "tensors", "parameters", "largest group");
  for (const std::string_view model : model_names()) {
    const Totals totals = totals_of(model);
    list.push_back({{"name", model},
                    {"groups", totals.groups},
                    {"tensors", totals.tensors},
                    {"parameters", totals.parameters},
                    {"largest_group", totals.largest}});
    if (json) continue;
    fmt::print("{:<24} {:>7} {:>8} {:>18} {:>18}\n", model, totals.groups, count_text(totals.tensors),
               count_text(totals.parameters), count_text(totals.largest));
  }
  if (json) print_json({{"models", list}});
  return 0;
}

}  // namespace

void add_models(CLI::App& app, Run& run) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("models", "The built-in models and their sizes");
  command->add_flag("--json", *json, "Print JSON");
  command->callback([json, &run] { run = [json] { return run_models(*json); }; });
}

}  // namespace tide::cli
