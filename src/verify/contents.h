// What every byte holds, as a symbol: which element of which rank's shard or gradient, or a sum of such.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tide/dtype.h"
#include "verify/interval_map.h"
#include "verify/memory.h"

namespace tide::verify {

enum class Made : uint8_t {
  shard,     // `version` of rank's shard of a tensor, as `dtype`
  gradient,  // rank's gradient of a tensor in backward `version`
  partial,   // a sum, see terms.h
  zero,
  garbage,  // bytes of no element, or elements torn apart
};

struct Content {
  static constexpr int32_t kCaller = -1;

  Made made = Made::garbage;
  DType dtype = DType::u8;
  int32_t group = -1;
  int32_t param = -1;
  int32_t rank = -1;
  int32_t version = -1;
  int32_t term = -1;       // partial: TermId
  int32_t call = kCaller;  // sequence of the call whose operation wrote it, or kCaller
  int64_t origin = 0;      // bytes, as `dtype`, from the start of the shard, of the gradient; partial: of f32s, of
                           // the first contribution

  Content from(int64_t bytes) const {
    Content later = *this;
    later.origin += bytes;
    return later;
  }
  int64_t element() const { return origin / itemsize(dtype); }
  // The origin is the start of an element.
  bool whole() const { return origin % itemsize(dtype) == 0; }
};

std::string describe(const Content& content);

class Contents {
 public:
  explicit Contents(int32_t places) : places_(static_cast<size_t>(places)) {}

  void write(const Range& range, const Content& content) {
    places_[static_cast<size_t>(range.place)].assign(range.begin, range.end, content);
  }
  // Calls see(begin, end, content) over the range, in order; content is null for bytes never written.
  template <typename See>
  void read(const Range& range, See&& see) const {
    places_[static_cast<size_t>(range.place)].read(range.begin, range.end, see);
  }

 private:
  std::vector<IntervalMap<Content>> places_;
};

}  // namespace tide::verify
