#include "verify/terms.h"

#include <algorithm>

#include "fmt/format.h"

namespace tide::verify {

TermId Terms::intern(Term term) {
  const auto it = ids_.find(term);
  if (it != ids_.end()) return it->second;
  const TermId id = static_cast<TermId>(terms_.size());
  terms_.push_back(term);
  ids_.emplace(std::move(term), id);
  return id;
}

std::string Terms::difference(TermId found, TermId wanted) const {
  const Term& got = at(found);
  const Term& want = at(wanted);
  for (const Contribution& c : want.contributions) {
    const auto from = [&](const Contribution& other) { return other.made == c.made && other.rank == c.rank; };
    const int64_t times = std::count_if(got.contributions.begin(), got.contributions.end(), from);
    if (times == 0) return fmt::format("the contribution of rank {} is missing", c.rank);
    if (times > 1) return fmt::format("the contribution of rank {} counts {} times", c.rank, times);
    const Contribution& other = *std::find_if(got.contributions.begin(), got.contributions.end(), from);
    if (other.version != c.version) {
      return fmt::format("the contribution of rank {} is of backward {}, not {}", c.rank, other.version, c.version);
    }
    if (other.group != c.group || other.param != c.param || other.shift != c.shift || other.dtype != c.dtype) {
      return fmt::format("the contribution of rank {} is another element (group {}, tensor {}, {:+} elements)", c.rank,
                         other.group, other.param, other.shift);
    }
  }
  if (got.contributions.size() > want.contributions.size()) {
    return fmt::format("it has {} contributions instead of {}", got.contributions.size(), want.contributions.size());
  }
  if (got.contributions != want.contributions) return "the contributions are not in local-rank order";
  if (got.base == want.base) return "nothing";
  if (want.base == Term::kNoBase) return "it is added to an earlier output";
  if (got.base == Term::kNoBase) return "it is not added to the earlier output";
  if (got.base == Term::kBadBase) return "it is added to bytes that are no earlier output of the same element";
  return "of the output it is added to, " + difference(got.base, want.base);
}

}  // namespace tide::verify
