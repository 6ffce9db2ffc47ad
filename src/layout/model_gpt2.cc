#include "fmt/format.h"
#include "layout/model_shapes.h"

namespace tide::models {

std::vector<Group> gpt2(const Gpt2& shape, DType dtype) {
  const int64_t h = shape.hidden;
  std::vector<Group> groups;
  // The output head is the token embedding.
  GroupOf root("(root)", "transformer.", dtype);
  root.weight("wte", {shape.vocabulary, h});
  root.weight("wpe", {shape.positions, h});
  root.biased("ln_f", {h}, h);
  groups.push_back(std::move(root).take());
  for (int64_t b = 0; b < shape.blocks; ++b) {
    const std::string name = fmt::format("transformer.h.{}", b);
    GroupOf block(name, name + ".", dtype);
    // Matrices stand transposed: GPT-2's layers are convolutions of width one.
    block.biased("ln_1", {h}, h);
    block.biased("attn.c_attn", {h, 3 * h}, 3 * h);
    block.biased("attn.c_proj", {h, h}, h);
    block.biased("ln_2", {h}, h);
    block.biased("mlp.c_fc", {h, 4 * h}, 4 * h);
    block.biased("mlp.c_proj", {4 * h, h}, h);
    groups.push_back(std::move(block).take());
  }
  return groups;
}

}  // namespace tide::models
