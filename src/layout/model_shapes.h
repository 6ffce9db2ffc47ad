// The families of models whose shapes are built in.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tide/layout.h"

namespace tide::models {

struct Gpt2 {
  int64_t hidden = 0;
  int64_t blocks = 0;
  int64_t vocabulary = 0;
  int64_t positions = 0;
};
std::vector<Group> gpt2(const Gpt2& shape, DType dtype);

enum class Experts : uint8_t {
  stacked,   // one tensor for all experts of a block: [experts, rows, columns]
  separate,  // three matrices an expert
};

// Llama, Qwen3 and Qwen3-MoE, without a tied output head.
struct Decoder {
  int64_t hidden = 0;
  int64_t mlp = 0;  // of one expert where there are experts
  int64_t blocks = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocabulary = 0;
  bool head_norms = false;  // queries and keys are normalized a head
  int64_t experts = 0;      // 0: a dense MLP
  Experts form = Experts::stacked;
};
std::vector<Group> decoder(const Decoder& shape, DType dtype);

// One expert transformer of Wan2.1 and Wan2.2, text to video.
struct Wan {
  int64_t hidden = 0;
  int64_t mlp = 0;
  int64_t blocks = 0;
  int64_t text = 0;         // width of the text encoder
  int64_t frequencies = 0;  // of the time embedding
  int64_t channels = 0;     // of the latent video, in and out
  std::array<int64_t, 3> patch{};
};
std::vector<Group> wan(const Wan& shape, DType dtype);

// Collects the tensors of one group.
class GroupOf {
 public:
  // Names of tensors start with `prefix`.
  GroupOf(std::string name, std::string prefix, DType dtype)
      : group_{std::move(name), {}}, prefix_(std::move(prefix)), dtype_(dtype) {}

  void tensor(const std::string& name, std::vector<int64_t> shape) {
    group_.tensors.push_back({prefix_ + name, std::move(shape), dtype_, true});
  }
  void weight(const std::string& module, std::vector<int64_t> shape) { tensor(module + ".weight", std::move(shape)); }
  // A weight and a bias of `bias` elements.
  void biased(const std::string& module, std::vector<int64_t> shape, int64_t bias) {
    weight(module, std::move(shape));
    tensor(module + ".bias", {bias});
  }
  Group take() && { return std::move(group_); }

 private:
  Group group_;
  std::string prefix_;
  DType dtype_;
};

}  // namespace tide::models
