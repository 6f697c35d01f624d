// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SHM_TICKETS_H_
#define TANDEM_RPC_SHM_TICKETS_H_

// Carries the identity of a client from gRPC to its connection through shared memory.

#include <cstddef>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "rpc/caller.h"

namespace tandem::rpc::shm {

// Size of a ticket in characters.
inline constexpr size_t kTicketBytes = 32;

// The open tickets of one server. A ticket is a random text that a client gets over gRPC and presents once at
// the unix socket, where its connection then has the identity with which the ticket was asked for. It cannot
// be guessed. Thread-safe.
class Tickets {
 public:
  // How long a ticket is valid.
  static constexpr absl::Duration kLifetime = absl::Seconds(30);
  // Limits the tickets that are open at once, of the server and of one gRPC connection.
  static constexpr size_t kMostOpen = 1024;
  static constexpr size_t kMostOfPeer = 16;

  // Returns a new ticket for `caller` at the gRPC connection `peer` (ServerCall::peer). ResourceExhausted,
  // which names the limit, if too many are open. gRPC does not tell the peers of unix sockets apart, so they
  // have the limit of the server only.
  absl::StatusOr<std::string> Issue(const Caller& caller, const std::string& peer, absl::Time now);
  // Returns the caller for which `ticket` was issued; the ticket is used up. PermissionDenied, which says
  // why, if it was used before, has expired, or was never issued.
  absl::StatusOr<Caller> Redeem(const std::string& ticket, absl::Time now);

 private:
  struct Ticket {
    Caller caller;
    std::string peer;
    absl::Time expires;
    bool used = false;
  };
  // Forgets the tickets that expired a lifetime ago, and all that are not open if there are many.
  void Purge(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Ticket> tickets_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::rpc::shm

#endif  // TANDEM_RPC_SHM_TICKETS_H_
