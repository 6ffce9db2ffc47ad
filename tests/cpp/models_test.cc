#include "tide/models.h"

#include <algorithm>
#include <map>
#include <ostream>
#include <set>

#include "gtest/gtest.h"
#include "tide/error.h"
#include "tide/group_file.h"

namespace tide {
namespace {

struct Totals {
  int64_t elements = 0;
  size_t tensors = 0;
  size_t groups = 0;
  size_t largest = 0;  // tensors of the group that has most
};

bool operator==(const Totals& a, const Totals& b) {
  return a.elements == b.elements && a.tensors == b.tensors && a.groups == b.groups && a.largest == b.largest;
}

std::ostream& operator<<(std::ostream& out, const Totals& t) {
  return out << t.elements << " elements, " << t.tensors << " tensors, " << t.groups << " groups, " << t.largest
             << " in the largest";
}

Totals totals(std::span<const Group> groups) {
  Totals total{0, 0, groups.size(), 0};
  for (const Group& group : groups) {
    total.elements += Layout(group, {}).elements();
    total.tensors += group.tensors.size();
    total.largest = std::max(total.largest, group.tensors.size());
  }
  return total;
}

const TensorSpec& tensor(std::span<const Group> groups, std::string_view name) {
  for (const Group& group : groups) {
    for (const TensorSpec& spec : group.tensors) {
      if (spec.name == name) return spec;
    }
  }
  throw Error(ErrorCode::check_failed, "no tensor " + std::string(name));
}

// Parameter counts of the published models, as their own code counts them.
const std::map<std::string_view, Totals> kPublished{
    {"gpt2-small", {124'439'808, 148, 13, 12}},          {"llama-3.1-8b", {8'030'261'248, 291, 33, 9}},
    {"llama-3.1-70b", {70'553'706'496, 723, 81, 9}},     {"llama-3.1-405b", {405'853'388'800, 1137, 127, 9}},
    {"qwen3-8b", {8'190'735'360, 399, 37, 11}},          {"qwen3-32b", {32'762'123'264, 707, 65, 11}},
    {"qwen3-30b-a3b", {30'532'122'624, 531, 49, 11}},    {"qwen3-30b-a3b-separate", {30'532'122'624, 18'867, 49, 393}},
    {"wan2.2-t2v-a14b", {14'288'491'584, 1095, 41, 27}},
};

TEST(Models, CountAsPublished) {
  EXPECT_EQ(model_names().size(), kPublished.size());
  for (const std::string_view name : model_names()) {
    ASSERT_TRUE(kPublished.count(name)) << name;
    EXPECT_EQ(totals(model_groups(name, DType::bf16)), kPublished.at(name)) << name;
  }
}

TEST(Models, EveryTensorOnceAndAsAsked) {
  for (const std::string_view name : model_names()) {
    std::set<std::string> tensors;
    std::set<std::string> names;
    for (const Group& group : model_groups(name, DType::f16)) {
      EXPECT_TRUE(names.insert(group.name).second) << group.name;
      for (const TensorSpec& spec : group.tensors) {
        EXPECT_TRUE(tensors.insert(spec.name).second) << spec.name;
        EXPECT_EQ(spec.dtype, DType::f16);
        EXPECT_TRUE(spec.trainable);
        if (group.name != "(root)") {
          EXPECT_EQ(spec.name.rfind(group.name + ".", 0), 0U) << spec.name;
        }
      }
    }
  }
}

TEST(Models, ShapesByName) {
  using Shape = std::vector<int64_t>;
  const auto gpt2 = model_groups("gpt2-small", DType::f32);
  EXPECT_EQ(gpt2[0].name, "(root)");
  EXPECT_EQ(tensor(gpt2, "transformer.wte.weight").shape, (Shape{50257, 768}));
  EXPECT_EQ(tensor(gpt2, "transformer.h.11.attn.c_attn.weight").shape, (Shape{768, 2304}));

  const auto llama = model_groups("llama-3.1-405b", DType::bf16);
  EXPECT_EQ(llama[126].name, "model.layers.125");
  EXPECT_EQ(tensor(llama, "model.layers.125.self_attn.k_proj.weight").shape, (Shape{1024, 16384}));
  EXPECT_EQ(tensor(llama, "model.layers.0.mlp.down_proj.weight").shape, (Shape{16384, 53248}));
  EXPECT_EQ(tensor(llama, "lm_head.weight").shape, (Shape{128256, 16384}));

  const auto qwen = model_groups("qwen3-32b", DType::bf16);
  EXPECT_EQ(tensor(qwen, "model.layers.3.self_attn.q_proj.weight").shape, (Shape{8192, 5120}));
  EXPECT_EQ(tensor(qwen, "model.layers.3.self_attn.q_norm.weight").shape, (Shape{128}));

  const auto stacked = model_groups("qwen3-30b-a3b", DType::bf16);
  EXPECT_EQ(tensor(stacked, "model.layers.47.mlp.experts.gate_up_proj").shape, (Shape{128, 1536, 2048}));
  EXPECT_EQ(tensor(stacked, "model.layers.47.mlp.experts.down_proj").shape, (Shape{128, 2048, 768}));
  EXPECT_EQ(tensor(stacked, "model.layers.47.mlp.gate.weight").shape, (Shape{128, 2048}));
  const auto separate = model_groups("qwen3-30b-a3b-separate", DType::bf16);
  EXPECT_EQ(tensor(separate, "model.layers.0.mlp.experts.127.down_proj.weight").shape, (Shape{2048, 768}));

  const auto wan = model_groups("wan2.2-t2v-a14b", DType::bf16);
  EXPECT_EQ(tensor(wan, "patch_embedding.weight").shape, (Shape{5120, 16, 1, 2, 2}));
  EXPECT_EQ(tensor(wan, "blocks.39.modulation").shape, (Shape{1, 6, 5120}));
  EXPECT_EQ(tensor(wan, "blocks.39.cross_attn.norm_k.weight").shape, (Shape{5120}));
  EXPECT_EQ(tensor(wan, "head.head.weight").shape, (Shape{64, 5120}));
}

TEST(Models, SurviveTheirGroupFile) {
  for (const std::string_view name : {"gpt2-small", "qwen3-30b-a3b-separate"}) {
    const auto groups = model_groups(name, DType::bf16);
    const std::string json = to_json(groups);
    const auto read = parse_groups(json);
    EXPECT_EQ(totals(read), totals(groups));
    EXPECT_EQ(to_json(read), json);
  }
}

TEST(Models, AnUnknownOneListsAll) {
  try {
    model_groups("gpt5", DType::f32);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(std::string(error.what()),
              "model 'gpt5' is unknown: use one of gpt2-small, llama-3.1-8b, llama-3.1-70b, llama-3.1-405b, qwen3-8b, "
              "qwen3-32b, qwen3-30b-a3b, qwen3-30b-a3b-separate, wan2.2-t2v-a14b, or a group file");
  }
}

}  // namespace
}  // namespace tide
