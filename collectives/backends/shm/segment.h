#ifndef TANDEM_COLLECTIVES_BACKENDS_SHM_SEGMENT_H_
#define TANDEM_COLLECTIVES_BACKENDS_SHM_SEGMENT_H_

// The memory that the ranks of a group share, and its layout:
//
//   GroupHeader | RankArea x P | stage x P | RingControl x P^2 | ring x P^2
//
// A stage is where one rank puts what the others read in large collectives; a ring carries the messages of
// one rank to one other. Only what is touched is committed. A group of P ranks costs, in address space, about
// P * (20 KiB + stage_bytes) + P^2 * ring_bytes: 18 MiB for 2 ranks, 26 MiB for 4, 50 MiB for 16, 130 MiB for
// 64. Of that are committed, for all ranks together: 20 KiB for each rank by small collectives, its stage (4
// MiB; 2 or 1 MiB in groups of more than 4 or 16) by larger ones, and up to ring_bytes for each pair that
// sends messages.
//
// Peers are not trusted: whatever is read from here is checked against a bound before it is used as a size or
// an offset, and all geometry is computed by each process for itself.

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
inline constexpr size_t kInlineBytes = 4096;  // of a collective that needs no stage
// A stage is used round and round in this many parts; a block lies within one.
inline constexpr int kStageParts = 8;

// The first failure of the group, in words for all ranks.
struct FailureRecord {
  std::atomic<uint32_t> state{0};  // 0: none; 1: being written; 2: written
  int32_t rank = 0;                // who reports
  int32_t code = 0;                // absl::StatusCode
  uint32_t length = 0;
  char text[1008] = {};
};

struct alignas(4096) GroupHeader {
  // Nonzero once the group has failed. Apart from the record: it is read at every operation.
  alignas(kLine) std::atomic<uint32_t> failed{0};
  alignas(kLine) FailureRecord failure;
};

enum RankState : uint32_t { kAbsent = 0, kJoined, kLeft, kDead };

// What a rank tells for one collective. `word` is the flag: the low 16 bits count this rank's collectives,
// the others are a hash of its fingerprint, so that one comparison says that the peer is there and does the
// same. Small payloads lie in the same line (up to 56 bytes) or in the lines behind it.
struct alignas(2 * kLine) Post {
  std::atomic<uint64_t> word{0};
  char near[kLine - sizeof(std::atomic<uint64_t>)] = {};
  char far[kInlineBytes] = {};

  char* Payload(size_t bytes) { return bytes <= sizeof(near) ? near : far; }
};

// What the word of a post is a hash of, and this rank's factor of kPremulSum.
struct alignas(kLine) Announcement {
  Fingerprint fingerprint;
  double factor = 1.0;
};

// Elements that a rank sends to, and expects from, each other in an uneven operation.
struct alignas(kLine) PairCounts {
  uint64_t to[kMaxRanks] = {};
  uint64_t from[kMaxRanks] = {};
};

// Written by one rank, read by all. Posts, announcements and counts of collective n lie at n % 2: a rank that
// posts n has finished n - 1, so that whoever has seen all posts of n may overwrite those of n - 1.
struct alignas(4096) RankArea {
  alignas(kLine) std::atomic<uint64_t> progress{0};  // steps done, see exchange.h
  alignas(kLine) std::atomic<uint32_t> state{kAbsent};
  WakeupWord wakeup;          // rung after each post and step
  WakeupWord mailbox_wakeup;  // rung by whoever has put something into, or taken something from, this rank's rings
  Announcement announcements[2];
  PairCounts counts[2];
  Post posts[2];
};

// A ring of bytes of one sender and one receiver; both count bytes from the beginning of the group.
struct RingControl {
  alignas(2 * kLine) std::atomic<uint64_t> written{0};
  alignas(2 * kLine) std::atomic<uint64_t> read{0};
};

// Where everything lies, for a world size.
struct Geometry {
  explicit Geometry(int world_size);
  int world_size;
  size_t stage_bytes;  // of one rank; a multiple of kStageParts * 4096
  size_t block_bytes;  // at most, of one block of a collective; a multiple of kLine * world_size
  size_t ring_bytes;   // a power of two
  size_t areas_offset, stages_offset, controls_offset, rings_offset, total_bytes;
};

// Maps the memory as long as it lives; ranks that are threads of one process share one object. Thread-safe as
// far as what lies in it is.
class Segment {
 public:
  // Makes the memory: an anonymous file (memfd), sealed to its size, of which this process then holds the
  // only descriptor. FailedPrecondition naming the system call that the kernel refused.
  static absl::StatusOr<std::shared_ptr<Segment>> Create(int world_size);
  // Maps another process's. FailedPrecondition if `file` is not a sealed memory file of the size that
  // `world_size` asks for (so that nobody can shrink it under us).
  static absl::StatusOr<std::shared_ptr<Segment>> Map(ipc::Descriptor file, int world_size);
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // The creator's descriptor, for passing on; -1 after CloseDescriptor and in other processes.
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

// Ranks that are threads of one process find the one mapping of that process here, by a random key that
// travels through the store (a pointer from a store would be trusted blindly, and a process number can be
// another process's in another container).
std::string OfferToThisProcess(const std::shared_ptr<Segment>& segment);
std::shared_ptr<Segment> FindInThisProcess(absl::string_view key);  // nullptr: it was another process

}  // namespace tandem::collectives::shm

#endif  // TANDEM_COLLECTIVES_BACKENDS_SHM_SEGMENT_H_
