#include "runtime/host/calls.h"

#include <algorithm>
#include <bit>

#include "fmt/format.h"

namespace tide::host {
namespace {

// pack(): alpha's bits | hash of the mask, 24 bits | dtype, 7 bits | accumulate.
uint32_t alpha_bits(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
DType dtype_of(uint64_t word) { return static_cast<DType>(word >> 1 & 0x7F); }
bool accumulate_of(uint64_t word) { return (word & 1) != 0; }

// The first term that differs, with this rank's value and the peer's.
std::string difference(uint64_t mine, uint64_t theirs, int32_t rank, int32_t peer) {
  const auto say = [&](std::string_view field, const auto& a, const auto& b) {
    return fmt::format("{} is {} on rank {} and {} on rank {}", field, a, rank, b, peer);
  };
  if (dtype_of(mine) != dtype_of(theirs)) return say("grad_dtype", name(dtype_of(mine)), name(dtype_of(theirs)));
  if (accumulate_of(mine) != accumulate_of(theirs)) {
    return say("accumulate", accumulate_of(mine), accumulate_of(theirs));
  }
  if (alpha_bits(mine) != alpha_bits(theirs)) {
    return say("alpha", std::bit_cast<float>(alpha_bits(mine)), std::bit_cast<float>(alpha_bits(theirs)));
  }
  return fmt::format("ranks {} and {} have gradients for different tensors", rank, peer);
}

}  // namespace

uint64_t present_hash(const std::vector<bool>& present) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const bool bit : present) hash = (hash ^ (bit ? 2U : 1U)) * 0x100000001B3;
  return hash ^ hash >> 32;
}

uint64_t pack(const Terms& terms) {
  return uint64_t{std::bit_cast<uint32_t>(terms.alpha)} << 32 | (terms.present_hash & 0xFFFFFF) << 8 |
         uint64_t{static_cast<uint8_t>(terms.grad_dtype)} << 1 | uint64_t{terms.accumulate};
}

Calls::Calls(fabric::Node& node, std::vector<std::string> groups)
    : node_(node), groups_(std::move(groups)), agreed_(static_cast<size_t>(node.world())) {}

void Calls::begin(Collective kind, int32_t group, const Terms& terms) {
  record_.kind = static_cast<uint32_t>(kind);
  record_.group = static_cast<uint32_t>(group);
  record_.mask_hash = kind == Collective::reduce_scatter ? pack(terms) : 0;
  if (!published()) return;
  record_.sequence = ++sequence_;
  std::fill(agreed_.begin(), agreed_.end(), uint8_t{0});
  agreed_[static_cast<size_t>(node_.rank())] = 1;
  node_.publish(record_);
}

void Calls::compare() {
  if (!published()) return;
  for (int32_t peer = 0; peer < node_.world(); ++peer) {
    uint8_t& agreed = agreed_[static_cast<size_t>(peer)];
    if (agreed != 0) continue;
    const fabric::CallRecord theirs = node_.published(peer, record_.sequence);
    if (theirs.sequence != record_.sequence) continue;
    if (theirs.kind != record_.kind || theirs.group != record_.group) {
      throw Error(ErrorCode::mismatch,
                  fmt::format("ranks call different collectives: rank {} is in {}, rank {} in {}; make the same calls "
                              "in the same order on every rank",
                              node_.rank(), current(), peer, describe(theirs)));
    }
    if (theirs.mask_hash != record_.mask_hash) {
      throw Error(ErrorCode::mismatch,
                  fmt::format("ranks disagree on {}: {}; pass the same on every rank", current(),
                              difference(record_.mask_hash, theirs.mask_hash, node_.rank(), peer)));
    }
    agreed = 1;
  }
}

std::string Calls::current() const { return describe(record_); }

std::string Calls::describe(const fabric::CallRecord& record) const {
  // A peer's record is outside data: its numbers are checked before they index anything.
  const std::string_view kind = record.kind <= static_cast<uint32_t>(Collective::reduce_scatter)
                                    ? name(static_cast<Collective>(record.kind))
                                    : std::string_view("an unknown collective");
  const std::string group =
      record.group < groups_.size() ? fmt::format("'{}'", groups_[record.group]) : fmt::format("#{}", record.group);
  if (static_cast<Collective>(record.kind) == Collective::release) return fmt::format("{} of group {}", kind, group);
  return fmt::format("{} of group {} (call {})", kind, group, record.sequence);
}

}  // namespace tide::host
