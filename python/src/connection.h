// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_CONNECTION_H_
#define TANDEM_PYTHON_SRC_CONNECTION_H_

// The ways in which a Python program reaches parameter servers. No function needs the GIL.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collectives/environment.h"
#include "collectives/membership/job_monitor.h"
#include "ps/client/client.h"
#include "ps/server/parameter_server.h"
#include "rpc/diagnostics/process_diagnostics.h"

namespace tandem::python {

struct ConnectionOptions {
  absl::Duration timeout = absl::Seconds(60);  // of each call, and of the wait for other processes
  absl::Duration checkpoint_timeout = absl::Minutes(10);
  uint64_t max_bytes_in_flight = uint64_t{1} << 30;
};

// A client of parameter servers, with what it needs: the connection to its job, or servers in this process.
// Thread-safe.
class Connection {
 public:
  // Joins the job that the environment describes (`tandem run`). Blocks until its servers are there, at most
  // options.timeout; errors name the missing ones.
  static absl::StatusOr<std::unique_ptr<Connection>> ToJob(const ConnectionOptions& options);
  // Connects to servers by address ("host:port"), without a job. `worker` is this process's rank. `read_only`: the
  // process only reads, and takes no push epoch of that rank.
  static absl::StatusOr<std::unique_ptr<Connection>> ToServers(const std::vector<std::string>& addresses, uint32_t worker,
                                                               bool read_only, const ConnectionOptions& options);
  // Starts `servers` parameter servers in this process and connects to them without a network. Tables with
  // `spill` keep rows below `spill_directory`; empty: they are refused.
  static absl::StatusOr<std::unique_ptr<Connection>> ToLocalServers(int servers, const std::string& spill_directory,
                                                                    const ConnectionOptions& options);
  // Leaves the job. Blocks until calls under way have ended, at most their timeouts.
  ~Connection();

  ps::Client* client() { return client_.get(); }
  int rank() const { return env_.rank; }
  int world_size() const { return env_.world_size; }
  // Returns Unavailable with the reason once the job has failed elsewhere, else OK.
  absl::Status job_status() const;

 private:
  Connection() = default;

  collectives::Environment env_;
  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  // Destroyed from the last to the first: the client's calls end before the objects that serve them.
  std::unique_ptr<rpc::ProcessDiagnostics> diagnostics_;
  std::vector<std::unique_ptr<ps::ParameterServer>> local_servers_;
  std::unique_ptr<collectives::JobStore> store_;
  std::unique_ptr<collectives::JobMonitor> monitor_;
  std::unique_ptr<ps::Client> client_;
};

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_CONNECTION_H_
