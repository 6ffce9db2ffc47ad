#include "fmt/format.h"
#include "layout/model_shapes.h"

namespace tide::models {
namespace {

void attention(GroupOf& block, const std::string& module, int64_t h) {
  for (const char* projection : {".q", ".k", ".v", ".o"}) block.biased(module + projection, {h, h}, h);
  // Queries and keys are normalized over the whole width.
  block.weight(module + ".norm_q", {h});
  block.weight(module + ".norm_k", {h});
}

}  // namespace

std::vector<Group> wan(const Wan& shape, DType dtype) {
  const int64_t h = shape.hidden;
  const auto& [frames, height, width] = shape.patch;
  std::vector<Group> groups;
  GroupOf root("(root)", "", dtype);
  root.biased("patch_embedding", {h, shape.channels, frames, height, width}, h);
  root.biased("text_embedding.0", {h, shape.text}, h);
  root.biased("text_embedding.2", {h, h}, h);
  root.biased("time_embedding.0", {h, shape.frequencies}, h);
  root.biased("time_embedding.2", {h, h}, h);
  root.biased("time_projection.1", {6 * h, h}, 6 * h);
  root.tensor("head.modulation", {1, 2, h});
  const int64_t outputs = frames * height * width * shape.channels;
  root.biased("head.head", {outputs, h}, outputs);
  groups.push_back(std::move(root).take());
  for (int64_t b = 0; b < shape.blocks; ++b) {
    const std::string name = fmt::format("blocks.{}", b);
    GroupOf block(name, name + ".", dtype);
    block.tensor("modulation", {1, 6, h});
    attention(block, "self_attn", h);
    block.biased("norm3", {h}, h);
    attention(block, "cross_attn", h);
    block.biased("ffn.0", {shape.mlp, h}, shape.mlp);
    block.biased("ffn.2", {h, shape.mlp}, h);
    groups.push_back(std::move(block).take());
  }
  return groups;
}

}  // namespace tide::models
