// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_ELASTIC_ASSIGNMENT_H_
#define TANDEM_COLLECTIVES_ELASTIC_ASSIGNMENT_H_

// The assignment: a process's ranks and addresses in one round, which its launcher sends to it.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::collectives {

// A plain value. The assignment of a process's first round is also in its environment variables.
struct Assignment {
  int64_t number = 0;  // counts this launcher's rounds: 1, 2, ...; TANDEM_ASSIGNMENT
  int64_t epoch = 0;   // counts the job's rounds: TANDEM_EPOCH
  int rank = 0, world_size = 1;
  int local_rank = 0, local_world_size = 1;
  int group_rank = 0;       // the node's index in the round
  int64_t restarts = 0;     // rounds of the job that began because something had failed
  std::string store;        // "host:port" of the round's job store
  std::string master_addr;  // MASTER_ADDR and MASTER_PORT, for programs in which rank 0 listens by itself
  int master_port = 0;

  // Returns lines of "name=value".
  std::string ToText() const;
  // Parses ToText's result. Returns InvalidArgument for other text.
  static absl::StatusOr<Assignment> FromText(absl::string_view text);
};

// Keys in the launcher's store. A process is named by its role and local rank: "worker/1".

// Holds the process's assignment in the launcher's round `number`, as ToText writes it.
std::string AssignmentKey(int64_t number, absl::string_view process);
// Set, to the reason, once the launcher's round `number` is over.
std::string OverKey(int64_t number);
// Set, to the reason, once there will be no further round.
inline constexpr char kClosedKey[] = "agent/closed";
// A queue of the processes' reports of peers that do not respond.
inline constexpr char kPeerFailureQueue[] = "agent/trouble";

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_ELASTIC_ASSIGNMENT_H_
