// tide models: the built-in model shapes.
#include "tide/models.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/text.h"
#include "fmt/format.h"

namespace tide::cli {
namespace {

int run_models(bool json) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  if (!json) fmt::print("{:<28} {:>7} {:>8} {:>18}\n", "model", "groups", "tensors", "parameters");
  for (const std::string_view model : model_names()) {
    const std::vector<Group> groups = model_groups(model, DType::bf16);
    int64_t tensors = 0;
    int64_t elements = 0;
    for (const Group& group : groups) {
      const Layout layout(group, {});
      tensors += static_cast<int64_t>(group.tensors.size());
      elements += layout.elements();
    }
    if (json) {
      list.push_back({{"name", model}, {"groups", groups.size()}, {"tensors", tensors}, {"parameters", elements}});
    } else {
      fmt::print("{:<28} {:>7} {:>8} {:>18}\n", model, groups.size(), tensors, count_text(elements));
    }
  }
  if (json) fmt::print("{}\n", nlohmann::ordered_json{{"models", list}}.dump(2));
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
