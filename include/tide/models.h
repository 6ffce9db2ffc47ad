// Parameter groups of well-known models, for tools that plan, verify and measure without the model at hand.
//
// Grouped as FSDP2 users wrap them, with the names that tide.fsdp shows: group "(root)" of what no block holds
// (embeddings, final norm, output head; a tied weight once), then one group a transformer block. Tensors stand in the
// order of the model's parameters.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "tide/layout.h"

namespace tide {

// gpt2-small, llama-3.1-8b, ...: every name that model_groups() takes.
std::span<const std::string_view> model_names();

// The groups of model `name`, every tensor trainable and of `dtype`. Throws Error(invalid_argument) listing the names.
std::vector<Group> model_groups(std::string_view name, DType dtype);

}  // namespace tide
