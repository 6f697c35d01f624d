#ifndef TANDEM_CLI_PROFILING_MEMBERS_H_
#define TANDEM_CLI_PROFILING_MEMBERS_H_

// Who is in a running job, as its store knows it.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tandem::cli {

struct Member {
  std::string name;  // "worker/0"
  std::string host;  // "" : it does not say
  int64_t pid = 0;
  std::string state;        // in its own words, at the last heartbeat
  std::string diagnostics;  // "host:port"; "": it serves none
  uint64_t step = 0;
  int64_t epoch = 0, train_epoch = 0;
  absl::Duration silent, lease;
  bool left = false;

  // What the store makes of it: "alive", "silent" (two heartbeats are missing), "dead" (its lease is over),
  // "left".
  const char* Liveness() const;
};

struct JobMembers {
  std::vector<Member> members;  // by role, then index
  bool ended = false, failed = false;
  std::string reason;  // of the end
};

// Blocks at most `timeout`. Unavailable when nobody serves the store: the job may have ended.
absl::StatusOr<JobMembers> AskMembers(const std::string& store, absl::Duration timeout);

// "ps" and 12 of "ps/12"; the whole name and 0 where there is no number.
std::pair<std::string, uint64_t> RoleAndIndex(const std::string& member);

// One line for each, and how the job is.
std::string MembersToText(const JobMembers& job);
// One object. docs/profiling.md describes the fields.
std::string MembersToJson(const JobMembers& job);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_PROFILING_MEMBERS_H_
