// How a rank's own part of a collective step went, as text for its peers, so that all ranks fail alike.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace tide::fabric {

// Runs `part`: empty if it returns, else its error as text.
std::string outcome_of(const std::function<void()>& part);

// Throws the first failure by rank, naming the rank: the same on every rank.
void throw_first(const std::vector<std::string>& outcomes);

}  // namespace tide::fabric
