// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_MEMBERSHIP_MEMBER_PROCESS_H_
#define TANDEM_CLUSTER_MEMBERSHIP_MEMBER_PROCESS_H_

// Identifies the process that a member of a job is, so that another process can tell whether it has ended.

#include <cstdint>
#include <string>

namespace tandem::v1 {
class MemberProcess;
}

namespace tandem::cluster {

// A plain value.
struct MemberProcess {
  std::string host;            // the machine's name, for messages
  std::string boot_id;         // of the machine's kernel; "": not known
  uint64_t pid_namespace = 0;  // in which `pid` counts
  int64_t pid = 0;
  uint64_t started = 0;  // in clock ticks since the machine's start: a pid is used again, the pair is not

  friend bool operator==(const MemberProcess&, const MemberProcess&) = default;

  // Returns the calling process.
  static MemberProcess Self();
  // Cuts the names to 256 bytes.
  static MemberProcess FromProto(const v1::MemberProcess& proto);
  v1::MemberProcess ToProto() const;
  // Returns "pid 4711 on node-a".
  std::string ToString() const;
};

enum class ProcessState {
  kElsewhere,  // on another machine or in another container: this process cannot tell
  kLives,
  kGone,  // has ended, though its parent may not have noticed it yet
};
// Looks for `process` from the calling process. Does not block.
ProcessState LookFor(const MemberProcess& process);

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_MEMBERSHIP_MEMBER_PROCESS_H_
