#include "verify/access_map.h"

namespace tide::verify {

AccessMap::Conflict AccessMap::enter(const Range& range, bool write, int32_t track, const HappensBefore& order) {
  IntervalMap<Use>& uses = places_[static_cast<size_t>(range.place)];
  Conflict conflict;
  const auto against = [&](const Epoch& earlier, bool earlier_writes, int64_t byte) {
    if (conflict.earlier.track >= 0 || earlier.track < 0 || order.before(earlier, track)) return;
    conflict = {earlier, earlier_writes, byte};
  };
  const Epoch now = order.epoch(track);
  if (write) {
    uses.read(range.begin, range.end, [&](int64_t begin, int64_t, const Use* use) {
      if (use == nullptr) return;
      against(use->writer, true, begin);
      for (const Epoch& reader : use->readers) against(reader, false, begin);
    });
    uses.assign(range.begin, range.end, {now, {}});
    return conflict;
  }
  uses.update(range.begin, range.end, [&](Use& use) {
    against(use.writer, true, range.begin);
    for (Epoch& reader : use.readers) {
      if (reader.track != track) continue;
      reader = now;
      return;
    }
    use.readers.push_back(now);
  });
  return conflict;
}

}  // namespace tide::verify
