// The operations of a program in words that a person can follow.
#pragma once

#include <string>
#include <string_view>

#include "tide/layout.h"
#include "tide/plan.h"
#include "tide/program.h"

namespace tide::cli {

bool moves_bytes(OpKind kind);

class ProgramText {
 public:
  // Keeps references to all of them.
  ProgramText(const Plan& plan, const Space& space, const Layout& layout, int32_t group, const Program& program)
      : plan_(plan), space_(space), layout_(layout), group_(group), program_(program) {}

  std::string header() const;  // what the program does and moves, and the regions it names
  std::string_view queue(const Operation& op) const;
  std::string_view counter(const Operation& op) const;
  std::string peer(const Operation& op) const;       // "local 2", "every peer", ...
  std::string region(RegionId id) const;             // "staging", "grad 'wq'", ...
  std::string operation(const Operation& op) const;  // "copy   4,096 B  grad 'wq' rows 96 to 99 -> staging of ..."
  std::string place(const Ref& ref, int64_t bytes, const Target& to, bool written) const;
  const Program& program() const { return program_; }

 private:
  bool is_landing(RegionId id) const { return id == space_.groups[static_cast<size_t>(group_)].landing; }
  std::string call_place(const Ref& ref, int64_t bytes) const;
  std::string landing_place(const Ref& ref, int64_t bytes, const Target& to) const;
  std::string staging_place(const Ref& ref, const Target& to, bool written) const;
  std::string output_place(int64_t begin, int64_t end) const;
  std::string tensor_rows(int64_t param, int64_t begin, int64_t end) const;  // elements of the unsharded tensor
  std::string owned_rows(int64_t param, int64_t begin, int64_t end) const;   // elements of this rank's shard
  std::string counts() const;
  std::string regions() const;

  const Plan& plan_;
  const Space& space_;
  const Layout& layout_;
  int32_t group_;
  const Program& program_;
};

// Which part of its collective an operation belongs to, told from the signals and waits before it. Takes every
// operation of one program in issue order.
class Sections {
 public:
  Sections(const Space& space, const Program& program) : space_(space), program_(program) {}

  struct Section {
    std::string title;
    int64_t chunk = -1;  // of a reduce-scatter, where the section is of one
  };
  Section next(const Operation& op);

 private:
  Section of_reduce(const Operation& op);

  const Space& space_;
  const Program& program_;
  int64_t pushed_ = 0;  // signals that a chunk is staged
  int64_t taken_ = 0;   // waits for such signals
};

}  // namespace tide::cli
