// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_TRAINER_WORKER_SESSION_H_
#define TANDEM_WORKER_TRAINER_WORKER_SESSION_H_

// Holds a worker's connections to its job's store, to the parameter servers and to the other workers. A
// worker that `tandem run` starts (or a user or compose, with the same environment variables) joins that job.
// A worker that is started alone is a complete job, with a parameter server in the same process.

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cluster/member.h"
#include "collectives/process_group.h"
#include "ps/client/client.h"
#include "ps/server/parameter_server.h"
#include "rpc/diagnostics/process_status.h"
#include "worker/job/job_spec.h"

namespace tandem::worker {

// The connections of this process to its job. Used by one thread; at most one per process.
class WorkerSession {
 public:
  struct Options {
    absl::Duration timeout = absl::Seconds(60);  // bounds every wait for another process
    // Bounds saving and loading of checkpoints.
    absl::Duration checkpoint_timeout = absl::Minutes(10);
    // A worker that is started alone stores rows that do not fit its memory here. The directory is created
    // when needed. Empty: tables that could need it are refused.
    std::string spill_dir;
    // The job is refused unless the servers are so, and `timeout` is longer than one of them needs to come
    // back or to be replaced.
    ServerDurability durability = ServerDurability::kOff;
    // Becomes true when this process is asked to stop; nullptr: it never is. Outlives the session.
    const std::atomic<bool>* stop = nullptr;
    // As cluster::MemberOptions::process.
    cluster::Process* process = nullptr;
  };
  // Connects to the job. Blocks until all processes that it needs are there, but not longer than the timeout;
  // errors name the missing ones. From then on this process ends (cluster::Process::Exit, code 1, reason on
  // stderr) as soon as the job has failed elsewhere.
  static absl::StatusOr<std::unique_ptr<WorkerSession>> Open(const Options& options);
  ~WorkerSession();

  ps::Client* client() { return client_.get(); }
  collectives::ProcessGroup* group() { return group_.get(); }
  // Returns nullptr if the worker was started alone.
  rpc::ProcessStatus* status() { return member_ == nullptr ? nullptr : member_->status().get(); }
  int rank() const { return member_ == nullptr ? 0 : member_->env().rank; }
  int world_size() const { return member_ == nullptr ? 1 : member_->env().world_size; }

  // Reports the result of this worker's part to the job and returns the exit code of the process. If another
  // process may have caused the error, it first waits 15 s for the job to name a dead member. The job then
  // reports the process that died, not those that noticed. The wait ends when this process is asked to stop,
  // because then its launcher knows already.
  int Finish(const absl::Status& result);
  // Ends this worker's part because its command must change: prints the reason and returns exit code 2. Does
  // not wait. `launched`: a launcher stops the job when it sees the exit code; otherwise the job is told.
  int Refuse(const absl::Status& reason, bool launched);

 private:
  WorkerSession() = default;
  absl::Status OpenAlone(const Options& options);
  absl::Status OpenInJob(const Options& options);

  const std::atomic<bool>* stop_ = nullptr;
  // Destroyed from the last to the first: the client's calls end before the objects that serve them, and all
  // threads that can record before the recorder (in member_).
  std::unique_ptr<cluster::Member> member_;  // nullptr: this worker was started alone
  std::unique_ptr<ps::ParameterServer> local_server_;
  std::unique_ptr<cluster::Store> local_store_;
  std::unique_ptr<ps::Client> client_;
  std::unique_ptr<collectives::ProcessGroup> group_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_WORKER_SESSION_H_
