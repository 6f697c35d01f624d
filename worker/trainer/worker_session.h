#ifndef TANDEM_WORKER_TRAINER_WORKER_SESSION_H_
#define TANDEM_WORKER_TRAINER_WORKER_SESSION_H_

// A worker's connections: to its job's store, to the parameter servers, to the other workers. Started through
// `tandem run` (or with the same variables set by hand or by compose) it joins that job; started by itself it
// is a job of its own, with a parameter server in the same process.

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/environment.h"
#include "collectives/membership/job_monitor.h"
#include "collectives/process_group.h"
#include "ps/client/client.h"
#include "ps/server/parameter_server.h"
#include "rpc/diagnostics/process_diagnostics.h"

namespace tandem::worker {

// Used by one thread; one per process.
class WorkerSession {
 public:
  struct Options {
    absl::Duration timeout = absl::Seconds(60);             // of every wait for another process
    absl::Duration checkpoint_timeout = absl::Minutes(10);  // of saving and loading checkpoints
    std::string spill_dir;
  };
  // Blocks until everyone it needs is there, bounded by the timeout; errors name who is not. From then on the
  // process ends, with the reason on stderr and exit code 1, as soon as the job has failed elsewhere. A job
  // of its own puts rows that do not fit its memory into `spill_dir`, which is made when it is needed ("":
  // such tables are refused).
  static absl::StatusOr<std::unique_ptr<WorkerSession>> Open(const Options& options);
  ~WorkerSession();

  ps::Client* client() { return client_.get(); }
  collectives::ProcessGroup* group() { return group_.get(); }
  // nullptr in a job of its own.
  rpc::ProcessStatus* status() { return own_ == nullptr ? nullptr : own_->status().get(); }
  int rank() const { return env_.rank; }
  int world_size() const { return env_.world_size; }

  // Says how this worker's part ended and returns the process's exit code. A failure that may be another's
  // fault is first held against what the job knows of its members, so that the one who died is named, not
  // those who noticed.
  int Finish(const absl::Status& result);

 private:
  WorkerSession() = default;
  absl::Status OpenAlone(const Options& options);
  absl::Status OpenInJob(const Options& options);

  collectives::Environment env_;
  bool alone_ = false;
  std::atomic<bool> leaving_{false};
  // Torn down from the bottom up: the client's calls end before what serves them, and all threads that may
  // record before the recorder.
  std::unique_ptr<rpc::ProcessDiagnostics> own_;
  std::unique_ptr<ps::ParameterServer> local_server_;
  std::unique_ptr<collectives::Store> local_store_;
  std::unique_ptr<collectives::JobStore> store_;
  std::unique_ptr<collectives::JobMonitor> monitor_;
  std::unique_ptr<ps::Client> client_;
  std::unique_ptr<collectives::ProcessGroup> group_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_WORKER_SESSION_H_
