// The commands of `tide`. Each adds itself to the application and, when chosen, sets `run`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace tide::cli {

// What the chosen command does; returns the exit status and throws tide::Error.
using Run = std::function<int()>;

void add_plan(CLI::App& app, Run& run);
void add_explain(CLI::App& app, Run& run);
void add_verify(CLI::App& app, Run& run);
void add_models(CLI::App& app, Run& run);
void add_launch(CLI::App& app, Run& run);
void add_doctor(CLI::App& app, Run& run);

}  // namespace tide::cli
