#ifndef TANDEM_COLLECTIVES_ELASTIC_ASSIGNMENT_H_
#define TANDEM_COLLECTIVES_ELASTIC_ASSIGNMENT_H_

// What a launcher tells one of its processes about a round.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::collectives {

// A plain value. The first round's also stands in the process's environment.
struct Assignment {
  int64_t number = 0;  // of the launcher's rounds: 1, 2, ...; TANDEM_ASSIGNMENT
  int64_t epoch = 0;   // of the job's: TANDEM_EPOCH
  int rank = 0, world_size = 1;
  int local_rank = 0, local_world_size = 1;
  int group_rank = 0;       // the node's index
  int64_t restarts = 0;     // of the job
  std::string store;        // "host:port" of the round's job store
  std::string master_addr;  // for programs that listen themselves
  int master_port = 0;

  // Lines of "name=value".
  std::string ToText() const;
  // InvalidArgument for what ToText does not make.
  static absl::StatusOr<Assignment> FromText(absl::string_view text);
};

// Keys in the launcher's store. A process is named by its role and its place among those of its role on the
// node: "worker/1".
std::string AssignmentKey(int64_t number, absl::string_view process);
std::string OverKey(int64_t number);
inline constexpr char kClosedKey[] = "agent/closed";
inline constexpr char kPeerFailureQueue[] = "agent/trouble";

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_ELASTIC_ASSIGNMENT_H_
