// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_MPI_ROUND_H_
#define TANDEM_COLLECTIVES_BACKENDS_MPI_ROUND_H_

// One non-blocking collective of MPI, started and tested by the engine's thread, awaited by another.
//
// MPI cannot cancel a collective. After a time-out or an abort, a round without a waiting thread stays with
// the engine, and MPI may write to its memory at any later time. So rounds work on `memory`, which they own
// while they run, and never on a caller's buffers.

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

// A round that StartRound has begun. One thread waits for it, and may release it before it is over.
class Round {
 public:
  virtual ~Round() = default;
  // Blocks until the round is over, at most until `deadline`. Returns the group's error if the group is
  // broken, even if the round is over, or DeadlineExceeded (without text), or Unavailable with MPI's error.
  // After DeadlineExceeded it can be called again.
  virtual absl::Status Wait(absl::Time deadline) = 0;
};

// Starts a round without blocking: `begin` begins the collective `call` (a name, for errors) on `memory`,
// which the round keeps alive until MPI is done with it. `begin` runs on the engine's thread and returns
// MPI's error code; it does not run if the group is broken by then.
//
// MPI's communicators and requests are passed as integers (MPI_Comm_c2f) and pointers (MPI_Request*), so that
// only sources need mpi.h.
using Begin = std::function<int(void* request)>;
std::shared_ptr<Round> StartRound(Engine* engine, std::shared_ptr<Monitor> monitor, absl::string_view call,
                                  std::shared_ptr<void> memory, Begin begin);

}  // namespace tandem::collectives::mpi

#endif  // TANDEM_COLLECTIVES_BACKENDS_MPI_ROUND_H_
