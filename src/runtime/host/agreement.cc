#include "runtime/host/agreement.h"

#include <algorithm>
#include <cstdlib>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace tide::host {
namespace {

using Json = nlohmann::json;

// Raised whenever the meaning of programs, windows or this text changes: ranks of different builds must not meet.
constexpr int kProtocol = 1;

Json describe_group(const RegisteredGroup& registered) {
  Json tensors = Json::array();
  for (const TensorSpec& tensor : registered.group.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"shape", tensor.shape},
                       {"dtype", name(tensor.dtype)},
                       {"trainable", tensor.trainable}});
  }
  const GroupOptions& options = registered.options;
  return {{"name", registered.group.name},
          {"gather_dtype", options.cast ? name(options.gather_dtype) : "as stored"},
          {"resident_shards", options.resident_shards},
          {"tensors", std::move(tensors)}};
}

Json describe_plan(const Plan& plan) {
  return {{"version", plan.version},
          {"nodes", plan.nodes},
          {"local", plan.local},
          {"landing", name(plan.landing)},
          {"ring_depth", plan.ring_depth},
          {"alignment", plan.alignment},
          {"chunk_bytes", plan.chunk_bytes},
          {"staging_slots", plan.staging_slots},
          {"passes", plan.passes}};
}

Plan read_plan(const Json& json) {
  Plan plan;
  json.at("version").get_to(plan.version);
  json.at("nodes").get_to(plan.nodes);
  json.at("local").get_to(plan.local);
  plan.landing = parse_landing(json.at("landing").get<std::string>());
  json.at("ring_depth").get_to(plan.ring_depth);
  json.at("alignment").get_to(plan.alignment);
  json.at("chunk_bytes").get_to(plan.chunk_bytes);
  json.at("staging_slots").get_to(plan.staging_slots);
  json.at("passes").get_to(plan.passes);
  return plan;
}

Json parse(std::span<const std::string> descriptions, size_t rank) {
  try {
    return Json::parse(descriptions[rank]);
  } catch (const Json::exception&) {
    throw Error(ErrorCode::mismatch,
                fmt::format("rank {} describes its session in a way that this version cannot read: run the same build "
                            "on every rank",
                            rank));
  }
}

// Compares rank 0's description `a` with rank `rank`'s `b`, both of this version.
class Comparison {
 public:
  Comparison(const Json& a, const Json& b, size_t rank) : a_(a), b_(b), rank_(rank) {}

  void run() const {
    const Json& groups_a = a_.at("groups");
    const Json& groups_b = b_.at("groups");
    for (size_t g = 0; g < std::min(groups_a.size(), groups_b.size()); ++g) compare_group(g, groups_a[g], groups_b[g]);
    equal("the session", "number of groups", groups_a.size(), groups_b.size());
  }

 private:
  void compare_group(size_t index, const Json& a, const Json& b) const {
    equal(fmt::format("group {}", index), "name", a.at("name"), b.at("name"));
    const std::string where = fmt::format("group '{}'", a.at("name").get<std::string>());
    equal(where, "gather_dtype", a.at("gather_dtype"), b.at("gather_dtype"));
    equal(where, "resident_shards", a.at("resident_shards"), b.at("resident_shards"));
    const Json& tensors_a = a.at("tensors");
    const Json& tensors_b = b.at("tensors");
    for (size_t t = 0; t < std::min(tensors_a.size(), tensors_b.size()); ++t) {
      equal(fmt::format("{}, tensor {}", where, t), "name", tensors_a[t].at("name"), tensors_b[t].at("name"));
      const std::string tensor = fmt::format("{}, tensor '{}'", where, tensors_a[t].at("name").get<std::string>());
      for (const char* field : {"shape", "dtype", "trainable"}) {
        equal(tensor, field, tensors_a[t].at(field), tensors_b[t].at(field));
      }
    }
    equal(where, "number of tensors", tensors_a.size(), tensors_b.size());
  }

  void equal(const std::string& where, std::string_view field, const Json& a, const Json& b) const {
    if (a == b) return;
    throw Error(ErrorCode::mismatch,
                fmt::format("ranks registered different groups: {} of {} is {} on rank 0 and {} on rank {}; register "
                            "the same on every rank",
                            field, where, a.dump(), b.dump(), rank_));
  }

  const Json& a_;
  const Json& b_;
  size_t rank_;
};

}  // namespace

std::string describe(const Plan& plan, std::span<const RegisteredGroup> groups) {
  Json described = Json::array();
  for (const RegisteredGroup& group : groups) described.push_back(describe_group(group));
  // Names are the caller's bytes, perhaps not UTF-8.
  return Json{{"protocol", kProtocol}, {"plan", describe_plan(plan)}, {"groups", std::move(described)}}.dump(
      -1, ' ', true, Json::error_handler_t::replace);
}

Plan agree(std::span<const std::string> descriptions) {
  const Json first = parse(descriptions, 0);
  size_t rank = 0;
  try {
    for (rank = 0; rank < descriptions.size(); ++rank) {
      if (descriptions[rank] == descriptions[0] && rank != 0) continue;
      const Json other = parse(descriptions, rank);
      const auto protocol = other.at("protocol").get<int64_t>();
      if (protocol != kProtocol) {
        throw Error(ErrorCode::mismatch,
                    fmt::format("rank {} speaks protocol {}, this library {}: run the same build on every rank", rank,
                                protocol, kProtocol));
      }
      Comparison(first, other, rank).run();
    }
    rank = 0;
    return read_plan(first.at("plan"));
  } catch (const Json::exception&) {
    throw Error(ErrorCode::mismatch,
                fmt::format("rank {} describes its session in a way that this version cannot read: run the same build "
                            "on every rank",
                            rank));
  }
}

std::string describe_success() { return {}; }

std::string describe_failure(const Error& error) {
  // A code, a colon, the sentence: never empty.
  return fmt::format("{}:{}", static_cast<int>(error.code()), error.what());
}

void agree_on_success(std::span<const std::string> outcomes) {
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const std::string& outcome = outcomes[rank];
    if (outcome.empty()) continue;
    const size_t colon = outcome.find(':');
    int code = static_cast<int>(ErrorCode::system);
    if (colon != std::string::npos && colon <= 2) code = std::atoi(outcome.c_str());
    if (code < 0 || code > static_cast<int>(ErrorCode::system)) code = static_cast<int>(ErrorCode::system);
    const std::string sentence = colon == std::string::npos ? outcome : outcome.substr(colon + 1);
    // What fails everywhere alike is no rank's own failure.
    const bool everywhere = std::all_of(outcomes.begin(), outcomes.end(), [&](const auto& o) { return o == outcome; });
    throw Error(static_cast<ErrorCode>(code), everywhere ? sentence : fmt::format("rank {}: {}", rank, sentence));
  }
}

}  // namespace tide::host
