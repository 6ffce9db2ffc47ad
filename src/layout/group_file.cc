#include "tide/group_file.h"

#include <limits>
#include <unordered_set>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "layout/json_field.h"
#include "tide/error.h"

namespace tide {
namespace {

constexpr int64_t kVersion = 1;
constexpr int64_t kMostTensors = 1'000'000;  // also bounds the groups
constexpr int64_t kMostDims = 64;
constexpr int64_t kMostNameBytes = 1024;
constexpr int64_t kMostWordBytes = 64;
constexpr int64_t kMostExtent = int64_t{1} << 61;

TensorSpec read_tensor(const JsonField& field) {
  field.fields({"name", "shape", "dtype", "trainable"});
  TensorSpec tensor;
  tensor.name = field.at("name").name(kMostNameBytes);
  const JsonField shape = field.at("shape");
  const int64_t dims = shape.size(kMostDims);
  for (int64_t d = 0; d < dims; ++d) tensor.shape.push_back(shape[d].integer(0, kMostExtent));
  if (const auto dtype = field.find("dtype")) {
    const std::string text = dtype->name(kMostWordBytes);
    try {
      tensor.dtype = parse_dtype(text);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", dtype->path(), error.what()));
    }
  }
  if (const auto trainable = field.find("trainable")) tensor.trainable = trainable->boolean();
  return tensor;
}

Group read_group(const JsonField& field, int64_t most_tensors) {
  field.fields({"name", "tensors"});
  Group group{field.at("name").name(kMostNameBytes), {}};
  const JsonField tensors = field.at("tensors");
  const int64_t count = tensors.size(most_tensors);
  std::unordered_set<std::string> names;
  for (int64_t t = 0; t < count; ++t) {
    group.tensors.push_back(read_tensor(tensors[t]));
    if (!names.insert(group.tensors.back().name).second) {
      tensors[t].at("name").refuse("another tensor of the group has this name, give each its own");
    }
  }
  return group;
}

}  // namespace

std::vector<Group> parse_groups(std::string_view json) {
  const nlohmann::json parsed = parse_json(json, "the group file");
  const JsonField root(parsed, "the group file");
  root.fields({"version", "groups"});
  const JsonField version = root.at("version");
  if (version.integer(0, std::numeric_limits<int32_t>::max()) != kVersion) {
    version.refuse(fmt::format("this build reads version {}", kVersion));
  }
  const JsonField groups = root.at("groups");
  const int64_t count = groups.size(kMostTensors);
  std::vector<Group> result;
  std::unordered_set<std::string> names;
  int64_t tensors = 0;
  for (int64_t g = 0; g < count; ++g) {
    result.push_back(read_group(groups[g], kMostTensors - tensors));
    tensors += static_cast<int64_t>(result.back().tensors.size());
    if (!names.insert(result.back().name).second) {
      groups[g].at("name").refuse("another group has this name, give each its own");
    }
  }
  return result;
}

std::string to_json(std::span<const Group> groups) {
  std::string json = fmt::format("{{\"version\": {},\n \"groups\": [", kVersion);
  for (size_t g = 0; g < groups.size(); ++g) {
    json += fmt::format("{}\n  {{\"name\": {},\n   \"tensors\": [", g == 0 ? "" : ",", json_string(groups[g].name));
    for (size_t t = 0; t < groups[g].tensors.size(); ++t) {
      const TensorSpec& tensor = groups[g].tensors[t];
      json += fmt::format("{}\n    {{\"name\": {}, \"shape\": [{}], \"dtype\": \"{}\", \"trainable\": {}}}",
                          t == 0 ? "" : ",", json_string(tensor.name), fmt::join(tensor.shape, ", "),
                          name(tensor.dtype), tensor.trainable);
    }
    json += "]}";
  }
  return json + "]}\n";
}

}  // namespace tide
