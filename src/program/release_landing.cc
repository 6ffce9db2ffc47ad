// Release of a landing: one signal to each of the L-1 peers, no bytes, no wait.
#include "program/issue.h"
#include "tide/collectives.h"

namespace tide {

Program release(const Plan& plan, const Space& space, const Layout& /*layout*/, int32_t group, int32_t rank) {
  Program program = start_program(Collective::release, plan, space, rank);
  if (plan.local > 1 && plan.landing != Landing::home) {
    signal(program, space.gather, {Reach::node, 0}, space.groups[static_cast<size_t>(group)].released);
  }
  return program;
}

}  // namespace tide
