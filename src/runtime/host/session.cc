#include "tide/session.h"

#include <unistd.h>

#include <algorithm>
#include <new>
#include <optional>
#include <set>
#include <utility>

#include "fabric/node.h"
#include "fmt/format.h"
#include "runtime/host/agreement.h"
#include "runtime/host/calls.h"
#include "runtime/host/engine.h"
#include "runtime/host/placement.h"
#include "tide/collectives.h"
#include "tide/error.h"

namespace tide {
namespace {

void check_options(const SessionOptions& options) {
  const auto refuse = [](const std::string& sentence) { throw Error(ErrorCode::invalid_argument, sentence); };
  if (options.world < 1) refuse(fmt::format("world is {}: a session has at least 1 rank", options.world));
  if (options.rank < 0 || options.rank >= options.world) {
    refuse(fmt::format("rank is {}: give a rank from 0 to {}", options.rank, options.world - 1));
  }
  if (options.world > 1 && options.store == nullptr) {
    refuse(fmt::format("store is null with world {}: pass a store that all ranks share", options.world));
  }
  if (options.deadline.count() <= 0) {
    refuse(fmt::format("deadline is {} ms: give a positive time", options.deadline.count()));
  }
}

// Programs of one group's reductions, built when a gradient dtype and mask first appears.
class ReducePrograms {
 public:
  struct Entry {
    DType grad_dtype;
    std::vector<bool> present;
    host::Prepared prepared;
  };

  const host::Prepared* find(DType grad_dtype, const std::vector<bool>& present) const {
    for (const Entry& entry : entries_) {
      if (entry.grad_dtype == grad_dtype && entry.present == present) return &entry.prepared;
    }
    return nullptr;
  }

  const host::Prepared& add(DType grad_dtype, const std::vector<bool>& present, host::Prepared prepared) {
    // A model whose masks never repeat pays for building, not with memory without bound.
    if (entries_.size() == kMost) entries_.erase(entries_.begin());
    entries_.push_back({grad_dtype, present, std::move(prepared)});
    return entries_.back().prepared;
  }

 private:
  static constexpr size_t kMost = 32;
  std::vector<Entry> entries_;
};

struct GroupState {
  std::optional<host::Prepared> gather_move, gather_keep, release;
  ReducePrograms reduces;
  bool gathered = false;
  bool in_place = false;  // this rank's pieces were moved into a landing that is the group's own
  GroupStats stats;
};

}  // namespace

class Session::Impl {
 public:
  explicit Impl(SessionOptions options) : options_(std::move(options)) {
    check_options(options_);
    options_.plan.nodes = 1;
    options_.plan.local = options_.world;
  }

  GroupId register_group(const Group& group, const GroupOptions& options) {
    require(Phase::registering, "register_group");
    Layout layout(group, layout_options(options));
    if (!names_.insert(group.name).second) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("group name '{}' is registered twice: give every group its own name", group.name));
    }
    layouts_.push_back(std::move(layout));
    groups_.push_back({group, options});
    states_.emplace_back();
    return static_cast<GroupId>(groups_.size() - 1);
  }

  void commit() {
    require(Phase::registering, "commit");
    try {
      guarded([&] { meet(); });
    } catch (...) {
      engine_.reset();
      calls_.reset();
      node_.reset();
      throw;
    }
    phase_ = Phase::ready;
  }

  void all_gather(GroupId group, std::span<const void* const> shards, bool unchanged) {
    GroupState& state = ready_group(group, "all_gather");
    const Space::GroupPlace& place = space_.groups[static_cast<size_t>(group)];
    bind_shards(group, shards);
    if (state.gathered) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("group '{}' is gathered already: release it first", group_name(group)));
    }
    GroupId& lease = leases_[static_cast<size_t>(place.landing)];
    if (lease >= 0) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the landing slot of group '{}' is still leased by group '{}': release that group first "
                              "or raise ring_depth above {}",
                              group_name(group), group_name(lease), options_.plan.ring_depth));
    }
    const bool keep = unchanged && state.in_place && state.gather_keep.has_value();
    const host::Prepared& prepared = keep ? *state.gather_keep : *state.gather_move;
    if (keep) bound_.clear();
    guarded([&] {
      calls_->begin(Collective::all_gather, group, {});
      state.stats.wait_seconds += engine_->run(prepared, {bound_});
    });
    lease = group;
    state.gathered = true;
    state.in_place = true;
    ++state.stats.gathers;
    if (prepared.bytes_moved() == 0 && (keep || options_.plan.landing == Landing::home)) ++state.stats.kept;
    state.stats.bytes_moved += prepared.bytes_moved();
  }

  void release(GroupId group) {
    GroupState& state = ready_group(group, "release");
    if (!state.gathered) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("group '{}' is not gathered: release once after each all_gather", group_name(group)));
    }
    guarded([&] {
      calls_->begin(Collective::release, group, {});
      state.stats.wait_seconds += engine_->run(*state.release, {});
    });
    state.gathered = false;
    leases_[static_cast<size_t>(space_.groups[static_cast<size_t>(group)].landing)] = -1;
  }

  void reduce_scatter(GroupId group, std::span<const void* const> grads, float* out, const ReduceOptions& options) {
    GroupState& state = ready_group(group, "reduce_scatter");
    bind_gradients(group, grads);
    const host::Prepared* prepared = state.reduces.find(options.grad_dtype, present_);
    if (prepared == nullptr) prepared = &state.reduces.add(options.grad_dtype, present_, build_reduce(group, options));
    if (out == nullptr && prepared->program().regions.back().bytes > 0) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("out is null: pass {} bytes for the reduced gradients of group '{}'",
                              prepared->program().regions.back().bytes, group_name(group)));
    }
    bound_.push_back(reinterpret_cast<std::byte*>(out));
    guarded([&] {
      calls_->begin(Collective::reduce_scatter, group,
                    {options.grad_dtype, options.accumulate, options.alpha, host::present_hash(present_)});
      state.stats.wait_seconds += engine_->run(*prepared, {bound_, options.alpha, options.accumulate});
    });
    ++state.stats.reduces;
    state.stats.bytes_moved += prepared->bytes_moved();
  }

  void* landing(GroupId group, int64_t param) {
    ready_group(group, "landing");
    const ParamLayout& layout = param_layout(group, param);
    return engine_->address(space_.groups[static_cast<size_t>(group)].landing) + layout.landing_base;
  }

  void* shard_memory(GroupId group, int64_t param) {
    ready_group(group, "shard_memory");
    const ParamLayout& layout = param_layout(group, param);
    const Space::GroupPlace& place = space_.groups[static_cast<size_t>(group)];
    if (options_.plan.landing == Landing::home) {
      return engine_->address(place.landing) + layout.landing(options_.rank);
    }
    if (place.shards < 0) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the session does not hold the shards of group '{}': register it with resident_shards",
                              group_name(group)));
    }
    return engine_->address(place.shards) + layout.packed_shard_base;
  }

  const Layout& layout(GroupId group) const {
    check_group(group);
    return layouts_[static_cast<size_t>(group)];
  }
  const Plan& plan() const { return options_.plan; }
  GroupStats stats(GroupId group) const {
    check_group(group);
    return states_[static_cast<size_t>(group)].stats;
  }
  int64_t memory_bytes() const {
    if (node_ == nullptr) return 0;
    return node_bytes(options_.plan, space_);
  }

  void close() {
    if (phase_ == Phase::closed && getpid() == process_) return;
    require_alive("close");
    if (phase_ == Phase::ready) guarded([&] { leave(); });
    phase_ = Phase::closed;
  }

 private:
  enum class Phase : uint8_t { registering, ready, dead, closed };

  LayoutOptions layout_options(const GroupOptions& options) const {
    return {options_.world, options_.plan.alignment, options.cast, options.gather_dtype};
  }

  // Collective: agreement, programs, memory.
  void meet() {
    node_ = std::make_unique<fabric::Node>(
        fabric::NodeOptions{options_.rank, options_.world, options_.store, options_.job, options_.deadline});
    options_.plan = host::agree(node_->exchange(host::describe(options_.plan, groups_)));
    std::string outcome = host::describe_success();
    try {
      if (options_.plan.nodes != 1 || options_.plan.local != options_.world) {
        throw Error(ErrorCode::mismatch, fmt::format("rank 0 plans {} x {} ranks, this session has world {}",
                                                     options_.plan.nodes, options_.plan.local, options_.world));
      }
      build();
    } catch (const Error& error) {
      outcome = host::describe_failure(error);
    } catch (const std::bad_alloc&) {
      outcome = host::describe_failure(Error(ErrorCode::no_space, "no memory for the programs of the session"));
    }
    host::agree_on_success(node_->exchange(outcome));
    node_->map(placement_.window_bytes, placement_.shared_bytes, host::Engine::counters(space_));
    std::vector<std::string> names;
    for (const host::RegisteredGroup& registered : groups_) names.push_back(registered.group.name);
    calls_ = std::make_unique<host::Calls>(*node_, std::move(names));
    engine_ = std::make_unique<host::Engine>(*node_, space_, placement_, *calls_, options_.deadline);
  }

  void leave() {
    try {
      node_->leave();
    } catch (const Error& error) {
      const std::string sentence = fmt::format("{}; rank {} was in close", error.what(), options_.rank);
      // The others must blame whoever is missing, not this rank for giving up on it.
      if (error.code() != ErrorCode::aborted) node_->abort(error.code(), sentence);
      throw Error(error.code(), sentence);
    }
  }

  void build() {
    check(options_.plan);
    layouts_.clear();
    std::vector<bool> resident;
    size_t most_params = 0;
    for (const host::RegisteredGroup& registered : groups_) {
      layouts_.emplace_back(registered.group, layout_options(registered.options));
      resident.push_back(registered.options.resident_shards);
      most_params = std::max(most_params, registered.group.tensors.size());
    }
    space_ = make_space(options_.plan, layouts_, resident);
    placement_ = host::place(space_);
    leases_.assign(space_.regions.size(), -1);
    bound_.reserve(most_params + 1);
    present_.reserve(most_params);
    for (size_t g = 0; g < groups_.size(); ++g) {
      const auto group = static_cast<GroupId>(g);
      const auto gather = [&](Pieces pieces) {
        return host::Prepared(space_,
                              tide::all_gather(options_.plan, space_, layouts_[g], group, options_.rank, pieces));
      };
      states_[g].gather_move = gather(Pieces::move);
      if (options_.plan.landing == Landing::resident) states_[g].gather_keep = gather(Pieces::keep);
      states_[g].release =
          host::Prepared(space_, tide::release(options_.plan, space_, layouts_[g], group, options_.rank));
      if (!registered_trainable(g)) continue;
      // The masks of most calls: every tensor has a gradient, in the dtype it is gathered as.
      present_.assign(layouts_[g].params().size(), true);
      mask_frozen(g);
      for (const ParamLayout& param : layouts_[g].params()) {
        if (!param.trainable || !reducible(param.gather_dtype)) continue;
        const ReduceOptions options{param.gather_dtype, 1.0F, false};
        states_[g].reduces.add(options.grad_dtype, present_, build_reduce(group, options));
        break;
      }
    }
  }

  bool registered_trainable(size_t group) const {
    for (const ParamLayout& param : layouts_[group].params()) {
      if (param.trainable) return true;
    }
    return false;
  }

  void mask_frozen(size_t group) {
    const auto params = layouts_[group].params();
    for (size_t p = 0; p < params.size(); ++p) present_[p] = present_[p] && params[p].trainable;
  }

  host::Prepared build_reduce(GroupId group, const ReduceOptions& options) const {
    return host::Prepared(space_, tide::reduce_scatter(options_.plan, space_, layouts_[static_cast<size_t>(group)],
                                                       options_.rank, options.grad_dtype, present_));
  }

  void bind_shards(GroupId group, std::span<const void* const> shards) {
    const Layout& layout = layouts_[static_cast<size_t>(group)];
    const auto params = layout.params();
    bound_.clear();
    const bool held =
        groups_[static_cast<size_t>(group)].options.resident_shards || options_.plan.landing == Landing::home;
    const size_t expected = held ? 0 : params.size();
    if (shards.size() != expected) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} shards were given for group '{}', which takes {}{}", shards.size(), group_name(group),
                              expected, held ? ": the session holds them" : ", one a tensor"));
    }
    for (size_t p = 0; p < shards.size(); ++p) {
      if (shards[p] == nullptr && params[p].valid_elements(options_.rank) > 0) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("the shard of tensor '{}' of group '{}' is null on rank {}, which has {} rows of it",
                                layout.group().tensors[p].name, group_name(group), options_.rank,
                                params[p].valid_rows(options_.rank)));
      }
      bound_.push_back(as_bytes(shards[p]));
    }
  }

  // Fills bound_ and present_. A tensor without elements counts as present, so that a null there means nothing.
  void bind_gradients(GroupId group, std::span<const void* const> grads) {
    const Layout& layout = layouts_[static_cast<size_t>(group)];
    const auto params = layout.params();
    if (grads.size() != params.size()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} gradients were given for group '{}', which has {} tensors: give one a tensor, null "
                              "where there is none",
                              grads.size(), group_name(group), params.size()));
    }
    bound_.clear();
    present_.clear();
    for (size_t p = 0; p < grads.size(); ++p) {
      present_.push_back(params[p].trainable && (grads[p] != nullptr || params[p].elements() == 0));
      bound_.push_back(as_bytes(grads[p]));
    }
  }

  // Programs only read what is bound here.
  static std::byte* as_bytes(const void* pointer) { return static_cast<std::byte*>(const_cast<void*>(pointer)); }

  // Runs a collective; its failure ends the session.
  template <typename Run>
  void guarded(Run&& run) {
    try {
      run();
    } catch (const std::exception& error) {
      cause_ = error.what();
      phase_ = Phase::dead;
      throw;
    }
  }

  void require_alive(std::string_view call) const {
    if (getpid() != process_) {
      throw Error(ErrorCode::closed, fmt::format("{} in a forked child: a session belongs to the process that made it, "
                                                 "make a new one",
                                                 call));
    }
    if (phase_ == Phase::closed)
      throw Error(ErrorCode::closed, fmt::format("{} after close: make a new session", call));
    if (phase_ == Phase::dead) {
      throw Error(ErrorCode::aborted,
                  fmt::format("{} on a session that has failed; its first failure: {}", call, cause_));
    }
  }

  void require(Phase phase, std::string_view call) const {
    require_alive(call);
    if (phase_ == phase) return;
    throw Error(ErrorCode::invalid_argument,
                phase_ == Phase::registering
                    ? fmt::format("{} before commit: register every group, then commit", call)
                    : fmt::format("{} after commit: a session's groups are fixed, make a new one for more", call));
  }

  void check_group(GroupId group) const {
    if (group >= 0 && static_cast<size_t>(group) < groups_.size()) return;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("group id is {}: register_group has given out {} ids from 0", group, groups_.size()));
  }

  GroupState& ready_group(GroupId group, std::string_view call) {
    require(Phase::ready, call);
    check_group(group);
    return states_[static_cast<size_t>(group)];
  }

  const ParamLayout& param_layout(GroupId group, int64_t param) const {
    const auto params = layouts_[static_cast<size_t>(group)].params();
    if (param < 0 || static_cast<size_t>(param) >= params.size()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("tensor {} of group '{}': it has {} tensors", param, group_name(group), params.size()));
    }
    return params[static_cast<size_t>(param)];
  }

  const std::string& group_name(GroupId group) const { return groups_[static_cast<size_t>(group)].group.name; }

  SessionOptions options_;
  pid_t process_ = getpid();
  Phase phase_ = Phase::registering;
  std::string cause_;

  std::vector<host::RegisteredGroup> groups_;
  std::set<std::string> names_;
  std::vector<Layout> layouts_;
  std::vector<GroupState> states_;

  Space space_;
  host::Placement placement_;
  std::unique_ptr<fabric::Node> node_;
  std::unique_ptr<host::Calls> calls_;
  std::unique_ptr<host::Engine> engine_;
  std::vector<GroupId> leases_;  // by landing region: the group gathered there, or -1

  // Scratch of one call, kept to allocate nothing in the next.
  std::vector<std::byte*> bound_;
  std::vector<bool> present_;
};

namespace {

template <typename T>
T& held(const std::unique_ptr<T>& impl) {
  if (impl == nullptr) throw Error(ErrorCode::closed, "this session was moved from: use the one it was moved to");
  return *impl;
}

}  // namespace

Session::Session(SessionOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

GroupId Session::register_group(const Group& group, const GroupOptions& options) {
  return held(impl_).register_group(group, options);
}

void Session::commit() { held(impl_).commit(); }

void Session::all_gather(GroupId group, std::span<const void* const> shards, bool unchanged) {
  held(impl_).all_gather(group, shards, unchanged);
}

void Session::release(GroupId group) { held(impl_).release(group); }

void Session::reduce_scatter(GroupId group, std::span<const void* const> grads, float* out,
                             const ReduceOptions& options) {
  held(impl_).reduce_scatter(group, grads, out, options);
}

void* Session::landing(GroupId group, int64_t param) const { return held(impl_).landing(group, param); }

void* Session::shard_memory(GroupId group, int64_t param) const { return held(impl_).shard_memory(group, param); }

const Layout& Session::layout(GroupId group) const { return held(impl_).layout(group); }

const Plan& Session::plan() const { return held(impl_).plan(); }

GroupStats Session::stats(GroupId group) const { return held(impl_).stats(group); }

int64_t Session::memory_bytes() const { return held(impl_).memory_bytes(); }

void Session::close() { held(impl_).close(); }

}  // namespace tide
