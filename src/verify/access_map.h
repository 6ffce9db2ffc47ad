// The last writer and the readers since, of every byte: finds two accesses without an order, one of them a write.
#pragma once

#include <cstdint>
#include <vector>

#include "verify/happens_before.h"
#include "verify/interval_map.h"
#include "verify/memory.h"

namespace tide::verify {

class AccessMap {
 public:
  explicit AccessMap(int32_t places) : places_(static_cast<size_t>(places)) {}

  struct Conflict {
    Epoch earlier;  // track -1: none
    bool earlier_writes = false;
    int64_t byte = 0;  // first of the run that both touch
  };

  // Enters an access of the event that `order` has just seen on `track`, and returns a conflict with an access that is
  // not ordered before it.
  Conflict enter(const Range& range, bool write, int32_t track, const HappensBefore& order);

 private:
  struct Use {
    Epoch writer;
    std::vector<Epoch> readers;
    Use from(int64_t) const { return *this; }
  };
  std::vector<IntervalMap<Use>> places_;
};

}  // namespace tide::verify
