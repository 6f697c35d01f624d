// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_MPI_COLLECTIVE_H_
#define TANDEM_COLLECTIVES_BACKENDS_MPI_COLLECTIVE_H_

// Runs a collective as rounds of MPI's non-blocking ones, over memory of our own.
//
//   1. All ranks gather each other's fingerprints. For an uneven operation, counts that one rank alone knows
//     are then compared pair by pair. So ranks that disagree get an error before MPI sees any buffer, and all
//     know the number of rounds. This step is also the barrier.
//   2. The data go in segments of at most kSegmentBytes. A segment is packed from the caller's parts,
//     exchanged, and unpacked while the next segment is exchanged. So counts above INT_MAX need no special
//     case, and MPI never sees the caller's memory (round.h says why).
//
// Two-byte floating point is sent as f32. It is so accumulated in f32 and rounded once, and MPI needs no such
// type. Minima and maxima of floating point use ReduceInRankOrder, because MPI leaves them to the
// implementation for NaN and signed zeros. kAvg divides when it unpacks, kPremulSum multiplies when it packs.

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/backends/mpi/communicator.h"
#include "collectives/backends/mpi/engine.h"
#include "collectives/backends/mpi/monitor.h"
#include "collectives/backends/mpi/round.h"
#include "collectives/operation.h"

namespace tandem::collectives::mpi {

// The collectives of one group. Used by one thread at a time. `engine` must outlive it.
class Collectives {
 public:
  Collectives(Engine* engine, const Communicators& communicators, std::string group, int rank, int world_size,
              std::shared_ptr<Monitor> monitor)
      : engine_(engine),
        communicators_(communicators),
        group_(std::move(group)),
        rank_(rank),
        world_size_(world_size),
        monitor_(std::move(monitor)) {}

  // Runs the operation; also kLeave. Blocks until this rank is done with it, at most until `deadline`. Errors
  // are those of Backend. Any error must break the group; the caller does that.
  absl::Status Run(const Operation& operation, absl::Time deadline);

 private:
  static constexpr size_t kSegmentBytes = 4 << 20;
  struct Memory;  // of one segment
  struct Head;    // the first exchange between ranks
  struct Pair;
  struct Verdict;

  // Phase 1. Returns the largest number of elements that any rank has in one part.
  absl::StatusOr<uint64_t> Agree(const Operation& operation, absl::Time deadline);
  absl::Status AgreeOnPairs(const Operation& operation, absl::Time deadline);
  absl::Status Explain(const Operation& operation, const absl::Status& status, bool arrived);
  // Elements [begin, begin + length) of every part, as far as the part has them.
  struct Segment {
    uint64_t begin, length;
  };
  std::shared_ptr<Round> Start(const Operation& operation, Segment segment, std::shared_ptr<Memory> memory);
  void Finish(const Operation& operation, Segment segment, const Memory& memory);
  std::shared_ptr<Memory> TakeMemory(int slot, size_t bytes);

  Engine* const engine_;
  const Communicators communicators_;
  const std::string group_;
  const int rank_, world_size_;
  const std::shared_ptr<Monitor> monitor_;
  uint64_t number_ = 0;
  std::shared_ptr<Memory> memory_[2];
};

}  // namespace tandem::collectives::mpi

#endif  // TANDEM_COLLECTIVES_BACKENDS_MPI_COLLECTIVE_H_
