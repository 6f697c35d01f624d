// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_ENGINE_SERVER_H_
#define TANDEM_PYTHON_SRC_ENGINE_SERVER_H_

// Replay tables and weights that this process keeps, for itself or for other processes, and connections to
// those of others. No function needs the GIL.

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cluster/server.h"
#include "python/src/job_member.h"
#include "replay/server/replay_server.h"
#include "rpc/channel.h"
#include "weights/server/weight_server.h"

namespace tandem::python {

struct EngineServerOptions {
  // These say which services it has.
  bool replay = true;
  bool weights = true;
  replay::ReplayServerOptions replay_options;
  weights::ModelStoreOptions weight_options;
  std::vector<replay::v1::ReplayTableOptions> tables;  // created at the start
  // "host:port". Empty: only this process uses them, unless `in_job`.
  std::string listen;
  // The host, or "host:port", under which others reach the server. Empty: that of `listen`.
  std::string advertise;
  // This process is a server of its role in the job that a launcher has started: the other processes of the
  // job find its address (cluster::Server). If `listen` is empty, the address is one that they reach.
  bool in_job = false;
  absl::Duration timeout = absl::Seconds(60);  // of the wait for the job's store
};

// Services with, unless `listen` is empty, a listener. Thread-safe.
class EngineServer {
 public:
  // Restores the newest checkpoint, if there is a directory for them, and serves. Blocks. Errors: those of
  // ReplayServer::Make, of creating the tables and of listening; FailedPrecondition: there is no job.
  static absl::StatusOr<std::unique_ptr<EngineServer>> Start(EngineServerOptions options);
  ~EngineServer() { (void)Stop(); }

  // Returns where it listens; "" if it does not.
  const std::string& address() const { return address_; }
  // Returns a channel to the services, which must not outlive this object.
  std::unique_ptr<rpc::Channel> Connect() const;
  // Ends waiting calls, writes a last checkpoint if there is a directory for them, and ends all connections.
  // Blocks. Later calls return what the first one has returned.
  absl::Status Stop();

 private:
  EngineServer() = default;

  bool saves_ = false;  // there is a directory for checkpoints
  std::string address_;
  std::unique_ptr<weights::WeightServer> weights_;  // outlives replay_, which looks into it
  std::unique_ptr<replay::ReplayServer> replay_;
  std::shared_ptr<const std::vector<rpc::Service>> services_;
  std::shared_ptr<JobMember> job_;  // nullptr: it serves without a job
  std::unique_ptr<cluster::Server> listening_;
  absl::Mutex stop_mutex_;  // held while it stops
  bool stopped_ ABSL_GUARDED_BY(stop_mutex_) = false;
  absl::Status stop_status_ ABSL_GUARDED_BY(stop_mutex_);
};

// Returns how many servers of `role` the job has. Blocks until one has registered, at most `timeout`; errors
// say how to start one.
absl::StatusOr<int> CountInJob(const std::string& role, absl::Duration timeout);

// Connects to a server of `role` in the job: number `index`, or, if that is negative, this process's rank in
// its role modulo their number. Blocks until it has registered, at most `timeout`; errors say how to start
// one.
absl::StatusOr<std::shared_ptr<rpc::Channel>> ConnectInJob(const std::string& role, int index,
                                                           absl::Duration timeout);

// Connects to the server at an address, with the key of this process. Blocks and fails like
// rpc::Connect.
absl::StatusOr<std::unique_ptr<rpc::Channel>> ConnectToAddress(const std::string& address);

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_ENGINE_SERVER_H_
