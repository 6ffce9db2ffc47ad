// How the ranks of one machine find each other: rank 0 listens on a socket in a private folder and tells its path and a
// nonce through the job's store; the others connect and prove the nonce; everybody gets a descriptor of everybody's
// life and the shared control memory.
#pragma once

#include <vector>

#include "fabric/control.h"
#include "fabric/descriptor.h"
#include "fabric/life.h"
#include "fabric/node.h"
#include "fabric/socket.h"

namespace tide::fabric {

struct Meeting {
  Control control;                  // set early, so that a failure can be told to those who have arrived
  std::vector<Descriptor> sockets;  // on rank 0: by rank; elsewhere: one, to rank 0
  std::vector<Descriptor> lives;    // by rank; empty for this one
  Descriptor own_life;              // keeps this rank's life open where it is a pipe
};

// Fills `meeting`. `watch` throws what ends the meeting early; it is called while `meeting` is being filled. The folder
// is gone when rank 0 returns, and after a failure on any rank that knows it.
void meet(const NodeOptions& options, Clock::time_point deadline, Meeting& meeting, const std::function<void()>& watch);

}  // namespace tide::fabric
