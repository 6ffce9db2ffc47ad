#include "tide/models.h"

#include <algorithm>
#include <array>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "layout/model_shapes.h"
#include "tide/error.h"

namespace tide {
namespace {

using models::Decoder;
using models::Experts;

std::vector<Group> gpt2_small(DType dtype) {
  return models::gpt2({.hidden = 768, .blocks = 12, .vocabulary = 50257, .positions = 1024}, dtype);
}

Decoder llama(int64_t hidden, int64_t mlp, int64_t blocks, int64_t heads) {
  return {.hidden = hidden,
          .mlp = mlp,
          .blocks = blocks,
          .heads = heads,
          .kv_heads = 8,
          .head_dim = 128,
          .vocabulary = 128256};
}

Decoder qwen3(int64_t hidden, int64_t mlp, int64_t blocks, int64_t heads) {
  return {.hidden = hidden,
          .mlp = mlp,
          .blocks = blocks,
          .heads = heads,
          .kv_heads = 8,
          .head_dim = 128,
          .vocabulary = 151936,
          .head_norms = true};
}

std::vector<Group> qwen3_30b_a3b(Experts form, DType dtype) {
  Decoder shape = qwen3(2048, 768, 48, 32);
  shape.kv_heads = 4;
  shape.experts = 128;
  shape.form = form;
  return models::decoder(shape, dtype);
}

std::vector<Group> wan_a14b(DType dtype) {
  return models::wan({.hidden = 5120,
                      .mlp = 13824,
                      .blocks = 40,
                      .text = 4096,
                      .frequencies = 256,
                      .channels = 16,
                      .patch = {1, 2, 2}},
                     dtype);
}

struct Model {
  std::string_view name;
  std::vector<Group> (*groups)(DType dtype);
};

constexpr std::array kModels{
    Model{"gpt2-small", gpt2_small},
    Model{"llama-3.1-8b", [](DType d) { return models::decoder(llama(4096, 14336, 32, 32), d); }},
    Model{"llama-3.1-70b", [](DType d) { return models::decoder(llama(8192, 28672, 80, 64), d); }},
    Model{"llama-3.1-405b", [](DType d) { return models::decoder(llama(16384, 53248, 126, 128), d); }},
    Model{"qwen3-8b", [](DType d) { return models::decoder(qwen3(4096, 12288, 36, 32), d); }},
    Model{"qwen3-32b", [](DType d) { return models::decoder(qwen3(5120, 25600, 64, 64), d); }},
    Model{"qwen3-30b-a3b", [](DType d) { return qwen3_30b_a3b(Experts::stacked, d); }},
    Model{"qwen3-30b-a3b-separate", [](DType d) { return qwen3_30b_a3b(Experts::separate, d); }},
    Model{"wan2.2-t2v-a14b", wan_a14b},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kModels.size()> names{};
  for (size_t i = 0; i < kModels.size(); ++i) names[i] = kModels[i].name;
  return names;
}();

}  // namespace

std::span<const std::string_view> model_names() { return kNames; }

std::vector<Group> model_groups(std::string_view name, DType dtype) {
  const auto found =
      std::find_if(kModels.begin(), kModels.end(), [&](const Model& model) { return model.name == name; });
  if (found == kModels.end()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("model '{}' is unknown: use one of {}, or a group file",
                                                         name.substr(0, 64), fmt::join(kNames, ", ")));
  }
  return found->groups(dtype);
}

}  // namespace tide
