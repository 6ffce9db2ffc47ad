#include "runtime/host/placement.h"

#include <algorithm>

namespace tide::host {

Placement place(const Space& space) {
  constexpr int64_t kPage = 4096;
  Placement placement;
  for (const Region& region : space.regions) {
    int64_t& end = region.scope == Scope::rank ? placement.window_bytes : placement.shared_bytes;
    const int64_t alignment = std::max<int64_t>(region.alignment, 1);
    const int64_t offset = (end + alignment - 1) / alignment * alignment;
    placement.offsets.push_back(offset);
    end = offset + region.bytes;
  }
  placement.window_bytes = std::max(placement.window_bytes, kPage);
  placement.shared_bytes = std::max(placement.shared_bytes, kPage);
  return placement;
}

}  // namespace tide::host
