// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_MPI_POINT_TO_POINT_H_
#define TANDEM_COLLECTIVES_BACKENDS_MPI_POINT_TO_POINT_H_

// Tagged messages between two ranks of a group.
//
// A message begins with a head that contains its dtype and count, sent with the user's tag together with the
// first kFirstBytes of its data. The receiver looks for it (MPI_Improbe) on behalf of the oldest receive that
// matches. So MPI's own order of messages is kept, and a message that does not fit is refused with an error
// that names both. The rest of a longer message follows in chunks with a tag of its own, so no count exceeds
// INT_MAX.
//
// All data goes through memory of the engine: MPI cannot abandon a send, and buffers must be free once an
// operation has ended, whatever its status.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collectives/backend.h"
#include "collectives/backends/mpi/communicator.h"
#include "collectives/backends/mpi/engine.h"

namespace tandem::collectives::mpi {

// A send or recv that is running. Thread-safe.
struct Transfer {
  Operation operation;
  absl::Time deadline;
  absl::Mutex mutex;
  bool over ABSL_GUARDED_BY(mutex) = false;  // the caller's buffers must no longer be used
  Backend::Done done ABSL_GUARDED_BY(mutex);

  // Ends the transfer; the first result counts. Calls `done` without the lock.
  void Finish(absl::StatusOr<int> result);
  // Copies between memory and the caller's buffer; returns false if the operation is over.
  bool Copy(void* to, const void* from, size_t bytes);
};

// The sends and receives of one group. Thread-safe. `engine` must outlive it.
class PointToPoint {
 public:
  // Breaks the group (and calls Fail), when a transfer has timed out or MPI has failed. Called on the
  // engine's thread, not after the destructor.
  using GiveUp = std::function<void(const absl::Status&)>;
  PointToPoint(Engine* engine, const Communicators& communicators, std::string group, int rank,
               GiveUp give_up);
  // Requires that Fail has been called.
  ~PointToPoint();

  // Behaves as Backend::StartPointToPoint for an operation that was checked.
  void Start(const Operation& operation, Backend::Done done);
  // Ends pending and later operations with `reason`. Does not block on a peer.
  void Fail(const absl::Status& reason);

  // State that outlives this object together with the activities.
  struct Shared;

 private:
  Engine* const engine_;
  const Communicators communicators_;
  const int rank_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace tandem::collectives::mpi

#endif  // TANDEM_COLLECTIVES_BACKENDS_MPI_POINT_TO_POINT_H_
