#include "fabric/outcome.h"

#include <algorithm>
#include <new>
#include <string_view>

#include "fmt/format.h"
#include "tide/error.h"

namespace tide::fabric {
namespace {

// The code, a colon, the sentence: never empty.
std::string describe(const Error& error) { return fmt::format("{}:{}", static_cast<int>(error.code()), error.what()); }

}  // namespace

std::string outcome_of(const std::function<void()>& part) {
  try {
    part();
    return {};
  } catch (const Error& error) {
    return describe(error);
  } catch (const std::bad_alloc&) {
    return describe(Error(ErrorCode::no_space, "no memory for the fabric's own tables"));
  }
}

void throw_first(const std::vector<std::string>& outcomes) {
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const std::string& outcome = outcomes[rank];
    if (outcome.empty()) continue;
    const size_t colon = std::min(outcome.find(':'), outcome.size());
    int code = 0;
    for (const char digit : std::string_view(outcome).substr(0, std::min<size_t>(colon, 3)))
      code = code * 10 + digit - '0';
    const bool known = code >= 0 && code <= static_cast<int>(ErrorCode::system);
    const std::string sentence = outcome.substr(std::min(colon + 1, outcome.size()));
    throw Error(known ? static_cast<ErrorCode>(code) : ErrorCode::system, fmt::format("rank {}: {}", rank, sentence));
  }
}

}  // namespace tide::fabric
