#include <algorithm>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "json_mutations.h"
#include "nlohmann/json.hpp"
#include "plan/account.h"
#include "tide/collectives.h"
#include "tide/error.h"
#include "tide/group_file.h"
#include "tide/models.h"
#include "tide/plan.h"

namespace tide {
namespace {

using Json = nlohmann::ordered_json;

bool same(const Plan& a, const Plan& b) {
  return a.version == b.version && a.nodes == b.nodes && a.local == b.local && a.landing == b.landing &&
         a.ring_depth == b.ring_depth && a.alignment == b.alignment && a.chunk_bytes == b.chunk_bytes &&
         a.staging_slots == b.staging_slots && a.passes == b.passes;
}

Plan odd_plan() {
  return {.local = 3,
          .landing = Landing::private_copy,
          .ring_depth = 5,
          .alignment = 64,
          .chunk_bytes = 4096,
          .staging_slots = 4,
          .passes = 2};
}

std::vector<Group> odd_groups() {
  return {{"a", {{"weight", {17, 3}, DType::bf16, true}, {"frozen", {4}, DType::f32, false}, {"none", {0, 2}}}},
          {"b", {{"scale", {}, DType::f32, true}, {"wide", {2, 700}, DType::f32, true}}},
          {"c", {}}};
}

std::vector<Layout> lay_out(const Plan& plan, const std::vector<Group>& groups, bool cast = false) {
  std::vector<Layout> layouts;
  for (const Group& group : groups) {
    layouts.emplace_back(group, LayoutOptions{.world = plan.local, .alignment = plan.alignment, .cast = cast});
  }
  return layouts;
}

template <typename Call>
std::string complaint(Call&& call, ErrorCode code = ErrorCode::invalid_argument) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(name(error.code()), name(code));
    return error.what();
  }
  return "none";
}

// What parse_plan() says of the odd plan's file once `edit` has changed it.
template <typename Edit>
std::string complaint_after(Edit&& edit, ErrorCode code = ErrorCode::invalid_argument) {
  const auto layouts = lay_out(odd_plan(), odd_groups());
  Json json = Json::parse(to_json(odd_plan(), layouts));
  edit(json);
  return complaint([&] { parse_plan(json.dump(), layouts); }, code);
}

TEST(PlanJson, ReadsWhatItWrites) {
  const auto layouts = lay_out(odd_plan(), odd_groups());
  const std::string json = to_json(odd_plan(), layouts);
  EXPECT_TRUE(same(parse_plan(json, layouts), odd_plan())) << json;
  EXPECT_EQ(to_json(parse_plan(json, layouts), layouts), json);
  EXPECT_EQ(json.rfind("{\n  \"version\": 1,\n  \"kind\": \"tide-plan\",", 0), 0U) << json;
  EXPECT_TRUE(same(parse_plan(to_json(Plan{}, {}), {}), Plan{}));
}

TEST(PlanJson, AccountsForEveryGroup) {
  const Json json = Json::parse(to_json(odd_plan(), lay_out(odd_plan(), odd_groups())));
  // Weight: 6 rows of 3 bf16 a rank, in ranks 0 and 1 cut by the border of a pass at element 16; frozen: 2 f32 a rank.
  EXPECT_EQ(json["groups"][0], Json::parse(R"({"name": "a", "tensors": 3, "elements": 55, "shard_bytes": 64,
      "landing_bytes": 192, "reduce_output_bytes": 72, "gather_copies": 2, "push_copies": 4})"));
  // Wide: one row of 700 f32 in ranks 0 and 1, in output elements 1..700; a chunk has 1024 elements, a pass 352.
  EXPECT_EQ(json["groups"][1], Json::parse(R"({"name": "b", "tensors": 2, "elements": 1401, "shard_bytes": 2816,
      "landing_bytes": 8464, "reduce_output_bytes": 2804, "gather_copies": 2, "push_copies": 5})"));
  EXPECT_EQ(json["groups"][2]["landing_bytes"], 0);
  for (const char* key :
       {"tensors", "elements", "shard_bytes", "landing_bytes", "reduce_output_bytes", "gather_copies", "push_copies"}) {
    int64_t sum = 0;
    for (const Json& group : json["groups"]) sum += group[key].get<int64_t>();
    EXPECT_EQ(json["totals"][key].get<int64_t>(), sum) << key;
  }
}

// The account must count what the builders build.
TEST(PlanJson, CountsTheCopiesOfThePrograms) {
  std::mt19937_64 random(7);
  for (const int32_t world : {1, 2, 3, 5, 8}) {
    for (int i = 0; i < 24; ++i) {
      const bool cast = i % 3 == 0;
      Plan plan;
      plan.local = world;
      plan.landing = cast ? Landing::ring : static_cast<Landing>(i % 4);
      plan.chunk_bytes = 64 * (1 + static_cast<int64_t>(random() % 20));
      plan.passes = 1 + static_cast<int32_t>(random() % 4);
      Group group{"g", {}};
      for (uint64_t t = random() % 6; t > 0; --t) {
        group.tensors.push_back({fmt::format("t{}", t),
                                 {static_cast<int64_t>(random() % 20), static_cast<int64_t>(random() % 40)},
                                 DType::f32,
                                 random() % 4 != 0});
      }
      const auto layouts = lay_out(plan, {group}, cast);
      const Space space = make_space(plan, layouts, {i % 2 == 0});
      int64_t gathers = 0;
      int64_t pushes = 0;
      for (int32_t rank = 0; rank < world; ++rank) {
        const Program gather = all_gather(plan, space, layouts[0], 0, rank, Pieces::move);
        const Program reduce = reduce_scatter(plan, space, layouts[0], rank, cast ? DType::bf16 : DType::f32, {});
        const auto moves = [](const Operation& op) { return op.kind == OpKind::copy || op.kind == OpKind::cast; };
        gathers = std::max(gathers, std::count_if(gather.ops.begin(), gather.ops.end(), moves));
        pushes = std::max(pushes, std::count_if(reduce.ops.begin(), reduce.ops.end(), moves));
      }
      const Account counted = account(plan, layouts[0]);
      EXPECT_EQ(counted.gather_copies, gathers) << world << " " << i;
      EXPECT_EQ(counted.push_copies, pushes) << world << " " << i;
    }
  }
}

TEST(PlanJson, RefusesByFieldAndValue) {
  EXPECT_EQ(complaint([] { parse_plan("[1]", {}); }), "the plan is an array of 1: give a plan that tide plan wrote");
  EXPECT_EQ(complaint([] { parse_plan("{}", {}); }), "version is missing: add it");
  EXPECT_EQ(complaint([] { parse_plan("{\"version\": 1,", {}); }),
            "the plan ends at byte 14 in the middle of its JSON: give the whole text");
  EXPECT_EQ(complaint_after([](Json& j) {
              j["version"] = 2;
              j["rails"] = 4;
            }),
            "version is 2: this build reads version 1, run tide plan again");
  EXPECT_EQ(complaint_after([](Json& j) { j["kind"] = "tide-group"; }),
            "kind is \"tide-group\": a plan's is \"tide-plan\"");
  EXPECT_NE(complaint_after([](Json& j) { j["rails"] = 4; }).find("rails is not a known field: use version, kind"),
            std::string::npos);
  EXPECT_EQ(complaint_after([](Json& j) { j.erase("passes"); }), "passes is missing: add it");
  EXPECT_EQ(complaint_after([](Json& j) { j["passes"] = 1.5; }),
            "passes is 1.5: give a whole number from -2147483648 to 2147483647");
  EXPECT_EQ(complaint_after([](Json& j) { j["landing"] = "private_copy"; }),
            "landing 'private_copy' is unknown: use ring, resident, home or private");
  EXPECT_EQ(complaint_after([](Json& j) { j["landing"] = 3; }), "landing is 3: give a string");
  EXPECT_EQ(complaint_after([](Json& j) { j["chunk_bytes"] = 100; }),
            "plan field chunk_bytes is 100: give a multiple of 64");
  EXPECT_EQ(complaint_after([](Json& j) { j["groups_fingerprint"] = "12AB"; }),
            "groups_fingerprint is \"12AB\": give 16 hexadecimal digits");
  EXPECT_EQ(
      complaint_after([](Json& j) { j["groups"][1]["bytes"] = 1; }).rfind("groups[1].bytes is not a known field", 0),
      0U);
  EXPECT_EQ(complaint_after([](Json& j) { j["totals"]["elements"] = -1; }),
            "totals.elements is -1: give a whole number from 0 to 9223372036854775807");
  EXPECT_EQ(complaint_after([](Json& j) { j["totals"].erase("elements"); }), "totals.elements is missing: add it");
}

TEST(PlanJson, MayBeEditedByHand) {
  EXPECT_EQ(complaint_after([](Json& j) {
              j["chunk_bytes"] = 8192;
              j["staging_slots"] = 1;
            }),
            "none");
  EXPECT_EQ(complaint_after([](Json& j) {
              j.erase("groups");
              j.erase("totals");
            }),
            "none");
}

TEST(PlanJson, RefusesOtherGroups) {
  const Plan plan = odd_plan();
  const auto layouts = lay_out(plan, odd_groups());
  const std::string json = to_json(plan, layouts);
  const std::string planned = Json::parse(json)["groups_fingerprint"];
  const auto complaint_for = [&](const std::vector<Layout>& others) {
    return complaint([&] { parse_plan(json, others); });
  };
  auto groups = odd_groups();
  groups[0].tensors[0].shape[0] = 18;
  const auto others = lay_out(plan, groups);
  const std::string given = Json::parse(to_json(plan, others))["groups_fingerprint"];
  EXPECT_EQ(complaint_for(others),
            fmt::format("plan is for groups {}, these are {}: run tide plan again", planned, given));
  EXPECT_NE(complaint_for({}), "none");
  groups = odd_groups();
  std::swap(groups[0], groups[1]);
  EXPECT_NE(complaint_for(lay_out(plan, groups)), "none");
  EXPECT_NE(complaint_for(lay_out(plan, odd_groups(), true)), "none");
  Plan wider = plan;
  wider.local = 4;
  EXPECT_EQ(complaint_for(lay_out(wider, odd_groups())),
            "plan is for 3 ranks and alignment 64, group 'a' is laid out for 4 and 64: run tide plan again");
}

TEST(PlanJson, DamageIsRefusedOrRead) {
  const auto layouts = lay_out(odd_plan(), odd_groups());
  test::survive(to_json(odd_plan(), layouts), 6000, [&](const std::string& text) { parse_plan(text, layouts); });
}

TEST(PlanJson, SchemaKnowsTheSameFields) {
  const auto schema = nlohmann::json::parse(read_file(TIDE_SOURCE_DIR "/docs/schema/plan.schema.json"));
  const auto written = nlohmann::json::parse(to_json(odd_plan(), lay_out(odd_plan(), odd_groups())));
  const auto keys = [](const nlohmann::json& object) {
    std::vector<std::string> names;
    for (const auto& item : object.items()) names.push_back(item.key());
    return names;
  };
  const auto& properties = schema["properties"];
  EXPECT_EQ(keys(properties), keys(written));
  EXPECT_EQ(keys(properties["groups"]["items"]["properties"]), keys(written["groups"][0]));
  EXPECT_EQ(keys(properties["totals"]["properties"]), keys(written["totals"]));
  for (const auto& landing : properties["landing"]["enum"]) {
    EXPECT_EQ(name(parse_landing(landing.get<std::string>())), landing.get<std::string>());
  }
  // The schema's bounds are those of check().
  for (const auto& [field, least, most] :
       std::vector<std::tuple<std::string, int64_t, int64_t>>{{"local", 1, 1 << 16},
                                                              {"ring_depth", 1, 2147483647},
                                                              {"alignment", 1, 1 << 30},
                                                              {"chunk_bytes", 64, 1 << 30},
                                                              {"staging_slots", 1, 1 << 10},
                                                              {"passes", 1, 1 << 20}}) {
    EXPECT_EQ(properties[field]["minimum"], least) << field;
    EXPECT_EQ(properties[field]["maximum"], most) << field;
    Json json = Json::parse(to_json(Plan{}, {}));
    for (const auto& [value, good] :
         std::vector<std::pair<int64_t, bool>>{{least - 1, false}, {least, true}, {most, true}, {most + 1, false}}) {
      json[field] = value;
      EXPECT_EQ(complaint([&] { parse_plan(json.dump(), {}); }) == "none", good) << field << " " << value;
    }
  }
}

TEST(PlanCheck, RefusesByFieldAndValue) {
  const auto refuse = [](auto&& edit, ErrorCode code = ErrorCode::invalid_argument) {
    Plan plan;
    edit(plan);
    return complaint([&] { check(plan); }, code);
  };
  EXPECT_EQ(refuse([](Plan&) {}), "none");
  EXPECT_EQ(refuse([](Plan& p) { p.version = 0; }, ErrorCode::unsupported),
            "plan version is 0, this build reads version 1: plan again");
  EXPECT_EQ(refuse([](Plan& p) { p.nodes = 2; }, ErrorCode::unsupported),
            "plan field nodes is 2: this build plans one node, give 1");
  EXPECT_EQ(refuse([](Plan& p) { p.nodes = 0; }), "plan field nodes is 0: give a value from 1 to 2147483647");
  EXPECT_EQ(refuse([](Plan& p) { p.local = -1; }), "plan field local is -1: give a value from 1 to 65536");
  EXPECT_EQ(refuse([](Plan& p) { p.ring_depth = 0; }), "plan field ring_depth is 0: give a value from 1 to 2147483647");
  EXPECT_EQ(refuse([](Plan& p) { p.alignment = 24; }), "plan field alignment is 24: give a power of two");
  EXPECT_EQ(refuse([](Plan& p) { p.chunk_bytes = 0; }),
            "plan field chunk_bytes is 0: give a value from 64 to 1073741824");
  EXPECT_EQ(refuse([](Plan& p) { p.staging_slots = 0; }), "plan field staging_slots is 0: give a value from 1 to 1024");
  EXPECT_EQ(refuse([](Plan& p) { p.passes = 0; }), "plan field passes is 0: give a value from 1 to 1048576");
  EXPECT_EQ(refuse([](Plan& p) { p.landing = static_cast<Landing>(9); }),
            "plan field landing has no name for value 9: use one of Landing");
}

TEST(Fingerprint, ChangesWithEveryFieldOfAPlan) {
  std::vector<Plan> plans(10);
  plans[1].version = 2;
  plans[2].nodes = 2;
  plans[3].local = 2;
  plans[4].landing = Landing::ring;
  plans[5].ring_depth = 4;
  plans[6].alignment = 512;
  plans[7].chunk_bytes = 64;
  plans[8].staging_slots = 3;
  plans[9].passes = 2;
  for (size_t a = 0; a < plans.size(); ++a) {
    for (size_t b = 0; b < plans.size(); ++b) {
      EXPECT_EQ(fingerprint(plans[a]) == fingerprint(plans[b]), a == b) << a << " " << b;
    }
  }
}

TEST(Fingerprint, ChangesWithEveryFieldOfALayout) {
  const Group base{"g", {{"ab", {2, 3}, DType::f32, true}, {"c", {4}, DType::f32, true}}};
  std::vector<Layout> layouts;
  const auto add = [&](auto&& edit, const LayoutOptions& options = {.world = 2}) {
    Group group = base;
    edit(group);
    layouts.emplace_back(group, options);
  };
  add([](Group&) {});
  add([](Group& g) { g.name = "h"; });
  add([](Group& g) { g.tensors[0].name = "a"; });
  add([](Group& g) { g.tensors[0].name = "a", g.tensors[1].name = "bc"; });
  add([](Group& g) { g.tensors[0].shape = {3, 2}; });
  add([](Group& g) { g.tensors[0].shape = {2, 3, 1}; });
  add([](Group& g) { g.tensors[1].dtype = DType::bf16; });
  add([](Group& g) { g.tensors[1].trainable = false; });
  add([](Group& g) { g.tensors.pop_back(); });
  add([](Group& g) { std::swap(g.tensors[0], g.tensors[1]); });
  add([](Group&) {}, {.world = 3});
  add([](Group&) {}, {.world = 2, .alignment = 1});
  add([](Group&) {}, {.world = 2, .cast = true});
  add([](Group&) {}, {.world = 2, .cast = true, .gather_dtype = DType::f16});
  for (size_t a = 0; a < layouts.size(); ++a) {
    for (size_t b = 0; b < layouts.size(); ++b) {
      EXPECT_EQ(fingerprint(layouts[a]) == fingerprint(layouts[b]), a == b) << a << " " << b;
    }
  }
  const Layout unused(base, {.world = 2, .gather_dtype = DType::f16});
  EXPECT_EQ(fingerprint(unused), fingerprint(layouts[0]));
}

// Fingerprints meet in files of other builds, so they must not change by accident.
TEST(Fingerprint, Golden) {
  EXPECT_EQ(fmt::format("{:016x}", fingerprint(Plan{})), "7c411d27ec701bdb");
  const Layout layout(Group{"g", {{"w", {2, 3}, DType::f32, true}}}, {.world = 2});
  EXPECT_EQ(fmt::format("{:016x}", fingerprint(layout)), "0fe4e113b851c487");
}

TEST(PlanJson, ModelsAccountsAreQuickAndFit) {
  Plan plan;
  plan.local = 8;
  const auto layouts = lay_out(plan, model_groups("llama-3.1-405b", DType::bf16));
  const Json json = Json::parse(to_json(plan, layouts));
  EXPECT_EQ(json["totals"]["elements"].get<int64_t>(), 405'853'388'800);
  EXPECT_EQ(json["totals"]["landing_bytes"].get<int64_t>(), 2 * 405'853'388'800);
  EXPECT_EQ(json["totals"]["reduce_output_bytes"].get<int64_t>(), 405'853'388'800 / 2);
}

}  // namespace
}  // namespace tide
