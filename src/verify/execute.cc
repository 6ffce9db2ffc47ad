#include "tide/execute.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "fmt/format.h"
#include "tide/error.h"
#include "verify/arithmetic.h"
#include "verify/check_programs.h"
#include "verify/memory.h"
#include "verify/replay.h"

namespace tide {
namespace verify {
namespace {

constexpr int64_t kGuard = 64;
constexpr std::byte kPoison{0xA5};
constexpr std::byte kGuardByte{0x5A};

// The bytes of every place.
class Bytes {
 public:
  explicit Bytes(const Memory& memory) {
    for (PlaceId place = 0; place < memory.places(); ++place) {
      const size_t bytes = static_cast<size_t>(memory.bytes(place));
      std::vector<std::byte> block(bytes + 2 * kGuard, kGuardByte);
      std::fill_n(block.begin() + kGuard, bytes, kPoison);
      blocks_.push_back(std::move(block));
    }
  }

  std::byte* at(const Spot& spot) { return blocks_[static_cast<size_t>(spot.place)].data() + kGuard + spot.offset; }
  std::vector<std::byte> copy(PlaceId place) const {
    const auto& block = blocks_[static_cast<size_t>(place)];
    return {block.begin() + kGuard, block.end() - kGuard};
  }
  bool guarded(PlaceId place) const {
    const auto& block = blocks_[static_cast<size_t>(place)];
    const auto intact = [](std::byte byte) { return byte == kGuardByte; };
    return std::all_of(block.begin(), block.begin() + kGuard, intact) &&
           std::all_of(block.end() - kGuard, block.end(), intact);
  }

 private:
  std::vector<std::vector<std::byte>> blocks_;
};

class Executor final : public Visitor {
 public:
  Executor(const Ensemble& ensemble, const Memory& memory, const Inputs& inputs, size_t limit)
      : ensemble_(ensemble),
        memory_(memory),
        inputs_(inputs),
        limit_(limit),
        bytes_(memory),
        views_(static_cast<size_t>(ensemble.world()), std::vector<GroupView>(ensemble.layouts.size())) {
    execution_.observed.resize(static_cast<size_t>(ensemble.world()));
    for (int32_t rank = 0; rank < ensemble.world(); ++rank) {
      for (size_t g = 0; g < ensemble.layouts.size(); ++g) write_shards(rank, static_cast<int32_t>(g));
    }
  }

  bool action(int32_t rank, int32_t position, const Action& action, const Call*) override {
    GroupView& group = view(rank, action.group);
    switch (action.kind) {
      case ActionKind::step:
        ++group.version;
        write_shards(rank, action.group);
        break;
      case ActionKind::backward:
        ++group.backward;
        write_gradients(rank, action.group);
        break;
      case ActionKind::issue_reduce:
        if (!action.accumulate) group.parts.clear();
        group.parts.push_back(group.backward);
        break;
      case ActionKind::use:
        compare_landing(rank, position, action.group);
        break;
      case ActionKind::consume:
        compare_output(rank, position, action.group);
        break;
      default:
        break;
    }
    return true;
  }

  bool operation(const Executed& executed) override {
    const Operation& op = *executed.op;
    switch (op.kind) {
      case OpKind::copy:
      case OpKind::cast:
        move(executed);
        break;
      case OpKind::sum:
        sum(executed);
        break;
      case OpKind::zero:
        accesses(memory_, *executed.call->program, executed.call->group, op, [&](const Range& range, bool) {
          std::fill_n(bytes_.at({range.place, range.begin}), range.end - range.begin, std::byte{0});
        });
        break;
      default:
        break;
    }
    return true;
  }

  Execution finish(int64_t operations) && {
    execution_.operations = operations;
    for (PlaceId place = 0; place < memory_.places(); ++place) {
      if (!bytes_.guarded(place)) differ(fmt::format("bytes beside {} were overwritten", memory_.name(place)));
    }
    for (size_t g = 0; g < ensemble_.layouts.size(); ++g) {
      const int32_t group = static_cast<int32_t>(g);
      execution_.landings.emplace_back();
      execution_.outputs.emplace_back();
      for (int32_t rank = 0; rank < ensemble_.world(); ++rank) {
        inputs_unchanged(rank, group);
        execution_.landings.back().push_back(bytes_.copy(memory_.landing(group, rank)));
        const std::vector<std::byte> output = bytes_.copy(memory_.output(group, rank));
        std::vector<float> floats(output.size() / sizeof(float));
        if (!output.empty()) std::memcpy(floats.data(), output.data(), output.size());
        execution_.outputs.back().push_back(std::move(floats));
      }
    }
    return std::move(execution_);
  }

 private:
  struct GroupView {
    int32_t version = 0;
    int32_t backward = -1;
    std::vector<int32_t> parts;  // backward passes that the output accumulates
  };

  GroupView& view(int32_t rank, int32_t group) { return views_[static_cast<size_t>(rank)][static_cast<size_t>(group)]; }
  const Layout& layout(int32_t group) const { return ensemble_.layouts[static_cast<size_t>(group)]; }
  const std::string& tensor(int32_t group, size_t param) const { return layout(group).group().tensors[param].name; }

  void differ(std::string sentence) {
    if (execution_.differences.size() < limit_) execution_.differences.push_back(std::move(sentence));
  }

  // Elements [first, first + count) of a tensor, as the caller holds them.
  std::vector<std::byte> values(InputElement element, int64_t first, int64_t count) const {
    const int64_t item = itemsize(element.dtype);
    std::vector<std::byte> result(static_cast<size_t>(count * item));
    for (int64_t i = 0; i < count; ++i) {
      element.index = first + i;
      inputs_.value(element, result.data() + i * item);
    }
    return result;
  }

  std::vector<std::byte> shard(int32_t group, size_t p, int32_t rank, int32_t version) const {
    const ParamLayout& param = layout(group).params()[p];
    return values({false, group, static_cast<int64_t>(p), rank, 0, version, param.shard_dtype},
                  param.first_row(rank) * param.row_elements, param.valid_elements(rank));
  }

  std::vector<std::byte> gradient(int32_t group, size_t p, int32_t rank, int32_t version, int64_t first,
                                  int64_t count) const {
    return values({true, group, static_cast<int64_t>(p), rank, 0, version, ensemble_.grad_dtype}, first, count);
  }

  void put(const Spot& spot, const std::vector<std::byte>& from) {
    if (!from.empty()) std::memcpy(bytes_.at(spot), from.data(), from.size());
  }

  void write_shards(int32_t rank, int32_t group) {
    for (size_t p = 0; p < layout(group).params().size(); ++p) {
      put(memory_.shard(group, rank, static_cast<int64_t>(p)), shard(group, p, rank, view(rank, group).version));
    }
  }

  void write_gradients(int32_t rank, int32_t group) {
    for (size_t p = 0; p < layout(group).params().size(); ++p) {
      const PlaceId place = memory_.gradient(group, rank, static_cast<int64_t>(p));
      const int64_t count = memory_.bytes(place) / itemsize(ensemble_.grad_dtype);
      put({place, 0}, gradient(group, p, rank, view(rank, group).backward, 0, count));
    }
  }

  void inputs_unchanged(int32_t rank, int32_t group) {
    for (size_t p = 0; p < layout(group).params().size(); ++p) {
      const GroupView& state = view(rank, group);
      const std::vector<std::byte> held = shard(group, p, rank, state.version);
      const Spot spot = memory_.shard(group, rank, static_cast<int64_t>(p));
      if (!held.empty() && std::memcmp(bytes_.at(spot), held.data(), held.size()) != 0) {
        differ(fmt::format("the shard of '{}' of group {} of rank {} changed", tensor(group, p), group, rank));
      }
      if (state.backward < 0) continue;
      const PlaceId place = memory_.gradient(group, rank, static_cast<int64_t>(p));
      const int64_t count = memory_.bytes(place) / itemsize(ensemble_.grad_dtype);
      if (bytes_.copy(place) != gradient(group, p, rank, state.backward, 0, count)) {
        differ(fmt::format("the gradient of '{}' of group {} of rank {} changed", tensor(group, p), group, rank));
      }
    }
  }

  void move(const Executed& executed) {
    const Operation& op = *executed.op;
    const Program& program = *executed.call->program;
    const int32_t group = executed.call->group;
    const Spot source = memory_.at(program, group, op.src, program.rank);
    for (const Spot& spot : memory_.destinations(program, group, op)) {
      for (int64_t row = 0; row < op.shape.rows; ++row) {
        std::byte* to = bytes_.at({spot.place, spot.offset + row * op.shape.dst_pitch});
        const std::byte* from = bytes_.at({source.place, source.offset + row * op.shape.src_pitch});
        if (op.kind == OpKind::cast) {
          cast(to, op.dst_dtype, from, op.src_dtype, op.shape.row_bytes / itemsize(op.dst_dtype));
        } else if (op.shape.row_bytes > 0) {
          std::memcpy(to, from, static_cast<size_t>(op.shape.row_bytes));
        }
      }
    }
  }

  void sum(const Executed& executed) {
    const Operation& op = *executed.op;
    const Program& program = *executed.call->program;
    const int32_t group = executed.call->group;
    std::vector<const std::byte*> sources;
    for (int32_t s = 0; s < op.source_count; ++s) {
      const Ref& ref = program.sources[static_cast<size_t>(op.first_source + s)];
      sources.push_back(bytes_.at(memory_.at(program, group, ref, program.rank)));
    }
    // Through a buffer: a destination may stand at any byte.
    const int64_t elements = op.shape.row_bytes / int64_t{sizeof(float)};
    std::byte* to = bytes_.at(memory_.at(program, group, op.dst, program.rank));
    std::vector<float> result(static_cast<size_t>(elements));
    if (elements == 0) return;
    std::memcpy(result.data(), to, static_cast<size_t>(op.shape.row_bytes));
    verify::sum(result.data(), sources, op.src_dtype, elements, inputs_.alpha, executed.call->accumulate);
    std::memcpy(to, result.data(), static_cast<size_t>(op.shape.row_bytes));
  }

  void observe(int32_t rank, const std::byte* from, int64_t bytes) {
    auto& observed = execution_.observed[static_cast<size_t>(rank)];
    observed.insert(observed.end(), from, from + bytes);
    execution_.compared += bytes;
  }

  void compare_landing(int32_t rank, int32_t position, int32_t group) {
    const auto params = layout(group).params();
    for (size_t p = 0; p < params.size(); ++p) {
      const ParamLayout& param = params[p];
      const int64_t item = itemsize(param.gather_dtype);
      const std::byte* found = bytes_.at({memory_.landing(group, rank), param.landing_base});
      const int64_t owner_elements = std::max<int64_t>(param.padded_elements(), 1);
      for (int64_t i = 0; i < param.elements(); ++i) {
        std::byte held[8];
        std::byte wanted[8];
        const InputElement element{false,
                                   group,
                                   static_cast<int64_t>(p),
                                   static_cast<int32_t>(i / owner_elements),
                                   i,
                                   view(rank, group).version,
                                   param.shard_dtype};
        inputs_.value(element, held);
        if (param.shard_dtype == param.gather_dtype) {
          std::memcpy(wanted, held, static_cast<size_t>(item));
        } else {
          narrow(widen(held, param.shard_dtype), wanted, param.gather_dtype);
        }
        if (std::memcmp(found + i * item, wanted, static_cast<size_t>(item)) == 0) continue;
        differ(fmt::format("rank {}, action {}: element {} of '{}' of group {} is not that of version {}", rank,
                           position, i, tensor(group, p), group, view(rank, group).version));
        break;
      }
      observe(rank, found, param.elements() * item);
    }
  }

  // Straight from the definition: for every element that exists here, one left fold a backward pass.
  void compare_output(int32_t rank, int32_t position, int32_t group) {
    const std::vector<bool>& present = ensemble_.programs[static_cast<size_t>(group)].present;
    const auto params = layout(group).params();
    const std::byte* found = bytes_.at({memory_.output(group, rank), 0});
    int64_t packed = 0;
    for (size_t p = 0; p < params.size(); ++p) {
      const ParamLayout& param = params[p];
      if (!param.trainable || (!present.empty() && !present[p])) continue;
      for (int64_t i = 0; i < param.padded_elements(); ++i, ++packed) {
        float wanted = 0.0F;
        if (i < param.valid_elements(rank)) {
          wanted = reduced(rank, group, p, param.first_row(rank) * param.row_elements + i);
        }
        float got = 0;
        std::memcpy(&got, found + packed * int64_t{sizeof(float)}, sizeof(float));
        if (std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(wanted)) continue;
        differ(fmt::format("rank {}, action {}: packed element {} of group {} ('{}') is {}, not {}", rank, position,
                           packed, group, tensor(group, p), got, wanted));
      }
    }
    observe(rank, found, packed * int64_t{sizeof(float)});
  }

  float reduced(int32_t rank, int32_t group, size_t p, int64_t index) {
    float out = 0.0F;
    bool first = true;
    for (const int32_t backward : view(rank, group).parts) {
      float fold = 0.0F;
      for (int32_t from = 0; from < ensemble_.world(); ++from) {
        std::byte element[8];
        inputs_.value({true, group, static_cast<int64_t>(p), from, index, backward, ensemble_.grad_dtype}, element);
        const float term = widen(element, ensemble_.grad_dtype);
        fold = from == 0 ? term : fold + term;
      }
      const float scaled = inputs_.alpha * fold;
      out = first ? scaled : out + scaled;
      first = false;
    }
    return out;
  }

  const Ensemble& ensemble_;
  const Memory& memory_;
  const Inputs& inputs_;
  size_t limit_;
  Bytes bytes_;
  std::vector<std::vector<GroupView>> views_;
  Execution execution_;
};

}  // namespace
}  // namespace verify

Execution execute(const Ensemble& ensemble, const Script& script, std::optional<uint64_t> seed, const Inputs& inputs,
                  int32_t limit) {
  const verify::Memory memory(ensemble);
  verify::Replay replay(ensemble, std::span<const Script>(&script, 1));
  verify::Findings findings(1);
  verify::check_programs(ensemble, memory, findings);
  if (!findings.empty()) throw Error(ErrorCode::check_failed, std::move(findings).take().front().sentence);
  verify::Executor executor(ensemble, memory, inputs, static_cast<size_t>(std::max(limit, 1)));
  const verify::Outcome outcome =
      replay.run(seed ? verify::Order::seeded : verify::Order::greedy, executor, seed.value_or(0));
  if (!outcome.finished()) {
    const verify::Blocked& blocked = outcome.blocked.front();
    throw Error(ErrorCode::check_failed,
                fmt::format("deadlock: rank {}, {}: {}", blocked.rank, blocked.queue, blocked.sentence));
  }
  return std::move(executor).finish(outcome.operations);
}

}  // namespace tide
