#ifndef TANDEM_COLLECTIVES_BACKENDS_MPI_ROUND_H_
#define TANDEM_COLLECTIVES_BACKENDS_MPI_ROUND_H_

// One non-blocking collective of MPI, begun and tested by the engine's thread, awaited by another.
//
// MPI cannot cancel a collective. A round that nobody waits for any more, because of a time-out or an abort,
// stays with the engine, and MPI may write to its memory at any later time: this is why rounds work on
// `memory`, which is theirs as long as they run, and never on a caller's buffers.

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/backends/mpi/engine.h"
#include "collectives/backends/mpi/monitor.h"

namespace tandem::collectives::mpi {

class Round {
 public:
  virtual ~Round() = default;
  // Blocks until it is over; the group's error if it breaks first; DeadlineExceeded (without words).
  virtual absl::Status Wait(absl::Time deadline) = 0;
};

// Communicators and requests of MPI travel as integers (MPI_Comm_c2f) and pointers (MPI_Request*), so that
// mpi.h is needed in sources only. `begin` runs on the engine's thread and returns MPI's error code.
using Begin = std::function<int(void* request)>;
std::shared_ptr<Round> StartRound(Engine* engine, std::shared_ptr<Monitor> monitor, absl::string_view call,
                                  std::shared_ptr<void> memory, Begin begin);

}  // namespace tandem::collectives::mpi

#endif  // TANDEM_COLLECTIVES_BACKENDS_MPI_ROUND_H_
