#include "runtime/host/engine.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "fmt/format.h"
#include "runtime/host/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tide::host {
namespace {

using fabric::Clock;

// About what waking a sleeper costs, so that spinning at most doubles a short wait.
constexpr std::chrono::microseconds kSpin{30};

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int32_t processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // More processors than the set holds: then there are enough.
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1 << 16;
  return CPU_COUNT(&set);
}

}  // namespace

Engine::Engine(fabric::Node& node, const Space& space, const Placement& placement, Calls& calls,
               std::chrono::milliseconds deadline)
    : node_(node),
      space_(space),
      placement_(placement),
      calls_(calls),
      deadline_(deadline),
      alarm_(node, static_cast<CounterId>(space.counters.size()), space.queues.size()),
      oversubscribed_(node.world() > processors()),
      next_(space.queues.size()),
      missing_(space.queues.size()) {
  for (size_t r = 0; r < space.regions.size(); ++r) {
    std::byte* base = space.regions[r].scope == Scope::rank ? node.window(node.rank()) : node.shared();
    own_.push_back(base + placement.offsets[r]);
  }
  for (Missing& missing : missing_) {
    missing.ranks.reserve(static_cast<size_t>(node.world()));
    missing.waits.reserve(static_cast<size_t>(node.world()));
  }
  for (const Counter& counter : space.counters) {
    consumed_.insert(consumed_.end(), static_cast<size_t>(node.world()), -counter.primed);
  }
}

double Engine::run(const Prepared& prepared, const Binding& binding) {
  const Program& program = prepared.program();
  if (binding.call_regions.size() != prepared.call_regions()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} call regions are bound, the program has {}: bind each",
                                                         binding.call_regions.size(), prepared.call_regions()));
  }
  if (recorded_.size() < static_cast<size_t>(program.events)) recorded_.resize(static_cast<size_t>(program.events));
  if (operands_.size() < program.sources.size()) operands_.resize(program.sources.size());
  std::fill(next_.begin(), next_.end(), size_t{0});
  ++run_;
  waited_ = 0;
  const Running running{prepared, binding};
  const FloatEnvironment environment;
  try {
    node_.check(false);
    while (!advance(running)) block(running);
    alarm_.ring();
    calls_.compare();
  } catch (const Error& error) {
    fail(running, error.code(), error.what());
  } catch (const std::exception& error) {
    fail(running, ErrorCode::system, error.what());
  }
  return waited_;
}

bool Engine::advance(const Running& running) {
  for (bool moved = true; moved;) {
    moved = false;
    bool finished = true;
    for (size_t q = 0; q < running.prepared.queues(); ++q) {
      if (advance_queue(running, q, moved) == State::blocked) finished = false;
    }
    if (finished) return true;
  }
  return false;
}

Engine::State Engine::advance_queue(const Running& running, size_t queue, bool& moved) {
  while (const Operation* op = at(running, queue)) {
    if (op->kind == OpKind::wait || op->kind == OpKind::join) {
      if (!ready(*op)) return State::blocked;
      if (op->kind == OpKind::wait) consumed(op->counter, producer(*op)) += op->n;
    } else {
      execute(running, *op);
    }
    ++next_[queue];
    moved = true;
  }
  return State::finished;
}

const Operation* Engine::at(const Running& running, size_t queue) const {
  const std::span<const int32_t> ops = running.prepared.queue(queue);
  if (next_[queue] == ops.size()) return nullptr;
  return &running.prepared.program().ops[static_cast<size_t>(ops[next_[queue]])];
}

int32_t Engine::producer(const Operation& wait) const {
  return wait.to.reach == Reach::self ? node_.rank() : wait.to.index;
}

int64_t& Engine::consumed(CounterId counter, int32_t from) {
  return consumed_[static_cast<size_t>(counter) * static_cast<size_t>(node_.world()) + static_cast<size_t>(from)];
}

int64_t Engine::arrived(const Operation& wait) const {
  const int32_t from = producer(wait);
  const size_t slot =
      static_cast<size_t>(wait.counter) * static_cast<size_t>(node_.world()) + static_cast<size_t>(from);
  const uint64_t value = node_.counter(node_.rank(), wait.counter, from).load(std::memory_order_seq_cst);
  return static_cast<int64_t>(value) - consumed_[slot];
}

bool Engine::ready(const Operation& op) const {
  if (op.kind == OpKind::join) return recorded_[static_cast<size_t>(op.counter)] == run_;
  return arrived(op) >= op.n;
}

bool Engine::any_ready(const Running& running) const {
  for (size_t q = 0; q < running.prepared.queues(); ++q) {
    const Operation* op = at(running, q);
    if (op != nullptr && ready(*op)) return true;
  }
  return false;
}

const std::byte* Engine::source(const Running& running, Ref ref) const {
  const RegionId first = running.prepared.program().first_call_region;
  const std::byte* base = ref.region < first ? own_[static_cast<size_t>(ref.region)]
                                             : running.binding.call_regions[static_cast<size_t>(ref.region - first)];
  return base + ref.offset;
}

// Calls visit(address) for every copy of the destination.
template <typename Visit>
void Engine::each_destination(const Running& running, const Operation& op, Visit&& visit) const {
  const Program& program = running.prepared.program();
  const Ref dst = op.dst;
  if (dst.region >= program.first_call_region) {
    visit(running.binding.call_regions[static_cast<size_t>(dst.region - program.first_call_region)] + dst.offset);
    return;
  }
  const auto region = static_cast<size_t>(dst.region);
  if (op.to.reach == Reach::self || space_.regions[region].scope == Scope::node) {
    visit(own_[region] + dst.offset);
    return;
  }
  const int64_t offset = placement_.offsets[region] + dst.offset;
  if (op.to.reach == Reach::local) {
    visit(node_.window(op.to.index) + offset);
    return;
  }
  // Every rank starts with itself, so that the windows are written to evenly.
  for (int32_t step = 0; step < node_.world(); ++step) {
    visit(node_.window((node_.rank() + step) % node_.world()) + offset);
  }
}

void Engine::execute(const Running& running, const Operation& op) {
  const Shape& shape = op.shape;
  switch (op.kind) {
    case OpKind::copy:
    case OpKind::cast: {
      const int64_t elements = shape.row_bytes / itemsize(op.dst_dtype);
      const std::byte* src = source(running, op.src);
      each_destination(running, op, [&](std::byte* dst) {
        for (int64_t row = 0; row < shape.rows; ++row) {
          std::byte* to = dst + row * shape.dst_pitch;
          const std::byte* from = src + row * shape.src_pitch;
          if (op.kind == OpKind::copy) {
            copy(to, from, shape.row_bytes);
          } else {
            cast(to, op.dst_dtype, from, op.src_dtype, elements);
          }
        }
      });
      return;
    }
    case OpKind::sum: {
      const auto count = static_cast<size_t>(op.source_count);
      const int64_t elements = shape.row_bytes / int64_t{sizeof(float)};
      each_destination(running, op, [&](std::byte* dst) {
        for (int64_t row = 0; row < shape.rows; ++row) {
          for (size_t s = 0; s < count; ++s) {
            const Ref ref = running.prepared.program().sources[static_cast<size_t>(op.first_source) + s];
            operands_[s] = source(running, ref) + row * shape.src_pitch;
          }
          sum(reinterpret_cast<float*>(dst + row * shape.dst_pitch), {operands_.data(), count}, op.src_dtype, elements,
              running.binding.alpha, running.binding.accumulate);
        }
      });
      return;
    }
    case OpKind::zero:
      each_destination(running, op, [&](std::byte* dst) {
        for (int64_t row = 0; row < shape.rows; ++row) {
          std::memset(dst + row * shape.dst_pitch, 0, static_cast<size_t>(shape.row_bytes));
        }
      });
      return;
    case OpKind::signal:
      signal(op);
      return;
    case OpKind::record:
      recorded_[static_cast<size_t>(op.counter)] = run_;
      return;
    case OpKind::wait:
    case OpKind::join:
    case OpKind::put:
    case OpKind::land:
      break;
  }
  throw Error(ErrorCode::unsupported, fmt::format("the host engine cannot execute a {}", name(op.kind)));
}

void Engine::signal(const Operation& op) {
  const auto add = [&](int32_t at) {
    node_.counter(at, op.counter, node_.rank()).fetch_add(1, std::memory_order_seq_cst);  // see Alarm
    alarm_.signalled(at);
  };
  if (op.to.reach == Reach::node) {
    for (int32_t step = 1; step < node_.world(); ++step) add((node_.rank() + step) % node_.world());
  } else {
    add(op.to.reach == Reach::self ? node_.rank() : op.to.index);
  }
  // With fewer processors than ranks a woken peer would only take this one from us: it is woken when we pause.
  if (!oversubscribed_) alarm_.ring();
}

void Engine::block(const Running& running) {
  alarm_.ring();
  const Clock::time_point begin = Clock::now();
  const Clock::time_point deadline = begin + deadline_;
  bool woken = !oversubscribed_ && spin(running);
  while (!woken) {
    const uint32_t seen = node_.doorbell();
    if (note_missing(running)) break;
    if (!take_down_arrived()) node_.sleep(seen, deadline);
    woken = some_run_arrived();
    if (woken) break;
    node_.check(node_.doorbell() == seen);
    calls_.compare();
    if (Clock::now() >= deadline) {
      throw Error(ErrorCode::timeout, fmt::format("nothing arrived within the deadline of {} ms", deadline_.count()));
    }
  }
  for (size_t q = 0; q < missing_.size(); ++q) alarm_.clear(q, missing_[q].ranks);
  waited_ += std::chrono::duration<double>(Clock::now() - begin).count();
}

bool Engine::note_missing(const Running& running) {
  bool complete = false;
  for (size_t q = 0; q < missing_.size(); ++q) {
    Missing& missing = missing_[q];
    alarm_.clear(q, missing.ranks);
    missing.ranks.clear();
    missing.waits.clear();
    const std::span<const int32_t> ops = running.prepared.queue(q);
    bool only_peers = false;
    for (size_t i = next_[q]; i < ops.size(); ++i) {
      const Operation& op = running.prepared.program().ops[static_cast<size_t>(ops[i])];
      if (op.kind != OpKind::wait) break;
      const int32_t from = producer(op);
      // What waits for this rank itself is brought on by another queue, not by a peer.
      only_peers = from != node_.rank() || ready(op);
      if (!only_peers) break;
      if (ready(op) || std::find(missing.ranks.begin(), missing.ranks.end(), from) != missing.ranks.end()) continue;
      missing.ranks.push_back(from);
      missing.waits.push_back(&op);
    }
    if (!only_peers) {
      missing.ranks.clear();
      missing.waits.clear();
    } else if (missing.ranks.empty()) {
      complete = true;
    }
    alarm_.set(q, missing.ranks);
  }
  return complete;
}

bool Engine::take_down_arrived() {
  bool complete = false;
  for (size_t q = 0; q < missing_.size(); ++q) {
    const Missing& missing = missing_[q];
    for (size_t i = 0; i < missing.ranks.size(); ++i) {
      if (ready(*missing.waits[i]) && alarm_.take_down(q, missing.ranks[i])) complete = true;
    }
  }
  return complete;
}

bool Engine::some_run_arrived() const {
  for (const Missing& missing : missing_) {
    const auto arrived = [&](const Operation* wait) { return ready(*wait); };
    if (!missing.waits.empty() && std::all_of(missing.waits.begin(), missing.waits.end(), arrived)) return true;
  }
  return false;
}

bool Engine::spin(const Running& running) const {
  const Clock::time_point end = Clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (any_ready(running)) return true;
      relax();
    }
  } while (Clock::now() < end);
  return false;
}

const Operation* Engine::blocking(const Running& running, size_t queue) const {
  const std::span<const int32_t> ops = running.prepared.queue(queue);
  for (size_t i = next_[queue]; i < ops.size(); ++i) {
    const Operation& op = running.prepared.program().ops[static_cast<size_t>(ops[i])];
    if (op.kind != OpKind::wait || !ready(op)) return &op;
  }
  return at(running, queue);
}

std::string Engine::position(const Running& running) const {
  std::string text;
  for (size_t q = 0; q < running.prepared.queues(); ++q) {
    const Operation* op = blocking(running, q);
    if (op == nullptr) continue;
    text += fmt::format("{}operation {} ({}) of queue '{}'", text.empty() ? "" : ", ",
                        op - running.prepared.program().ops.data(), name(op->kind), space_.queues[q].name);
    if (op->kind != OpKind::wait) continue;
    text += fmt::format(" for counter '{}' of rank {} ({} of {} arrived)",
                        space_.counters[static_cast<size_t>(op->counter)].name, producer(*op), arrived(*op), op->n);
  }
  return text.empty() ? "its end" : text;
}

void Engine::fail(const Running& running, ErrorCode code, const std::string& sentence) {
  const std::string full =
      fmt::format("{}; rank {} was in {} at {}", sentence, node_.rank(), calls_.current(), position(running));
  if (code != ErrorCode::aborted && code != ErrorCode::closed) node_.abort(code, full);
  throw Error(code, full);
}

}  // namespace tide::host
