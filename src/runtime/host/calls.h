// The calls of this rank, as its peers see them: published before the first signal, compared while waiting and at the
// end, and named in errors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabric/node.h"
#include "tide/dtype.h"
#include "tide/program.h"

namespace tide::host {

// What else than kind and group the ranks must agree on in a reduce-scatter.
struct Terms {
  DType grad_dtype = DType::f32;
  bool accumulate = false;
  float alpha = 1.0F;
  uint64_t present_hash = 0;  // of the gradient mask
};

uint64_t present_hash(const std::vector<bool>& present);

// The terms in one word, field by field, so that a difference can be named.
uint64_t pack(const Terms& terms);

class Calls {
 public:
  Calls(fabric::Node& node, std::vector<std::string> groups);

  // Starts a call. All but releases, which bind no peer, take a sequence number and are published.
  void begin(Collective kind, int32_t group, const Terms& terms);

  // Throws Error(mismatch) naming both calls and both ranks when a peer's call of this sequence number is another one.
  // A peer that is not there yet is no difference.
  void compare();

  // "all-gather of group 'layers.3' (call 12)"
  std::string current() const;

 private:
  std::string describe(const fabric::CallRecord& record) const;
  bool published() const { return static_cast<Collective>(record_.kind) != Collective::release; }

  fabric::Node& node_;
  std::vector<std::string> groups_;
  uint64_t sequence_ = 0;
  fabric::CallRecord record_;
  std::vector<uint8_t> agreed_;  // peers whose record of this call was seen and equal
};

}  // namespace tide::host
