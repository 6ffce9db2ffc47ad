#include "verify/leases.h"

#include "fmt/format.h"

namespace tide::verify {
namespace {

struct GroupState {
  bool leased = false;    // from the issue of a gather to the release
  bool gathered = false;  // the gather was waited for
  bool reducing = false;
};

}  // namespace

std::vector<bool> check_leases(const Ensemble& ensemble, const Script& script, int32_t rank, Findings& findings) {
  std::vector<GroupState> states(ensemble.layouts.size());
  for (size_t i = 0; i < script.actions.size(); ++i) {
    const Action& action = script.actions[i];
    GroupState& state = states[static_cast<size_t>(action.group)];
    const auto fail = [&](const std::string& why) {
      findings.add("lease", rank, "caller", static_cast<int64_t>(i),
                   fmt::format("action {} '{} {}' {}", i, name(action.kind), action.group, why));
    };
    switch (action.kind) {
      case ActionKind::issue_gather:
        if (state.leased) fail("gathers a group that was not released");
        for (size_t g = 0; g < states.size(); ++g) {
          const bool same_slot =
              ensemble.space.groups[g].landing == ensemble.space.groups[static_cast<size_t>(action.group)].landing;
          if (!states[g].leased || !same_slot || static_cast<int32_t>(g) == action.group) continue;
          fail(fmt::format("takes the slot that group {} still holds", g));
        }
        state.leased = true;
        break;
      case ActionKind::wait_gather:
        if (!state.leased) fail("waits for a gather that was not issued");
        state.gathered = state.leased;
        break;
      case ActionKind::use:
        if (!state.gathered) fail("uses a landing that is not gathered");
        break;
      case ActionKind::release:
        if (!state.gathered) fail("releases a landing that is not gathered");
        state.leased = state.gathered = false;
        break;
      case ActionKind::issue_reduce:
        if (state.reducing) fail("reduces a group again before its reduction was waited for");
        state.reducing = true;
        break;
      case ActionKind::wait_reduce:
        if (!state.reducing) fail("waits for a reduction that was not issued");
        state.reducing = false;
        break;
      case ActionKind::backward:
        if (state.reducing) fail("writes gradients that a reduction still reads");
        break;
      case ActionKind::consume:
        if (state.reducing) fail("reads an output that a reduction still writes");
        break;
      case ActionKind::step:
      case ActionKind::external:
        break;
    }
  }
  std::vector<bool> leased;
  for (const GroupState& state : states) leased.push_back(state.leased);
  return leased;
}

}  // namespace tide::verify
