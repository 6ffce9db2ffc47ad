#include "tide/script.h"

#include <algorithm>

#include "fmt/format.h"
#include "tide/error.h"

namespace tide {
namespace {

void at_least(std::string_view field, int32_t value, int32_t least) {
  if (value >= least) return;
  throw Error(ErrorCode::invalid_argument, fmt::format("{} is {}: give at least {}", field, value, least));
}

class Writer {
 public:
  explicit Writer(const StepShape& shape) : shape_(shape) {}

  void step() {
    for (int32_t batch = 0; batch < shape_.micro_batches; ++batch) {
      forward();
      backward(batch > 0);
    }
    for (int32_t g = 0; g < shape_.groups; ++g) {
      add(ActionKind::consume, g);
      add(ActionKind::step, g);
    }
  }

  Script take() && { return std::move(script_); }

 private:
  void add(ActionKind kind, int32_t group, bool keep = false, bool accumulate = false) {
    script_.actions.push_back({kind, group, keep, accumulate});
  }

  void forward() {
    int32_t next = 0;
    for (int32_t g = 0; g < shape_.groups; ++g) {
      for (; next < shape_.groups && next - g <= shape_.prefetch; ++next) add(ActionKind::issue_gather, next);
      add(ActionKind::wait_gather, g);
      add(ActionKind::use, g);
      add(ActionKind::release, g);
    }
  }

  // Reductions are awaited together at the end, the loosest order that a caller may choose: whatever holds here holds
  // for callers that wait earlier.
  void backward(bool accumulate) {
    int32_t next = shape_.groups - 1;
    for (int32_t g = shape_.groups - 1; g >= 0; --g) {
      for (; next >= 0 && g - next <= shape_.prefetch; --next) {
        add(ActionKind::issue_gather, next, shape_.keep_backward);
      }
      add(ActionKind::wait_gather, g);
      add(ActionKind::use, g);
      add(ActionKind::backward, g);
      add(ActionKind::release, g);
      add(ActionKind::issue_reduce, g, false, accumulate);
    }
    for (int32_t g = shape_.groups - 1; g >= 0; --g) add(ActionKind::wait_reduce, g);
  }

  const StepShape& shape_;
  Script script_;
};

}  // namespace

std::string_view name(ActionKind kind) {
  switch (kind) {
    case ActionKind::issue_gather:
      return "gather";
    case ActionKind::wait_gather:
      return "wait gather";
    case ActionKind::use:
      return "use";
    case ActionKind::release:
      return "release";
    case ActionKind::backward:
      return "backward";
    case ActionKind::issue_reduce:
      return "reduce";
    case ActionKind::wait_reduce:
      return "wait reduce";
    case ActionKind::consume:
      return "consume";
    case ActionKind::step:
      return "step";
    case ActionKind::external:
      return "external";
  }
  return "?";
}

Script training(const StepShape& shape) {
  at_least("groups", shape.groups, 1);
  at_least("steps", shape.steps, 0);
  at_least("prefetch", shape.prefetch, 0);
  at_least("micro_batches", shape.micro_batches, 1);
  Writer writer(shape);
  for (int32_t i = 0; i < shape.steps; ++i) writer.step();
  return std::move(writer).take();
}

std::string to_text(const Script& script) {
  std::string text;
  for (const Action& action : script.actions) {
    text += fmt::format("{} {}{}{}\n", name(action.kind), action.group, action.keep ? " keep" : "",
                        action.accumulate ? " accumulate" : "");
  }
  return text;
}

}  // namespace tide
