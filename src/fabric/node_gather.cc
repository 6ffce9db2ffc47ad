#include <cstring>
#include <thread>

#include "fabric/node_impl.h"

namespace tide::fabric {
namespace {

using std::chrono::milliseconds;

const char* name(uint32_t step) {
  switch (static_cast<Step>(step)) {
    case Step::arrive:
      return "the meeting";
    case Step::exchange:
      return "exchange()";
    case Step::map_sizes:
    case Step::map_create:
    case Step::map_descriptors:
    case Step::map_reserve:
      return "map()";
  }
  return "an unknown step";
}

void append_length(std::string& text, uint64_t value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

std::string Node::Impl::missing(uint32_t steps, int32_t otherwise) const {
  std::string text;
  for (int32_t r = 0; r < world(); ++r) {
    if (control().steps(r) < steps) text += fmt::format("{}{}", text.empty() ? "" : ", ", r);
  }
  return text.empty() ? fmt::format("{}", otherwise) : text;
}

Patience Node::Impl::patience(int32_t peer, Step step) const {
  return {deadline, [self = const_cast<Impl*>(this)] { self->check(true, true); },
          [this, peer, step] {
            return fmt::format("rank {} waited {} ms in {} for rank {}: it is stuck, stopped or makes another call",
                               rank(), options.deadline.count(), name(static_cast<uint32_t>(step)),
                               missing(control().steps(rank()), peer));
          }};
}

// The peer closed its socket: an abort or a death explains it better, and may be seen a little later.
void Node::Impl::closed_by(int32_t peer) {
  for (int i = 0; i < 50; ++i) {
    check(true, true);
    std::this_thread::sleep_for(milliseconds(10));
  }
  throw Error(ErrorCode::peer_lost, fmt::format("rank {} closed its connection to rank {}", peer, rank()));
}

Frame Node::Impl::receive(int32_t from, Step step, uint64_t most) {
  Frame frame;
  try {
    frame = receive_frame(meeting.sockets[rank() == 0 ? static_cast<size_t>(from) : 0], most, patience(from, step));
  } catch (const Closed&) {
    closed_by(from);
  }
  if (frame.kind != static_cast<uint32_t>(step)) {
    throw Error(ErrorCode::mismatch, fmt::format("rank {} is in {} and rank {} in {}: make the same calls in the same "
                                                 "order on every rank",
                                                 rank(), name(static_cast<uint32_t>(step)), from, name(frame.kind)));
  }
  return frame;
}

void Node::Impl::send(int32_t to, Step step, std::span<const std::string_view> payload,
                      std::span<const int> descriptors) {
  try {
    send_frame(meeting.sockets[rank() == 0 ? static_cast<size_t>(to) : 0], static_cast<uint32_t>(step), payload,
               descriptors, patience(to, step));
  } catch (const Closed&) {
    closed_by(to);
  }
}

std::vector<std::string> Node::Impl::gather(Step step, std::string_view mine) {
  if (world() == 1) return {std::string(mine)};
  deadline = Clock::now() + options.deadline;
  control().begin_step();
  return rank() == 0 ? gather_at_hub(step, mine) : gather_at_spoke(step, mine);
}

std::vector<std::string> Node::Impl::gather_at_hub(Step step, std::string_view mine) {
  std::vector<std::string> blobs(static_cast<size_t>(world()));
  blobs[0] = mine;
  for (int32_t r = 1; r < world(); ++r) blobs[static_cast<size_t>(r)] = receive(r, step, kMostBlob).payload;
  std::string lengths;
  for (const std::string& blob : blobs) append_length(lengths, blob.size());
  std::vector<std::string_view> parts{lengths};
  parts.insert(parts.end(), blobs.begin(), blobs.end());
  for (int32_t r = 1; r < world(); ++r) send(r, step, parts, {});
  return blobs;
}

std::vector<std::string> Node::Impl::gather_at_spoke(Step step, std::string_view mine) {
  const std::string_view parts[] = {mine};
  send(0, step, parts, {});
  const auto ranks = static_cast<size_t>(world());
  const std::string all = receive(0, step, ranks * (kMostBlob + sizeof(uint64_t))).payload;
  std::vector<std::string> blobs(ranks);
  size_t at = ranks * sizeof(uint64_t);
  for (size_t r = 0; r < ranks; ++r) {
    uint64_t length = 0;
    if (at <= all.size()) std::memcpy(&length, all.data() + r * sizeof(length), sizeof(length));
    if (at > all.size() || length > all.size() - at) {
      throw Error(ErrorCode::mismatch, "rank 0 sent a message of another form: run the same build on every rank");
    }
    blobs[r] = all.substr(at, length);
    at += length;
  }
  return blobs;
}

}  // namespace tide::fabric
