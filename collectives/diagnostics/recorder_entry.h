// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_DIAGNOSTICS_RECORDER_ENTRY_H_
#define TANDEM_COLLECTIVES_DIAGNOSTICS_RECORDER_ENTRY_H_

// The entries of the flight recorder's ring: private to flight_recorder.cc and flight_recorder_json.cc.
//
// An entry is a sequence lock made of atomics only, so that readers may read at any moment. The stamp holds
// the id of the operation and its phase. A writer claims the entry by compare-and-swap (stamp -> "writing"),
// fills the words and releases them with the next stamp. A reader accepts the words if the stamp is the same
// before and after reading them.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "collectives/diagnostics/flight_recorder.h"

namespace tandem::collectives {

enum class Phase : uint8_t { kEmpty = 0, kWriting, kQueued, kStarted, kCompleted, kFailed };

constexpr uint64_t Stamp(uint64_t id, Phase phase) { return id << 3 | static_cast<uint64_t>(phase); }
constexpr uint64_t IdOf(uint64_t stamp) { return stamp >> 3; }
constexpr Phase PhaseOf(uint64_t stamp) { return static_cast<Phase>(stamp & 7); }
constexpr bool IsInFlight(Phase phase) {
  return phase == Phase::kWriting || phase == Phase::kQueued || phase == Phase::kStarted;
}
constexpr uint64_t Pack(uint32_t high, uint32_t low) { return static_cast<uint64_t>(high) << 32 | low; }

inline constexpr bool IsPointToPoint(OpKind kind) { return kind == OpKind::kSend || kind == OpKind::kRecv; }

enum Word : size_t {
  kGroupAndRoot = 0,
  kKinds,  // high: kind, dtype, reduce, even and device; low: tag
  kSequence,
  kCount,      // of the fingerprint
  kPartsHash,  // of the fingerprint
  kBytesIn,
  kBytesOut,
  kTimeout,  // nanoseconds
  kIssued,   // ticks
  kStarted,
  kEnded,
  kWords,
};

// A consistent copy of an entry.
struct FlightRecorder::Record {
  uint64_t id = 0;
  Phase phase = Phase::kEmpty;
  uint32_t group = 0;
  uint32_t tag = 0;
  Device::Kind device = Device::Kind::kCpu;
  Fingerprint fingerprint;
  uint64_t bytes_in = 0, bytes_out = 0;
  int64_t timeout_ns = 0;
  uint64_t issued = 0, started = 0, ended = 0;  // ticks; started is 0 if the operation has not started

  absl::Duration timeout() const {
    return timeout_ns == INT64_MAX ? absl::InfiniteDuration() : absl::Nanoseconds(timeout_ns);
  }
  // Describes the operation as Describe(Operation) does.
  std::string Description() const {
    std::string text = Describe(fingerprint);
    if (IsPointToPoint(fingerprint.kind) && tag != 0) {
      text.insert(text.size() - 1, ", tag " + std::to_string(tag));
    }
    return text;
  }
};

struct alignas(64) FlightRecorder::Entry {
  std::atomic<uint64_t> stamp{0};
  std::array<std::atomic<uint64_t>, kWords> words{};

  uint64_t Get(Word word) const { return words[word].load(std::memory_order_relaxed); }
  // Release, so that a reader that sees this word sees the stamp that was set before it.
  void Set(Word word, uint64_t value) { words[word].store(value, std::memory_order_release); }

  void Prefetch() const {
    __builtin_prefetch(this, 1);
    __builtin_prefetch(reinterpret_cast<const char*>(this) + 64, 1);
  }

  // Returns false for an entry that is empty or being claimed.
  bool Read(Record* record) const {
    for (int attempt = 0; attempt < 100; ++attempt) {
      const uint64_t before = stamp.load(std::memory_order_acquire);
      const Phase phase = PhaseOf(before);
      if (phase == Phase::kEmpty || phase == Phase::kWriting) return false;
      std::array<uint64_t, kWords> copy;
      // Acquire, so that the second read of the stamp is ordered after these reads.
      for (size_t i = 0; i < kWords; ++i) copy[i] = words[i].load(std::memory_order_acquire);
      if (stamp.load(std::memory_order_relaxed) != before) continue;
      const uint32_t kinds = static_cast<uint32_t>(copy[kKinds] >> 32);
      record->id = IdOf(before);
      record->phase = phase;
      record->group = static_cast<uint32_t>(copy[kGroupAndRoot] >> 32);
      record->tag = static_cast<uint32_t>(copy[kKinds]);
      record->device = static_cast<Device::Kind>((kinds >> 25) & 1);
      record->fingerprint.root = static_cast<int32_t>(static_cast<uint32_t>(copy[kGroupAndRoot]));
      record->fingerprint.kind = static_cast<OpKind>(kinds & 0xff);
      record->fingerprint.dtype = static_cast<DType>((kinds >> 8) & 0xff);
      record->fingerprint.reduce = static_cast<ReduceOp>((kinds >> 16) & 0xff);
      record->fingerprint.even = (kinds >> 24) & 1;
      record->fingerprint.sequence = copy[kSequence];
      record->fingerprint.count = copy[kCount];
      record->fingerprint.parts_hash = copy[kPartsHash];
      record->bytes_in = copy[kBytesIn];
      record->bytes_out = copy[kBytesOut];
      record->timeout_ns = static_cast<int64_t>(copy[kTimeout]);
      record->issued = copy[kIssued];
      record->started = phase == Phase::kQueued ? 0 : copy[kStarted];
      record->ended = IsInFlight(phase) ? 0 : copy[kEnded];
      return true;
    }
    return false;  // the entry changes faster than it can be read: the ring is much too small
  }
};

// How far a group has come. Kept apart from the ring, because a group that is seldom used may have lost all
// its entries to other groups. Sequence numbers plus one; 0: none yet.
struct alignas(64) FlightRecorder::Progress {
  struct Counters {
    std::atomic<uint64_t> issued{0}, completed{0};
  };
  Counters collective, point_to_point;

  static void Raise(std::atomic<uint64_t>& counter, uint64_t value) {
    if (counter.load(std::memory_order_relaxed) < value) counter.store(value, std::memory_order_relaxed);
  }
  void Issued(const Operation& o) {
    Raise((IsPointToPoint(o.kind) ? point_to_point : collective).issued, o.sequence + 1);
  }
  void Completed(uint64_t kinds, uint64_t sequence) {
    const OpKind kind = static_cast<OpKind>((kinds >> 32) & 0xff);
    Raise((IsPointToPoint(kind) ? point_to_point : collective).completed, sequence + 1);
  }
  void Reset() {
    for (Counters* counters : {&collective, &point_to_point}) {
      counters->issued.store(0, std::memory_order_relaxed);
      counters->completed.store(0, std::memory_order_relaxed);
    }
  }
};
inline constexpr size_t kGroupsWithProgress = 256;  // groups of higher number have no Progress

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_DIAGNOSTICS_RECORDER_ENTRY_H_
