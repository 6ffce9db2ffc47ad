#include <limits>

#include "fmt/format.h"
#include "layout/json_field.h"
#include "plan/account.h"
#include "plan/fnv.h"
#include "tide/error.h"
#include "tide/plan.h"

namespace tide {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kKind = "tide-plan";

// Over all groups in order.
std::string groups_fingerprint(std::span<const Layout> layouts) {
  Fnv hash;
  for (const Layout& layout : layouts) hash.add(static_cast<int64_t>(fingerprint(layout)));
  return fmt::format("{:016x}", hash.value());
}

Json describe(const Account& account) {
  return {{"tensors", account.tensors},
          {"elements", account.elements},
          {"shard_bytes", account.shard_bytes},
          {"landing_bytes", account.landing_bytes},
          {"reduce_output_bytes", account.reduce_output_bytes},
          {"gather_copies", account.gather_copies},
          {"push_copies", account.push_copies}};
}

// The account is for people and follows from the rest, so only its form is checked: a plan may be edited by hand.
void check_counts(const JsonField& field) {
  for (const std::string_view key :
       {"tensors", "elements", "shard_bytes", "landing_bytes", "reduce_output_bytes", "gather_copies", "push_copies"}) {
    field.at(key).integer(0, std::numeric_limits<int64_t>::max());
  }
}

void check_account(const JsonField& root) {
  if (const auto groups = root.find("groups")) {
    const int64_t count = groups->size(1'000'000);
    for (int64_t g = 0; g < count; ++g) {
      const JsonField group = (*groups)[g];
      group.fields({"name", "tensors", "elements", "shard_bytes", "landing_bytes", "reduce_output_bytes",
                    "gather_copies", "push_copies"});
      group.at("name").text();
      check_counts(group);
    }
  }
  if (const auto totals = root.find("totals")) {
    totals->fields(
        {"tensors", "elements", "shard_bytes", "landing_bytes", "reduce_output_bytes", "gather_copies", "push_copies"});
    check_counts(*totals);
  }
}

int32_t small_integer(const JsonField& field) {
  return static_cast<int32_t>(field.integer(std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()));
}

int64_t large_integer(const JsonField& field) {
  return field.integer(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
}

Plan read_fields(const JsonField& root) {
  Plan plan;
  plan.nodes = small_integer(root.at("nodes"));
  plan.local = small_integer(root.at("local"));
  plan.landing = parse_landing(root.at("landing").name(64));
  plan.ring_depth = small_integer(root.at("ring_depth"));
  plan.alignment = large_integer(root.at("alignment"));
  plan.chunk_bytes = large_integer(root.at("chunk_bytes"));
  plan.staging_slots = small_integer(root.at("staging_slots"));
  plan.passes = small_integer(root.at("passes"));
  return plan;
}

void check_groups(const Plan& plan, const std::string& planned, std::span<const Layout> layouts) {
  const int64_t world = int64_t{plan.nodes} * plan.local;
  for (const Layout& layout : layouts) {
    if (layout.world() == world && layout.options().alignment == plan.alignment) continue;
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("plan is for {} ranks and alignment {}, group '{}' is laid out for {} and {}: run tide plan "
                    "again",
                    world, plan.alignment, layout.group().name, layout.world(), layout.options().alignment));
  }
  const std::string given = groups_fingerprint(layouts);
  if (planned != given) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("plan is for groups {}, these are {}: run tide plan again", planned, given));
  }
}

}  // namespace

std::string to_json(const Plan& plan, std::span<const Layout> layouts) {
  Json groups = Json::array();
  Account totals;
  for (const Layout& layout : layouts) {
    const Account one = account(plan, layout);
    Json group{{"name", layout.group().name}};
    group.update(describe(one));
    groups.push_back(std::move(group));
    totals = totals + one;
  }
  const Json json{{"version", plan.version},
                  {"kind", kKind},
                  {"nodes", plan.nodes},
                  {"local", plan.local},
                  {"landing", name(plan.landing)},
                  {"ring_depth", plan.ring_depth},
                  {"alignment", plan.alignment},
                  {"chunk_bytes", plan.chunk_bytes},
                  {"staging_slots", plan.staging_slots},
                  {"passes", plan.passes},
                  {"groups_fingerprint", groups_fingerprint(layouts)},
                  {"groups", std::move(groups)},
                  {"totals", describe(totals)}};
  return json.dump(2, ' ', true, Json::error_handler_t::replace) + "\n";
}

Plan parse_plan(std::string_view json, std::span<const Layout> layouts) {
  const nlohmann::json parsed = parse_json(json, "the plan");
  const JsonField root(parsed, "the plan");
  // Before the other fields: another version may have others.
  if (!parsed.is_object()) root.refuse("give a plan that tide plan wrote");
  const JsonField version = root.at("version");
  if (small_integer(version) != Plan{}.version) {
    version.refuse(fmt::format("this build reads version {}, run tide plan again", Plan{}.version));
  }
  const JsonField kind = root.at("kind");
  if (kind.text() != kKind) kind.refuse(fmt::format("a plan's is \"{}\"", kKind));
  root.fields({"version", "kind", "nodes", "local", "landing", "ring_depth", "alignment", "chunk_bytes",
               "staging_slots", "passes", "groups_fingerprint", "groups", "totals"});
  const Plan plan = read_fields(root);
  check(plan);
  const JsonField planned = root.at("groups_fingerprint");
  const std::string hash = planned.text();
  if (hash.size() != 16 || hash.find_first_not_of("0123456789abcdef") != std::string::npos) {
    planned.refuse("give 16 hexadecimal digits");
  }
  check_account(root);
  check_groups(plan, hash, layouts);
  return plan;
}

}  // namespace tide
