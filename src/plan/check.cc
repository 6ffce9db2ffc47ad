#include <array>
#include <bit>
#include <limits>

#include "fmt/format.h"
#include "tide/error.h"
#include "tide/plan.h"

namespace tide {
namespace {

constexpr std::array<std::string_view, 4> kLandings{"ring", "resident", "home", "private"};

// Together they keep the size of a session's staging below 2^57 bytes.
constexpr int64_t kMostLocal = 1 << 16;
constexpr int64_t kMostSlots = 1 << 10;
constexpr int64_t kMostChunkBytes = 1 << 30;
constexpr int64_t kMostPasses = 1 << 20;
constexpr int64_t kMostAlignment = 1 << 30;
// Sixteen elements of the widest gradient: a chunk is cut at whole vectors.
constexpr int64_t kChunkGrain = 64;

void within(std::string_view field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("plan field {} is {}: give a value from {} to {}", field, value, least, most));
}

}  // namespace

std::string_view name(Landing landing) { return kLandings[static_cast<size_t>(landing)]; }

Landing parse_landing(std::string_view text) {
  for (size_t i = 0; i < kLandings.size(); ++i) {
    if (text == kLandings[i]) return static_cast<Landing>(i);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("landing '{}' is unknown: use ring, resident, home or private", text.substr(0, 64)));
}

void check(const Plan& plan) {
  if (plan.version != Plan{}.version) {
    throw Error(ErrorCode::unsupported, fmt::format("plan version is {}, this build reads version {}: plan again",
                                                    plan.version, Plan{}.version));
  }
  within("nodes", plan.nodes, 1, std::numeric_limits<int32_t>::max());
  if (plan.nodes != 1) {
    throw Error(ErrorCode::unsupported,
                fmt::format("plan field nodes is {}: this build plans one node, give 1", plan.nodes));
  }
  within("local", plan.local, 1, kMostLocal);
  if (static_cast<size_t>(plan.landing) >= kLandings.size()) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("plan field landing has no name for value {}: use one of Landing", static_cast<int>(plan.landing)));
  }
  within("ring_depth", plan.ring_depth, 1, std::numeric_limits<int32_t>::max());
  within("alignment", plan.alignment, 1, kMostAlignment);
  if (!std::has_single_bit(static_cast<uint64_t>(plan.alignment))) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("plan field alignment is {}: give a power of two", plan.alignment));
  }
  within("chunk_bytes", plan.chunk_bytes, kChunkGrain, kMostChunkBytes);
  if (plan.chunk_bytes % kChunkGrain != 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("plan field chunk_bytes is {}: give a multiple of {}", plan.chunk_bytes, kChunkGrain));
  }
  within("staging_slots", plan.staging_slots, 1, kMostSlots);
  within("passes", plan.passes, 1, kMostPasses);
}

}  // namespace tide
