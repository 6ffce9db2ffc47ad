#include "fmt/format.h"
#include "layout/model_shapes.h"

namespace tide::models {
namespace {

void attention(GroupOf& block, const Decoder& shape) {
  block.weight("self_attn.q_proj", {shape.heads * shape.head_dim, shape.hidden});
  block.weight("self_attn.k_proj", {shape.kv_heads * shape.head_dim, shape.hidden});
  block.weight("self_attn.v_proj", {shape.kv_heads * shape.head_dim, shape.hidden});
  block.weight("self_attn.o_proj", {shape.hidden, shape.heads * shape.head_dim});
  if (!shape.head_norms) return;
  block.weight("self_attn.q_norm", {shape.head_dim});
  block.weight("self_attn.k_norm", {shape.head_dim});
}

void gated_mlp(GroupOf& block, const std::string& module, const Decoder& shape) {
  block.weight(module + ".gate_proj", {shape.mlp, shape.hidden});
  block.weight(module + ".up_proj", {shape.mlp, shape.hidden});
  block.weight(module + ".down_proj", {shape.hidden, shape.mlp});
}

// The router's place among the parameters changed together with the form of the experts.
void mlp(GroupOf& block, const Decoder& shape) {
  if (shape.experts == 0) {
    gated_mlp(block, "mlp", shape);
  } else if (shape.form == Experts::stacked) {
    block.tensor("mlp.experts.gate_up_proj", {shape.experts, 2 * shape.mlp, shape.hidden});
    block.tensor("mlp.experts.down_proj", {shape.experts, shape.hidden, shape.mlp});
    block.weight("mlp.gate", {shape.experts, shape.hidden});
  } else {
    block.weight("mlp.gate", {shape.experts, shape.hidden});
    for (int64_t e = 0; e < shape.experts; ++e) gated_mlp(block, fmt::format("mlp.experts.{}", e), shape);
  }
}

}  // namespace

std::vector<Group> decoder(const Decoder& shape, DType dtype) {
  std::vector<Group> groups;
  GroupOf root("(root)", "", dtype);
  root.weight("model.embed_tokens", {shape.vocabulary, shape.hidden});
  root.weight("model.norm", {shape.hidden});
  root.weight("lm_head", {shape.vocabulary, shape.hidden});
  groups.push_back(std::move(root).take());
  for (int64_t b = 0; b < shape.blocks; ++b) {
    const std::string name = fmt::format("model.layers.{}", b);
    GroupOf block(name, name + ".", dtype);
    attention(block, shape);
    mlp(block, shape);
    block.weight("input_layernorm", {shape.hidden});
    block.weight("post_attention_layernorm", {shape.hidden});
    groups.push_back(std::move(block).take());
  }
  return groups;
}

}  // namespace tide::models
