#include "fabric/node.h"

#include <algorithm>

#include "fabric/node_impl.h"

namespace tide::fabric {

Node::Node(const NodeOptions& options) : impl_(std::make_unique<Impl>(options)) { impl_->attach(); }

Node::~Node() = default;

int32_t Node::rank() const { return impl_->rank(); }
int32_t Node::world() const { return impl_->world(); }

std::vector<std::string> Node::exchange(const std::string& mine) {
  if (mine.size() > kMostBlob) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a blob of {} bytes to exchange: give at most {}", mine.size(), kMostBlob));
  }
  return impl_->collective("exchange", [&] { return impl_->gather(Step::exchange, mine); });
}

void Node::map(int64_t window_bytes, int64_t shared_bytes, int32_t counters) {
  if (impl_->mapped) throw Error(ErrorCode::invalid_argument, "map() was called before: a node maps its memory once");
  impl_->collective("map", [&] { impl_->map(window_bytes, shared_bytes, counters); });
}

std::byte* Node::window(int32_t local) const { return impl_->windows[static_cast<size_t>(local)].data(); }
std::byte* Node::shared() const { return impl_->shared.data(); }

std::atomic<uint64_t>& Node::counter(int32_t at, int32_t id, int32_t from) const {
  static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));
  std::byte* pair = impl_->counter_memory.data() + (int64_t{at} * impl_->world() + from) * impl_->pair_bytes;
  return reinterpret_cast<std::atomic<uint64_t>*>(pair)[id];
}

void Node::ring(int32_t at) { impl_->control().ring(at); }
uint32_t Node::doorbell() const { return impl_->control().doorbell(); }

void Node::sleep(uint32_t seen, Clock::time_point deadline) {
  impl_->require_own_process("sleep");
  impl_->control().sleep(seen, std::min<std::chrono::nanoseconds>(kSleepSlice, deadline - Clock::now()));
}

void Node::check(bool thorough) { impl_->check(thorough, false); }

void Node::abort(ErrorCode code, std::string_view sentence) {
  impl_->require_own_process("abort");
  impl_->control().abort(code, sentence);
}

void Node::publish(const CallRecord& record) {
  impl_->require_own_process("publish");
  impl_->published = record.sequence;
  impl_->control().publish(record);
}

CallRecord Node::published(int32_t at, uint64_t sequence) const { return impl_->control().published(at, sequence); }

void Node::leave() { impl_->leave(); }

}  // namespace tide::fabric
