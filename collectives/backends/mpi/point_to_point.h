#ifndef TANDEM_COLLECTIVES_BACKENDS_MPI_POINT_TO_POINT_H_
#define TANDEM_COLLECTIVES_BACKENDS_MPI_POINT_TO_POINT_H_

// Tagged messages between two ranks of a group.
//
// A message begins with a head that says its dtype and count, sent with the user's tag together with the
// first kFirstBytes of its data; the receiver looks for it (MPI_Improbe) on behalf of the oldest receive that
// matches, so that MPI's own order of messages is kept, and what does not fit is refused by name. The rest of
// a longer message follows in parts with a tag of its own, so no count exceeds INT_MAX. All of it goes
// through memory of the engine's: MPI cannot be told to forget a send, and buffers must be free once an
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

// A send or recv that is under way. Thread-safe.
struct Transfer {
  Operation operation;
  absl::Time deadline;
  absl::Mutex mutex;
  bool over ABSL_GUARDED_BY(mutex) = false;  // then the buffers are no longer ours
  Backend::Done done ABSL_GUARDED_BY(mutex);

  // The first result counts; calls `done` without the lock.
  void Finish(absl::StatusOr<int> result);
  // Copies between memory and the caller's buffer, unless the operation is over.
  bool Copy(void* to, const void* from, size_t bytes);
};

// Thread-safe.
class PointToPoint {
 public:
  // `give_up` breaks the group (and calls Fail); on the engine's thread.
  using GiveUp = std::function<void(const absl::Status&)>;
  PointToPoint(Engine* engine, const Communicators& communicators, std::string group, int rank,
               GiveUp give_up);
  // Fail has been called.
  ~PointToPoint();

  // As Backend::StartPointToPoint, of a checked operation.
  void Start(const Operation& operation, Backend::Done done);
  // Ends what is pending and all that comes later.
  void Fail(const absl::Status& reason);

  // The state that outlives this object with the activities.
  struct Shared;

 private:
  Engine* const engine_;
  const Communicators communicators_;
  const int rank_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace tandem::collectives::mpi

#endif  // TANDEM_COLLECTIVES_BACKENDS_MPI_POINT_TO_POINT_H_
