// Values over half-open byte ranges. Value needs `Value from(int64_t bytes) const`: what it says about the part of its
// range that starts so many bytes further.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace tide::verify {

template <typename Value>
class IntervalMap {
 public:
  void assign(int64_t begin, int64_t end, const Value& value) {
    if (begin >= end) return;
    split(begin);
    split(end);
    intervals_.erase(intervals_.lower_bound(begin), intervals_.lower_bound(end));
    intervals_.emplace(begin, Interval{end, value});
  }

  // Calls see(begin, end, value) over all of [begin, end), in order; value is null where nothing was assigned.
  template <typename See>
  void read(int64_t begin, int64_t end, See&& see) const {
    if (begin >= end) return;
    auto it = intervals_.upper_bound(begin);
    if (it != intervals_.begin() && std::prev(it)->second.end > begin) --it;
    int64_t at = begin;
    for (; it != intervals_.end() && it->first < end; ++it) {
      if (it->first > at) see(at, it->first, static_cast<const Value*>(nullptr));
      const int64_t from = std::max(begin, it->first);
      const int64_t to = std::min(end, it->second.end);
      const Value value = it->second.value.from(from - it->first);
      see(from, to, &value);
      at = to;
    }
    if (at < end) see(at, end, static_cast<const Value*>(nullptr));
  }

  // Calls change(value) for every interval of [begin, end), cut at its ends; gaps get a default Value first.
  template <typename Change>
  void update(int64_t begin, int64_t end, Change&& change) {
    if (begin >= end) return;
    split(begin);
    split(end);
    int64_t at = begin;
    for (auto it = intervals_.lower_bound(begin); at < end;) {
      if (it == intervals_.end() || it->first > at) {
        const int64_t to = it == intervals_.end() ? end : std::min(end, it->first);
        it = intervals_.emplace_hint(it, at, Interval{to, Value{}});
      }
      change(it->second.value);
      at = it->second.end;
      ++it;
    }
  }

 private:
  struct Interval {
    int64_t end;
    Value value;
  };

  void split(int64_t at) {
    auto it = intervals_.lower_bound(at);
    if (it == intervals_.begin()) return;
    --it;
    if (it->second.end <= at) return;
    intervals_.emplace(at, Interval{it->second.end, it->second.value.from(at - it->first)});
    it->second.end = at;
  }

  std::map<int64_t, Interval> intervals_;
};

}  // namespace tide::verify
