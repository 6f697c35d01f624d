// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_MEMBERSHIP_MEMBERSHIP_H_
#define TANDEM_CLUSTER_MEMBERSHIP_MEMBERSHIP_H_

// The members of a job, their leases, and whether the job is over. It lives next to the job's store; members
// reach it through JobMonitor (job_monitor.h).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/membership/member_process.h"

namespace tandem::cluster {

struct JobState {
  bool ended = false;
  bool failed = false;  // only when ended
  std::string reason;   // names the member: "worker/1 has been silent for 10s (lease 10s): killed or hung?"
  bool store_lost = false;  // the store has not said so: it is silent itself
};

// A member's report in its heartbeats, shown to people who look at the job.
struct MemberReport {
  std::string state;  // "training"
  std::string host;
  int64_t pid = 0;
  std::string diagnostics;  // "host:port" of its tandem.v1.Diagnostics; empty: it serves none
  uint64_t step = 0;
  int64_t epoch = 0;        // of the membership: the rendezvous round; 0 if there is none
  int64_t train_epoch = 0;  // the pass over the data, from 1; 0: none
  // The job goes on without this member (another copy takes its place), so its silence does not end the job.
  // A failure that it reports does.
  bool replaceable = false;
  std::string address;  // "host:port" at which it serves its job; empty: it serves nothing, or not yet
  uint64_t registered_with = 0;  // the store's incarnation that has what it owns; 0: none yet
};

struct MemberStatus {
  std::string name;
  MemberReport report;
  absl::Duration lease;
  absl::Duration silent;  // since its last heartbeat
  bool left = false;
  bool came_back = false;  // it had registered with an earlier incarnation of the store
  int64_t life = 0;        // of its present process; 0: it has not joined
};

// A process that has joined as a member, and the member's name with it.
struct MemberLife {
  int64_t life = 0;  // counts the processes of this name, from 1
  MemberProcess process;
  absl::Duration joined;  // since then
  absl::Duration silent;  // since the store heard of it
  absl::Duration lease;   // a silence that is longer frees the name
  int64_t heartbeats = 0;
};

// The result of Membership::Join: a life, or the process that has the name.
struct JoinResult {
  int64_t life = 0;
  std::optional<MemberLife> holder;
};

// Holds what is known of a job and its members at one moment.
struct MembershipView {
  JobState job;
  std::vector<MemberStatus> members;  // all that ever joined, by name
  absl::Duration serving;             // how long the store's process serves
  // How long ago a member came that had registered with another incarnation: the store has lost its memory.
  // nullopt: none has come.
  std::optional<absl::Duration> since_memory_lost;
};

// Thread-safe. A member is known from its first heartbeat on: a process that never sent one is not dead. The
// job fails when the silence of a member that is not replaceable outlasts its lease. The job ends once: the
// first reason stays.
//
// A LocalMembership (local_membership.h) is the one of a store that a process serves. A StoreMembership
// (store_membership.h) keeps everything in a store that all processes of the job reach, so that it outlives
// each of them. Its calls block, and may fail with Unavailable.
class Membership {
 public:
  virtual ~Membership() = default;
  // A random number, not 0, of the store next to it (incarnation.h).
  virtual uint64_t incarnation() const = 0;

  // Gives the name `member` ("worker/0") to `process`. Each process of a name has a life of its own, the one
  // before plus 1; the same process gets the same life again. The name is free if no process has it, and once
  // the one that has it
  //
  //   - has left, or its life was ended (EndLife)
  //   - has been silent for longer than its lease, or 10 s if it sends no heartbeats
  //   - is the life `replaces`, which the caller has seen to be gone
  //
  // Otherwise the result has the holder and no life. `life` is not 0 if the process has one already, from a
  // store that has lost its memory; AlreadyExists then if a later life is known. InvalidArgument and
  // ResourceExhausted as for Heartbeat.
  virtual absl::StatusOr<JoinResult> Join(absl::string_view member, const MemberProcess& process,
                                          int64_t life = 0, int64_t replaces = 0) = 0;
  // Frees the name of `member` if `process` has it and has ended. Start time 0: that of any process. Errors
  // are those of the journal.
  virtual absl::Status EndLife(absl::string_view member, const MemberProcess& process) = 0;
  // Returns AlreadyExists, which names both processes, if a later life of `member` than `life` has
  // joined. A later `life` than the known one becomes known: the store has lost its memory. OK for clients,
  // which have neither; FailedPrecondition for a member without a life.
  virtual absl::Status AdmitLife(absl::string_view member, int64_t life) = 0;

  // Records that `member` ("worker/0") lives and may stay silent for `lease`. With `leaving` it has finished
  // its work, and its silence is no death; a later heartbeat makes it a member again. `life` is that of the
  // process, or 0 if it has not joined. InvalidArgument for an empty or long name or a lease outside
  // (0, 1 day]; ResourceExhausted beyond 65,536 members; AlreadyExists as for AdmitLife.
  virtual absl::StatusOr<JobState> Heartbeat(absl::string_view member, absl::Duration lease, bool leaving,
                                             MemberReport report = {}, int64_t life = 0) = 0;
  // Declares that the launcher restarts members of `role` ("ps": "ps/0", "ps/1", ...) when they die: neither
  // their silence nor a failure that they report ends the job. Does not block.
  virtual void AllowRestart(absl::string_view role) = 0;
  // Called often by the launcher that has this object. Does not block. From the first call on two things
  // change in a LocalMembership; a StoreMembership, where many processes look, ignores the calls:
  //
  //   - Silence ends the job after one and a half leases. Launchers watch the members of their nodes, and end
  //     those that hang after a lease (launcher/silence_rules.h), so a launcher acts first and the rule for
  //     the member's role applies.
  //   - A call that comes later than `late` after the one before means that this process has not run
  //   (SIGSTOP,
  //     a frozen container): members were not silent meanwhile. Nobody's lease ends between such calls.
  virtual void Tick(absl::Duration late) = 0;
  // Ends the job unless it has ended already. Errors are those of the journal, or the store: the job has
  // ended for the callers of this object, but others may not know.
  virtual absl::Status End(absl::string_view member, bool failed, absl::string_view reason) = 0;
  // Tells that the launcher which has this object looks after the members no more. If their store goes with
  // the launcher (LocalMembership), that is End; a StoreMembership ends for the callers of this object only.
  virtual void Abandon(absl::string_view member, bool failed, absl::string_view reason) = 0;
  // Blocks until the job has ended or the clock reaches `deadline`; returns the state then.
  virtual JobState WaitUntilEnded(absl::Time deadline) = 0;
  // Returns the job's state and its members.
  virtual absl::StatusOr<MembershipView> Look() = 0;
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_MEMBERSHIP_MEMBERSHIP_H_
