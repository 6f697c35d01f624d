// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_MONITOR_MEMBERS_H_
#define TANDEM_CLI_MONITOR_MEMBERS_H_

// Reads the members (processes) of a running job from the job's store.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tandem::cli {

struct Member {
  std::string name;  // "worker/0"
  std::string host;  // "": not known
  int64_t pid = 0;
  std::string state;        // the text that it sent with its last heartbeat
  std::string address;      // "host:port" at which it serves its job; "": it serves nothing, or not yet
  std::string diagnostics;  // "host:port" of its diagnostics service; "": it has none
  uint64_t step = 0;
  int64_t epoch = 0, train_epoch = 0;
  absl::Duration silent, lease;  // the time since its last heartbeat, and the silence that counts as death
  bool left = false;
  bool came_back = false;  // it had registered at the store before that lost its memory
  bool registered = true;  // the store has what it owns
  int64_t life = 0;        // which process of this name it is, from 1; 0: it has not joined

  // Returns "alive", "silent" (for more than half its lease), "dead" (for more than its lease) or "left".
  const char* Liveness() const;
};

struct JobMembers {
  std::vector<Member> members;  // by role, then index
  bool ended = false, failed = false;
  std::string reason;        // why it ended
  uint64_t incarnation = 0;  // of the store
  // How long ago the store lost its memory, as members that came back have shown; zero: it did not.
  absl::Duration since_memory_lost;
};

// Reads the members from the store at "host:port", sorted by role and index. Blocks for at most `timeout`.
// Returns Unavailable if the store does not respond: the job may have ended.
absl::StatusOr<JobMembers> AskMembers(const std::string& store, absl::Duration timeout);

// Returns "ps" and 12 for "ps/12", and the whole name and 0 for a name without a number.
std::pair<std::string, uint64_t> RoleAndIndex(const std::string& member);

// Returns one line of text for each member, and one that says how the job ended if it has.
std::string MembersToText(const JobMembers& job);
// Returns one JSON object. docs/profiling.md describes the fields.
std::string MembersToJson(const JobMembers& job);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_MEMBERS_H_
