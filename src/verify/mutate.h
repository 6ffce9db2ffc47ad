// Faults, put into sound programs and scripts on purpose: what shows that the verifier would see them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tide/verify.h"

namespace tide::verify {

enum class Fault : uint8_t {
  drop_wait,
  drop_signal,
  repeat_signal,
  drop_handshake,  // every signal of one counter from one rank, and every wait for it
  early_signal,    // a signal before the operation that it announces
  late_wait,       // a wait behind the operation that it guards
  drop_copy,
  shorten_copy,
  shift_source,
  shift_destination,
  wrong_peer,
  out_of_bounds,
  drop_sum,
  drop_zero,
  drop_source,
  repeat_source,
  swap_sources,
  // In scripts.
  early_release,
  early_reduce,   // before the gradients are written
  early_consume,  // before the reduction is waited for
  stale_keep,     // keeps pieces that a step has changed
  swap_calls,     // on one rank only
  skip_call,      // on one rank only
};
inline constexpr int32_t kFaults = static_cast<int32_t>(Fault::skip_call) + 1;
std::string_view name(Fault fault);

// A fault of synchronisation that other orderings of the same script may make up for: where the verifier accepts it, no
// interleaving shows it.
bool may_be_harmless(Fault fault);

struct Mutant {
  Ensemble ensemble;
  std::vector<Script> scripts;  // one a rank
  std::string what;             // the fault and where it is, for people
};

// One fault at one of the places that the script reaches, `choice` picks which (modulo their number). Nothing when
// there is no such place.
std::optional<Mutant> inject(const Ensemble& ensemble, const Script& script, Fault fault, uint64_t choice);

}  // namespace tide::verify
