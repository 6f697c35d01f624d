// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_JOB_MEMBER_H_
#define TANDEM_PYTHON_SRC_JOB_MEMBER_H_

// The membership of a Python process in its job. No function needs the GIL.

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cluster/member.h"
#include "rpc/channel.h"

namespace tandem::python {

// Seconds until a process ends whose job has failed, unless its main thread has got the exception; "never".
inline constexpr char kExitAfterVariable[] = "TANDEM_EXIT_AFTER_JOB_FAILURE";

// One for each process, shared by everything that takes part in the job: a process joins with the first and
// leaves with the last. Thread-safe.
class JobMember {
 public:
  // Joins the job that the environment describes, or returns this process's membership. Blocks at most
  // `timeout` and a lease. Errors: those of Environment::FromEnv and Member::Join; InvalidArgument for a
  // value of kExitAfterVariable.
  static absl::StatusOr<std::shared_ptr<JobMember>> Get(absl::Duration timeout);
  // Does the same in a job whose store is served by another process (TANDEM_STORE). This process then stays a
  // member until it exits. FailedPrecondition: it was not started by `tandem run`.
  static absl::StatusOr<std::shared_ptr<JobMember>> GetLaunched(absl::Duration timeout);
  // Calls Leave.
  ~JobMember();

  // Leaves the job, unless a part of the program ends unfinished. Blocks some seconds if the store is away.
  void Leave();
  // Says that a part of the program ends without having finished its work, and no launcher sees the exit
  // status: the process does not leave, and the job fails a lease later, as after a crash.
  void EndUnfinished() { unfinished_.store(true); }

  cluster::Member& operator*() const { return *member_; }
  cluster::Member* operator->() const { return member_.get(); }
  // Returns Unavailable with the reason once the job has failed elsewhere, else OK.
  absl::Status status() const;
  // Returns `channel` to a server of the job. Calls fail at once after the job has failed. The channel keeps
  // the process in the job.
  static std::shared_ptr<rpc::Channel> Keep(std::shared_ptr<JobMember> job,
                                            std::shared_ptr<rpc::Channel> channel);
  // Returns the status of this process's membership; OK if it has none, or is joining.
  static absl::Status StatusOfProcess();
  // Must be called when a thread raises an exception of Tandem: the main thread then knows that the job has
  // failed, if it has.
  static void OnRaise();

 private:
  explicit JobMember(std::unique_ptr<cluster::Member> member) : member_(std::move(member)) {}

  const std::unique_ptr<cluster::Member> member_;
  std::atomic<bool> unfinished_{false};
};

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_JOB_MEMBER_H_
