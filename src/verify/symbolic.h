// Executes operations and caller actions on symbols, and compares what callers read with what a correct collective
// gives them.
#pragma once

#include <vector>

#include "verify/contents.h"
#include "verify/findings.h"
#include "verify/memory.h"
#include "verify/replay.h"
#include "verify/terms.h"

namespace tide::verify {

class Symbolic {
 public:
  // Shards hold version 0 from the start, as the callers' own writes.
  Symbolic(const Ensemble& ensemble, const Memory& memory, Findings& findings);

  void operation(const Executed& executed);
  void action(int32_t rank, int32_t position, const Action& action);

 private:
  // A group as one rank's caller knows it.
  struct GroupView {
    int32_t version = 0;         // of the shards
    int32_t backward = -1;       // of the gradients
    std::vector<int32_t> parts;  // backward versions that the output accumulates, in order
  };
  struct Piece {
    int64_t begin = 0;  // bytes from the start of the operand
    int64_t end = 0;
    Content content;
  };

  GroupView& view(int32_t rank, int32_t group) { return views_[static_cast<size_t>(rank)][static_cast<size_t>(group)]; }
  std::vector<Piece> pieces(const Executed& executed, const Range& range);
  void move(const Executed& executed);
  void sum(const Executed& executed);
  void write_shards(int32_t rank, int32_t group);
  void write_gradients(int32_t rank, int32_t group);
  void check_landing(int32_t rank, int32_t position, int32_t group);
  void check_output(int32_t rank, int32_t position, int32_t group);
  TermId expected(int32_t group, int64_t param, const std::vector<int32_t>& parts);
  void fail(const Executed& executed, std::string law, const std::string& what);
  void fail(int32_t rank, int32_t position, std::string law, const std::string& what);

  const Ensemble& ensemble_;
  const Memory& memory_;
  Findings& findings_;
  Contents contents_;
  Terms terms_;
  std::vector<std::vector<GroupView>> views_;  // [rank][group]
};

}  // namespace tide::verify
