#include <algorithm>

#include "fabric/node_impl.h"

namespace tide::fabric {

void Node::Impl::check(bool thorough, bool in_setup) {
  require_attached("check");
  if (control().aborted()) {
    const Control::Abort record = *control().abort_record();
    if (in_setup) throw Error(record.code, record.sentence);
    throw Error(ErrorCode::aborted,
                fmt::format("rank {} failed first ({}): {}", record.rank, tide::name(record.code), record.sentence));
  }
  throw_lost();
  if (!thorough && !control().somebody_departed()) return;
  // Deaths first: a rank that was told of one may be on its way out already.
  poll_lives();
  check_departures();
}

void Node::Impl::throw_lost() const {
  const Control::Lost lost = control().lost();
  switch (lost.loss) {
    case Loss::none:
      return;
    case Loss::died:
      throw Error(ErrorCode::peer_lost,
                  fmt::format("rank {} died: its process has ended without closing its session; look at its own output "
                              "and start all ranks again",
                              lost.rank));
    case Loss::dropped:
      throw Error(
          ErrorCode::peer_lost,
          fmt::format("rank {} dropped its session without closing it together with the others; look at its own "
                      "error",
                      lost.rank));
    case Loss::left:
      throw Error(ErrorCode::peer_lost,
                  fmt::format("rank {} closed its session before a call that others are in: make the same calls on "
                              "every rank",
                              lost.rank));
  }
}

void Node::Impl::poll_lives() {
  lives.clear();
  for (const Descriptor& life : meeting.lives) {
    if (life) lives.push_back({life.get(), POLLIN, 0});
  }
  if (poll(lives.data(), lives.size(), 0) <= 0) return;
  for (size_t r = 0, at = 0; r < meeting.lives.size(); ++r) {
    if (!meeting.lives[r] || !ended(lives[at++].revents)) continue;
    const auto peer = static_cast<int32_t>(r);
    const Presence presence = control().presence(peer);
    // Who has called leave() may end; whether it did so too early is asked elsewhere.
    if (presence == Presence::leaving) continue;
    control().report_lost(presence == Presence::dropped ? Loss::dropped : Loss::died, peer);
    throw_lost();
  }
}

void Node::Impl::check_departures() {
  const bool leaving = control().presence(rank()) == Presence::leaving;
  for (int32_t r = 0; r < world(); ++r) {
    if (r == rank()) continue;
    const Presence presence = control().presence(r);
    if (presence == Presence::dropped) {
      control().report_lost(Loss::dropped, r);
    } else if (presence == Presence::leaving && !leaving && control().last_published(r) < published) {
      control().report_lost(Loss::left, r);
    }
  }
  throw_lost();
}

void Node::Impl::leave() {
  require_own_process("leave");
  if (left) return;
  if (control().presence(rank()) != Presence::leaving) control().depart(Presence::leaving);
  const Clock::time_point end = Clock::now() + options.deadline;
  while (true) {
    const uint32_t seen = control().doorbell();
    std::string at_work;
    for (int32_t r = 0; r < world(); ++r) {
      if (control().presence(r) == Presence::leaving) continue;
      at_work += fmt::format("{}{}", at_work.empty() ? "" : ", ", r);
    }
    if (at_work.empty()) {
      left = true;
      return;
    }
    check(true, false);
    if (Clock::now() >= end) {
      throw Error(ErrorCode::timeout, fmt::format("rank {} waited {} ms for rank {} to close the session too: close it "
                                                  "on every rank",
                                                  rank(), options.deadline.count(), at_work));
    }
    control().sleep(seen, std::min<std::chrono::nanoseconds>(kSleepSlice, end - Clock::now()));
  }
}

}  // namespace tide::fabric
