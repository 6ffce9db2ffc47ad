// What every `--json` prints: one document, two blanks a level, ASCII, fields in a fixed order.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>

#include "fmt/format.h"

namespace tide::cli {

using Json = nlohmann::ordered_json;

inline void print_json(const Json& json) {
  // Names of tensors and files may hold any bytes.
  fmt::print("{}\n", json.dump(2, ' ', true, Json::error_handler_t::replace));
}

}  // namespace tide::cli
