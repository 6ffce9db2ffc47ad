#include "verify/mutate.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>

#include "scenarios.h"
#include "tide/error.h"
#include "tide/execute.h"
#include "verify/happens_before.h"

namespace tide {
namespace {

using scenarios::ensemble_of;
using scenarios::first_sentence;
using scenarios::Scenario;
using verify::Fault;

// True when the verifier reports the mutant. Otherwise it must be as good as the original: the same order of all data,
// or at least the right bytes in every interleaving that is tried.
bool caught(const verify::Mutant& mutant, Fault fault, const Ensemble& original, const std::string& where) {
  const Report report = verify_script(mutant.ensemble, mutant.scripts, 4);
  if (!report.ok()) {
    for (const Violation& v : report.violations) EXPECT_FALSE(v.sentence.empty()) << where;
    return true;
  }
  EXPECT_TRUE(verify::may_be_harmless(fault)) << where << "\n" << mutant.what << " was not seen";
  if (verify::data_order(mutant.ensemble, mutant.scripts) == verify::data_order(original, mutant.scripts)) return false;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const Execution execution = execute(mutant.ensemble, mutant.scripts.front(), seed, scenarios::spread_inputs(0.75F));
    EXPECT_TRUE(execution.ok()) << where << "\n" << mutant.what << " was not seen\n" << execution.differences.front();
  }
  return false;
}

TEST(Mutate, EveryFaultIsSeen) {
  std::map<Fault, int> seen;
  std::map<Fault, int> made;
  for (const int32_t world : {1, 2, 3, 5}) {
    for (const Scenario& s : scenarios::scenarios_of(world)) {
      const Ensemble ensemble = ensemble_of(s);
      const Script script = training(s.step);
      ASSERT_TRUE(verify_script(ensemble, script).ok()) << s.name();
      for (int32_t f = 0; f < verify::kFaults; ++f) {
        const Fault fault = static_cast<Fault>(f);
        for (const uint64_t choice : {uint64_t{1}, uint64_t{1000003}}) {
          const auto mutant = verify::inject(ensemble, script, fault, choice);
          if (!mutant) continue;
          ++made[fault];
          if (caught(*mutant, fault, ensemble, s.name())) ++seen[fault];
        }
      }
    }
  }
  for (int32_t f = 0; f < verify::kFaults; ++f) {
    const Fault fault = static_cast<Fault>(f);
    EXPECT_GT(seen[fault], 0) << verify::name(fault) << ", of " << made[fault];
    if (!verify::may_be_harmless(fault)) {
      EXPECT_EQ(seen[fault], made[fault]) << verify::name(fault);
    }
  }
}

// Without its hand-shake each counter breaks some script: none of them is there for nothing.
TEST(Mutate, EveryHandshakeIsNeeded) {
  std::vector<Action> forward;
  for (int32_t pass = 0; pass < 3; ++pass) {
    for (int32_t g = 0; g < 3; ++g) {
      forward.push_back({ActionKind::issue_gather, g});
      forward.push_back({ActionKind::wait_gather, g});
      forward.push_back({ActionKind::use, g});
      forward.push_back({ActionKind::release, g});
      forward.push_back({ActionKind::step, g});
    }
  }
  // One group of each slot over and over, so that no other group's gather comes between.
  Script again;
  for (int32_t pass = 0; pass < 4; ++pass) {
    for (const ActionKind kind :
         {ActionKind::issue_gather, ActionKind::wait_gather, ActionKind::use, ActionKind::release, ActionKind::step}) {
      again.actions.push_back({kind, pass / 2});
    }
  }
  Scenario s;
  s.world = 3;
  s.landing = Landing::ring;
  const Ensemble ensemble = ensemble_of(s);
  std::map<std::string, bool> needed;
  for (const Script& script : {training(s.step), Script{forward}, again}) {
    ASSERT_TRUE(verify_script(ensemble, script).ok()) << first_sentence(verify_script(ensemble, script));
    for (uint64_t choice = 0; choice < 64; ++choice) {
      const auto mutant = verify::inject(ensemble, script, Fault::drop_handshake, choice);
      ASSERT_TRUE(mutant.has_value());
      needed[mutant->what] = needed[mutant->what] || caught(*mutant, Fault::drop_handshake, ensemble, mutant->what);
    }
  }
  EXPECT_EQ(needed.size(), 6U * 3U);  // arrived, staged, drained, opened and two slots; from three ranks
  for (const auto& [what, is] : needed) EXPECT_TRUE(is) << what;
}

TEST(Mutate, SayWhatTheyDid) {
  Scenario s;
  const Ensemble ensemble = ensemble_of(s);
  const Script script = training(s.step);
  const auto mutant = verify::inject(ensemble, script, Fault::drop_wait, 0);
  ASSERT_TRUE(mutant.has_value());
  EXPECT_EQ(mutant->what, "drop wait: operation 0 (wait) of the all-gather of group 0 of rank 0");
  s.world = 1;
  EXPECT_FALSE(verify::inject(ensemble_of(s), script, Fault::drop_wait, 0).has_value());
  EXPECT_FALSE(verify::inject(ensemble_of(s), script, Fault::swap_calls, 0).has_value());
}

// What the verifier finds is real: some interleaving of such a mutant reads wrong bytes.
TEST(Mutate, RacesShowOnBytes) {
  Scenario s;
  s.world = 3;
  s.step.groups = 2;
  const Ensemble ensemble = ensemble_of(s);
  const Script script = training(s.step);
  for (const Fault fault : {Fault::early_signal, Fault::late_wait, Fault::swap_sources, Fault::drop_copy}) {
    bool wrong = false;
    for (uint64_t choice = 0; choice < 12 && !wrong; ++choice) {
      const auto mutant = verify::inject(ensemble, script, fault, choice * 7);
      ASSERT_TRUE(mutant.has_value());
      for (uint64_t seed = 0; seed < 10 && !wrong; ++seed) {
        wrong = !execute(mutant->ensemble, script, seed, scenarios::spread_inputs(1.0F)).ok();
      }
    }
    EXPECT_TRUE(wrong) << verify::name(fault);
  }
}

}  // namespace
}  // namespace tide
