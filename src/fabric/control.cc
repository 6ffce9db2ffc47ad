#include "fabric/control.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "fabric/futex.h"

namespace tide::fabric {
namespace {

constexpr size_t kRecords = 64;
constexpr size_t kSentence = 480;

// A record and its stamp: the stamp is 0 while the record is being written.
struct RecordSlot {
  std::atomic<uint64_t> sequence;
  std::atomic<uint64_t> kind_and_group;
  std::atomic<uint64_t> mask_hash;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace

struct Control::Header {
  // Read at every wake-up, written at most a few times.
  std::atomic<uint32_t> abort_ready;
  std::atomic<uint32_t> lost;  // Loss in the low 2 bits, rank above
  std::atomic<uint32_t> departures;
  std::atomic<uint32_t> abort_claim;  // rank + 1 of the one rank that writes the fields below
  uint32_t abort_code;
  uint32_t abort_length;
  std::array<char, kSentence> abort_text;
};

// What one rank owns. 128 bytes apart: processors fetch lines in pairs.
struct Control::Seat {
  // The owner sleeps on the bell; peers ring it and look at `sleeping`.
  alignas(128) std::atomic<uint32_t> bell;
  std::atomic<uint32_t> sleeping;
  // Written by the owner (presence at first by rank 0).
  alignas(128) std::atomic<uint32_t> presence;
  std::atomic<uint32_t> steps;
  std::atomic<uint64_t> last_published;
  alignas(128) std::array<RecordSlot, kRecords> records;
};

namespace {

constexpr int64_t kHeaderBytes = 1024;

}  // namespace

Control::Header& Control::header() const { return *reinterpret_cast<Header*>(window_.data()); }

Control::Seat& Control::seat(int32_t at) const {
  return reinterpret_cast<Seat*>(window_.data() + kHeaderBytes)[static_cast<size_t>(at)];
}

int64_t Control::bytes(int32_t world) {
  static_assert(sizeof(Header) <= kHeaderBytes && kHeaderBytes % alignof(Seat) == 0);
  return kHeaderBytes + world * static_cast<int64_t>(sizeof(Seat));
}

Control::Control(Window window, int32_t rank, int32_t world) : window_(std::move(window)), rank_(rank), world_(world) {}

Presence Control::presence(int32_t at) const {
  const uint32_t value = seat(at).presence.load(std::memory_order_acquire);
  return value <= static_cast<uint32_t>(Presence::dropped) ? static_cast<Presence>(value) : Presence::dropped;
}

void Control::arrive(int32_t at) {
  seat(at).presence.store(static_cast<uint32_t>(Presence::present), std::memory_order_release);
}

void Control::depart(Presence how) {
  seat(rank_).presence.store(static_cast<uint32_t>(how), std::memory_order_release);
  header().departures.fetch_add(1, std::memory_order_release);
  ring_all();
}

bool Control::somebody_departed() const { return header().departures.load(std::memory_order_acquire) != 0; }

void Control::report_lost(Loss loss, int32_t at) {
  uint32_t none = 0;
  const uint32_t value = static_cast<uint32_t>(loss) | static_cast<uint32_t>(at) << 2;
  if (header().lost.compare_exchange_strong(none, value, std::memory_order_acq_rel)) ring_all();
}

Control::Lost Control::lost() const {
  const uint32_t value = header().lost.load(std::memory_order_acquire);
  const auto loss = static_cast<Loss>(value & 3);
  const uint32_t rank = value >> 2;
  if (rank >= static_cast<uint32_t>(world_)) return {};
  return {loss, static_cast<int32_t>(rank)};
}

void Control::abort(ErrorCode code, std::string_view sentence) {
  Header& shared = header();
  uint32_t nobody = 0;
  if (!shared.abort_claim.compare_exchange_strong(nobody, static_cast<uint32_t>(rank_) + 1)) return;
  size_t length = std::min(sentence.size(), kSentence);
  // Not in the middle of a character of UTF-8.
  while (length < sentence.size() && length > 0 && (static_cast<unsigned char>(sentence[length]) & 0xC0) == 0x80) {
    --length;
  }
  shared.abort_code = static_cast<uint32_t>(code);
  shared.abort_length = static_cast<uint32_t>(length);
  std::memcpy(shared.abort_text.data(), sentence.data(), length);
  shared.abort_ready.store(1, std::memory_order_release);
  ring_all();
}

bool Control::aborted() const { return header().abort_ready.load(std::memory_order_acquire) != 0; }

std::optional<Control::Abort> Control::abort_record() const {
  if (!aborted()) return {};
  const Header& shared = header();
  Abort record;
  const uint32_t claim = shared.abort_claim.load(std::memory_order_relaxed);
  record.rank = claim >= 1 && claim <= static_cast<uint32_t>(world_) ? static_cast<int32_t>(claim - 1) : rank_;
  const uint32_t code = shared.abort_code;
  if (code <= static_cast<uint32_t>(ErrorCode::system)) record.code = static_cast<ErrorCode>(code);
  record.sentence.assign(shared.abort_text.data(), std::min<size_t>(shared.abort_length, kSentence));
  for (char& c : record.sentence) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7F) c = ' ';
  }
  return record;
}

void Control::begin_step() { seat(rank_).steps.fetch_add(1, std::memory_order_release); }

uint32_t Control::steps(int32_t at) const { return seat(at).steps.load(std::memory_order_acquire); }

void Control::publish(const CallRecord& record) {
  Seat& own = seat(rank_);
  RecordSlot& slot = own.records[record.sequence % kRecords];
  // A reader that sees a field of the new record also sees that the stamp is no longer the old one.
  slot.sequence.store(0, std::memory_order_relaxed);
  slot.kind_and_group.store(uint64_t{record.kind} << 32 | record.group, std::memory_order_release);
  slot.mask_hash.store(record.mask_hash, std::memory_order_release);
  slot.sequence.store(record.sequence, std::memory_order_release);
  own.last_published.store(record.sequence, std::memory_order_release);
}

CallRecord Control::published(int32_t at, uint64_t sequence) const {
  const RecordSlot& slot = seat(at).records[sequence % kRecords];
  if (sequence == 0 || slot.sequence.load(std::memory_order_acquire) != sequence) return {};
  CallRecord record;
  record.sequence = sequence;
  const uint64_t kind_and_group = slot.kind_and_group.load(std::memory_order_acquire);
  record.kind = static_cast<uint32_t>(kind_and_group >> 32);
  record.group = static_cast<uint32_t>(kind_and_group);
  record.mask_hash = slot.mask_hash.load(std::memory_order_acquire);
  if (slot.sequence.load(std::memory_order_relaxed) != sequence) return {};
  return record;
}

uint64_t Control::last_published(int32_t at) const { return seat(at).last_published.load(std::memory_order_acquire); }

uint32_t Control::doorbell() const { return seat(rank_).bell.load(std::memory_order_acquire); }

void Control::ring(int32_t at) {
  Seat& other = seat(at);
  // Sequentially consistent, as in sleep(): either this sees that the owner sleeps, or the owner sees the bell.
  other.bell.fetch_add(1, std::memory_order_seq_cst);
  if (other.sleeping.load(std::memory_order_seq_cst) != 0) futex_wake(other.bell);
}

void Control::ring_all() {
  for (int32_t at = 0; at < world_; ++at) ring(at);
}

void Control::sleep(uint32_t seen, std::chrono::nanoseconds limit) {
  Seat& own = seat(rank_);
  own.sleeping.store(1, std::memory_order_seq_cst);
  // A ring after this look finds `sleeping` set; one between the look and the kernel's own is seen by the kernel.
  if (own.bell.load(std::memory_order_seq_cst) == seen) futex_wait(own.bell, seen, limit);
  own.sleeping.store(0, std::memory_order_relaxed);
}

}  // namespace tide::fabric
