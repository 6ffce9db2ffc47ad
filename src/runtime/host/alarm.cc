#include "runtime/host/alarm.h"

namespace tide::host {

Alarm::Alarm(fabric::Node& node, CounterId first, size_t queues)
    : node_(node), first_(first), queues_(queues), signalled_(static_cast<size_t>(node.world())) {}

void Alarm::set(size_t queue, const std::vector<int32_t>& missing) {
  const int32_t me = node_.rank();
  note(queue, me, me).store(missing.size(), std::memory_order_relaxed);
  for (const int32_t from : missing) note(queue, me, from).store(1, std::memory_order_seq_cst);
}

void Alarm::clear(size_t queue, const std::vector<int32_t>& missing) {
  for (const int32_t from : missing) note(queue, node_.rank(), from).store(0, std::memory_order_relaxed);
}

bool Alarm::take_down(size_t queue, int32_t from) { return take_down(queue, node_.rank(), from); }

bool Alarm::take_down(size_t queue, int32_t at, int32_t from) {
  if (note(queue, at, from).exchange(0, std::memory_order_acq_rel) == 0) return false;
  const uint64_t before = note(queue, at, at).fetch_sub(1, std::memory_order_acq_rel);
  return static_cast<int64_t>(before) <= 1;
}

void Alarm::signalled(int32_t at) {
  signalled_[static_cast<size_t>(at)] = 1;
  any_ = true;
}

void Alarm::ring() {
  if (!any_) return;
  any_ = false;
  const int32_t me = node_.rank();
  for (int32_t step = 1; step < node_.world(); ++step) {
    const int32_t at = (me + step) % node_.world();
    uint8_t& signalled = signalled_[static_cast<size_t>(at)];
    if (signalled == 0) continue;
    signalled = 0;
    bool last = false;
    for (size_t q = 0; q < queues_; ++q) {
      if (note(q, at, me).load(std::memory_order_seq_cst) != 0 && take_down(q, at, me)) last = true;
    }
    if (last) node_.ring(at);
  }
}

}  // namespace tide::host
