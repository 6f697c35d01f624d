// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_MPI_COMMUNICATOR_H_
#define TANDEM_COLLECTIVES_BACKENDS_MPI_COMMUNICATOR_H_

// The communicators of one group, and the notes that its ranks send each other independently of operations.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/backend.h"
#include "collectives/backends/mpi/engine.h"
#include "collectives/backends/mpi/monitor.h"

namespace tandem::collectives::mpi {

// Handles as MPI_Comm_c2f returns them. Their ranks are the group's ranks.
struct Communicators {
  int operations = 0;  // collectives, and messages with the tags of users
  int auxiliary = 0;   // chunks of long messages, with tags below notes_tag; notes
  int notes_tag = 0;
};

// Makes communicators of the group's ranks, in the group's order. Finds out through the store which rank of
// MPI_COMM_WORLD each rank is, because launchers need not agree with RANK. Blocks until options.deadline.
// Errors: DeadlineExceeded naming ranks that did not come; FailedPrecondition for ranks of different mpirun
// calls, or for two of one process.
absl::StatusOr<Communicators> MakeCommunicators(Engine* engine, const BackendOptions& options);
// Frees the communicators when all ranks have left; operations that still run in them end by themselves.
void FreeCommunicators(Engine* engine, const Communicators& communicators);

// A message outside the operations, to all other ranks of the group.
struct Note {
  enum Kind : uint32_t { kArrived, kAborted };
  Kind kind = kArrived;
  uint32_t code = 0;    // kAborted: of the status
  uint64_t number = 0;  // kArrived: the collective in which the rank waits
  char text[496] = {};  // kAborted: the reason, ending in a zero
};
static_assert(sizeof(Note) == 512);

// Sends `note` to all other ranks; does not wait for any of them.
void SendNote(Engine* engine, const Communicators& communicators, int rank, int world_size, const Note& note);

// Receives notes until Stop and passes them to `monitor`: kAborted breaks the group ("rank 1 of group 'g':
// ..."). `on_broken` runs on the engine's thread.
class NoteReader {
 public:
  virtual ~NoteReader() = default;
  virtual void Stop() = 0;  // takes effect soon, on the engine's thread
  static std::shared_ptr<NoteReader> Start(Engine* engine, const Communicators& communicators,
                                           const std::string& group, std::shared_ptr<Monitor> monitor,
                                           std::function<void()> on_broken);
};

}  // namespace tandem::collectives::mpi

#endif  // TANDEM_COLLECTIVES_BACKENDS_MPI_COMMUNICATOR_H_
