// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_GLOO_TRANSPORT_H_
#define TANDEM_COLLECTIVES_BACKENDS_GLOO_TRANSPORT_H_

// Gloo's TCP transport with its failures contained. Left alone, Gloo ends the process (an exception leaves
// its thread) when a peer sends what no receive fits or a write fails in its thread; and a wait whose data
// was half transferred when the peer died ends at its time-out only. Here
//
//   - exceptions in Gloo's thread close the connection they concern, and stop the guard,
//   - waits end at the deadline of the whole operation, or when the guard is stopped.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cluster/store/store.h"
#include "collectives/backends/gloo/operation_guard.h"

namespace gloo {
class Context;
}  // namespace gloo

namespace tandem::collectives::gloo_library {

// Connects the ranks of a group, each with every other, over Gloo's transport; they meet through `store`.
// `address` is the numeric address of this rank. Blocks until connected, or until `deadline`. `guard` must
// outlive the context. The context owns a thread of Gloo's. Errors: DeadlineExceeded, Unavailable with Gloo's
// reason, errors of the store.
//
// Gloo's functions throw std::exception. A thread that calls them must not receive SIGPIPE (SigpipeBlock).
absl::StatusOr<std::shared_ptr<::gloo::Context>> ConnectGloo(cluster::Store* store, int rank, int world_size,
                                                             const std::string& address, absl::Time deadline,
                                                             OperationGuard* guard);

// Closes the connections at once; waits of this rank and of its peers end. Blocks for some 10 ms a
// connection.
void CloseGloo(::gloo::Context* context);

// Returns the text of an exception of Gloo's in one line.
std::string TextOf(const std::exception& error);

// Blocks SIGPIPE for this thread, and for threads that it starts, while the object lives: Gloo writes to
// sockets without MSG_NOSIGNAL, and the signal would end the process when a peer has died. A signal that
// arrives meanwhile is dropped.
class SigpipeBlock {
 public:
  SigpipeBlock();
  ~SigpipeBlock();
  SigpipeBlock(const SigpipeBlock&) = delete;
  SigpipeBlock& operator=(const SigpipeBlock&) = delete;

 private:
  bool was_blocked_;
};

}  // namespace tandem::collectives::gloo_library

#endif  // TANDEM_COLLECTIVES_BACKENDS_GLOO_TRANSPORT_H_
