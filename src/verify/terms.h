// What a reduced element is made of, as small numbers that are equal exactly when the sums are: an ordered list of
// contributions on top of an earlier sum or of nothing.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "verify/contents.h"

namespace tide::verify {

using TermId = int32_t;

struct Contribution {
  Made made = Made::garbage;
  DType dtype = DType::f32;
  int32_t group = -1;
  int32_t param = -1;
  int32_t rank = -1;
  int32_t version = -1;
  int64_t shift = 0;  // elements, against the first contribution
  auto operator<=>(const Contribution&) const = default;
};

struct Term {
  TermId base = kNoBase;
  std::vector<Contribution> contributions;  // in fold order
  auto operator<=>(const Term&) const = default;

  static constexpr TermId kNoBase = -1;
  static constexpr TermId kBadBase = -2;  // accumulated onto something that is no sum of the same element
};

class Terms {
 public:
  TermId intern(Term term);
  const Term& at(TermId id) const { return terms_[static_cast<size_t>(id)]; }
  // What is wrong with `found` where `wanted` should stand, for people.
  std::string difference(TermId found, TermId wanted) const;

 private:
  std::map<Term, TermId> ids_;
  std::vector<Term> terms_;
};

}  // namespace tide::verify
