// Group files: parameter groups as JSON, for tools that plan, verify and measure without a model at hand.
//
//   {"version": 1,
//    "groups": [{"name": "layers.0",
//                "tensors": [{"name": "weight", "shape": [4096, 1024], "dtype": "bf16", "trainable": true}]}]}
//
// "dtype" is f32 and "trainable" true where they are left out; an empty shape is a 0-dim tensor. The schema is
// docs/schema/group.schema.json.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tide/layout.h"

namespace tide {

// Throws Error(invalid_argument) with field and value ("groups[0].tensors[2].shape[1] is -3: ...") or byte position:
// for broken JSON, unknown, missing or repeated fields, wrong types, another version, names that are empty, used twice,
// over 1024 bytes or hold control characters, extents that are negative, fractional or above 2^61, over 64 dims, over
// 10^6 tensors, and text over 64 MiB.
std::vector<Group> parse_groups(std::string_view json);

// A group file with one tensor a line, which parse_groups() reads back to the same groups.
std::string to_json(std::span<const Group> groups);

// The text of the file. Throws Error(invalid_argument) naming the path if there is none, it cannot be read, is a
// folder, or holds more than `most_bytes`.
std::string read_file(const std::string& path, int64_t most_bytes = int64_t{64} << 20);

}  // namespace tide
