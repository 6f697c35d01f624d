// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_SHM_SEGMENT_H_
#define TANDEM_COLLECTIVES_BACKENDS_SHM_SEGMENT_H_

// The shared memory of a group's ranks, and its layout:
//
//   GroupHeader | RankArea x P | stage x P | RingControl x P^2 | ring x P^2
//
// A stage holds what one rank offers to the others in large collectives. A ring carries the messages of one
// rank to one other.
//
// Address space of a group of P ranks: about P * (20 KiB + stage_bytes) + P^2 * ring_bytes, which is 18 MiB
// for 2 ranks, 26 MiB for 4, 50 MiB for 16, 130 MiB for 64. Only memory that is touched is committed, for all
// ranks together:
//
//   - small collectives: 20 KiB for each rank
//   - larger collectives: each rank's stage (4 MiB; 2 or 1 MiB in groups of more than 4 or 16)
//   - messages: up to ring_bytes for each pair that sends them
//
// Peers are not trusted. Every value read from here is checked against a bound before it is used as a size or
// an offset, and each process computes all geometry by itself.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ipc/descriptor.h"
#include "base/ipc/memory_file.h"
#include "collectives/backends/shm/wait.h"
#include "collectives/operation.h"

namespace tandem::collectives::shm {

inline constexpr int kMaxRanks = 64;
inline constexpr size_t kInlineBytes = 4096;  // limit of a collective that needs no stage
// A stage is used cyclically in this many parts; a block lies within one part.
inline constexpr int kStageParts = 8;

// The first failure of the group, as text for all ranks.
struct FailureRecord {
  std::atomic<uint32_t> state{0};  // 0: none; 1: being written; 2: written
  int32_t rank = 0;                // the rank that reports
  int32_t code = 0;                // absl::StatusCode
  uint32_t length = 0;
  char text[1008] = {};
};

struct alignas(4096) GroupHeader {
  // Nonzero once the group has failed. Kept apart from the record, because every operation reads it.
  alignas(kLine) std::atomic<uint32_t> failed{0};
  alignas(kLine) FailureRecord failure;
};

enum RankState : uint32_t { kAbsent = 0, kJoined, kLeft, kDead };

// One rank's announcement of one collective. `word` is the flag: its low 16 bits count this rank's
// collectives, the other bits are a hash of its fingerprint. So one comparison shows that the peer has come
// and calls the same operation. Payloads of up to 56 bytes lie in the same cache line, larger ones in the
// lines behind it.
struct alignas(2 * kLine) Post {
  std::atomic<uint64_t> word{0};
  char near[kLine - sizeof(std::atomic<uint64_t>)] = {};
  char far[kInlineBytes] = {};

  char* Payload(size_t bytes) { return bytes <= sizeof(near) ? near : far; }
};

// The fingerprint whose hash is in the word of a post, and this rank's factor of kPremulSum.
struct alignas(kLine) Announcement {
  Fingerprint fingerprint;
  double factor = 1.0;
};

// Elements that a rank sends to, and expects from, every other rank in an uneven operation.
struct alignas(kLine) PairCounts {
  uint64_t to[kMaxRanks] = {};
  uint64_t from[kMaxRanks] = {};
};

// Written by one rank, read by all. Posts, announcements and counts of collective n lie at n % 2. A rank that
// posts n has finished n - 1, so a rank that has seen all posts of n may overwrite those of n - 1.
struct alignas(4096) RankArea {
  alignas(kLine) std::atomic<uint64_t> progress{0};  // steps done, see exchange.h
  alignas(kLine) std::atomic<uint32_t> state{kAbsent};
  WakeupWord wakeup;  // signalled after each post and step
  // Signalled by a rank that has written to, or read from, one of this rank's rings.
  WakeupWord mailbox_wakeup;
  Announcement announcements[2];
  PairCounts counts[2];
  Post posts[2];
};

// The counters of a ring of bytes from one sender to one receiver. Both count bytes since the group began.
struct RingControl {
  alignas(2 * kLine) std::atomic<uint64_t> written{0};
  alignas(2 * kLine) std::atomic<uint64_t> read{0};
};

// Sizes and offsets of the layout for a world size.
struct Geometry {
  explicit Geometry(int world_size);
  int world_size;
  size_t stage_bytes;  // of one rank; a multiple of kStageParts * 4096
  size_t block_bytes;  // limit of one block of a collective; a multiple of kLine * world_size
  size_t ring_bytes;   // a power of two
  size_t areas_offset, stages_offset, controls_offset, rings_offset, total_bytes;
};

// Owns the mapping of the memory. Ranks that are threads of one process share one object. The object is
// thread-safe; its content is as thread-safe as its types.
class Segment {
 public:
  // Creates the memory: an anonymous file (memfd), sealed to its size, of which this process holds the only
  // descriptor. FailedPrecondition naming the system call that the kernel refused.
  static absl::StatusOr<std::shared_ptr<Segment>> Create(int world_size);
  // Maps another process's memory. FailedPrecondition if `file` is not a sealed memory file of the size for
  // `world_size`. The seal guarantees that no process can shrink it while it is mapped.
  static absl::StatusOr<std::shared_ptr<Segment>> Map(ipc::Descriptor file, int world_size);
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // The creator's descriptor, to be passed to other processes; -1 after CloseDescriptor and in other
  // processes.
  int descriptor() const { return memory_->descriptor(); }
  void CloseDescriptor() { memory_->CloseDescriptor(); }

  const Geometry& geometry() const { return geometry_; }
  GroupHeader& header() { return *reinterpret_cast<GroupHeader*>(base_); }
  RankArea& area(int rank) { return reinterpret_cast<RankArea*>(base_ + geometry_.areas_offset)[rank]; }
  char* stage(int rank) { return base_ + geometry_.stages_offset + rank * geometry_.stage_bytes; }
  RingControl& ring_control(int from, int to) {
    return reinterpret_cast<RingControl*>(base_ +
                                          geometry_.controls_offset)[from * geometry_.world_size + to];
  }
  char* ring(int from, int to) {
    return base_ + geometry_.rings_offset + (from * geometry_.world_size + to) * geometry_.ring_bytes;
  }

  // Wakes every wait of the group.
  void WakeAll();

 private:
  Segment(int world_size, std::unique_ptr<ipc::MemoryFile> memory);

  const Geometry geometry_;
  const std::unique_ptr<ipc::MemoryFile> memory_;
  char* const base_;
};

// Let ranks that are threads of one process share the one mapping of that process. The key is random and
// travels through the store. (A pointer from a store would have to be trusted blindly, and a process id can
// belong to another process in another container.)
std::string OfferToThisProcess(const std::shared_ptr<Segment>& segment);
std::shared_ptr<Segment> FindInThisProcess(absl::string_view key);  // nullptr: offered by another process

}  // namespace tandem::collectives::shm

#endif  // TANDEM_COLLECTIVES_BACKENDS_SHM_SEGMENT_H_
