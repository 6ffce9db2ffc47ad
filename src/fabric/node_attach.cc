#include "fabric/node_impl.h"

namespace tide::fabric {
namespace {

constexpr int32_t kMostRanks = 1024;

}  // namespace

Node::Impl::~Impl() {
  if (control() && getpid() == process && !left) control().depart(Presence::dropped);
}

void Node::Impl::require_own_process(const char* call) const {
  if (getpid() == process) return;
  throw Error(ErrorCode::closed, fmt::format("{} in a forked child: the memory is shared with the process that made "
                                             "it, but not its place among the ranks; make a session of its own",
                                             call));
}

void Node::Impl::require_attached(const char* call) const {
  require_own_process(call);
  if (left) throw Error(ErrorCode::closed, fmt::format("{} after leave: make a new node", call));
}

void Node::Impl::attach() {
  if (world() < 1 || world() > kMostRanks) {
    throw Error(ErrorCode::invalid_argument, fmt::format("world is {}: give 1 to {} ranks", world(), kMostRanks));
  }
  if (rank() < 0 || rank() >= world()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("rank is {}: give a rank from 0 to {}", rank(), world() - 1));
  }
  if (world() > 1 && options.store == nullptr) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("store is null with world {}: pass a store that all ranks share", world()));
  }
  if (options.deadline.count() <= 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("deadline is {} ms: give a positive time", options.deadline.count()));
  }
  collective("the meeting", [&] {
    try {
      meet(options, deadline, meeting, [this] {
        if (control()) check(true, true);
      });
    } catch (const Closed&) {
      closed_by(0);
    }
    // Nobody is attached before everybody is.
    gather(Step::arrive, {});
  });
}

}  // namespace tide::fabric
