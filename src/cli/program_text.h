// A program in words that a person can follow, and as a Graphviz graph.
#pragma once

#include <string>

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

  std::string header() const;  // what the program does and moves, a few lines
  const std::string& queue(const Operation& op) const;
  std::string operation(const Operation& op) const;  // "copy 4.00 KiB of grad 'wq' row 96 -> staging slot 0 of local 3"
  std::string dot(int64_t limit) const;              // queues as clusters, counters as edges to the outside

 private:
  std::string place(const Ref& ref, const Target& to, bool destination) const;
  std::string tensor_place(const std::string& what, int64_t param, int64_t offset, int64_t item) const;

  const Plan& plan_;
  const Space& space_;
  const Layout& layout_;
  int32_t group_;
  const Program& program_;
};

}  // namespace tide::cli
