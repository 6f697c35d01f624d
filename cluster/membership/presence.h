// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_MEMBERSHIP_PRESENCE_H_
#define TANDEM_CLUSTER_MEMBERSHIP_PRESENCE_H_

// Presence makes a process visible to `tandem status` and `tandem trace`: it sends heartbeats to the job's
// store and serves diagnostics.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/trace/recorder.h"
#include "cluster/membership/job_monitor.h"
#include "rpc/channel.h"
#include "rpc/diagnostics/diagnostics_server.h"
#include "rpc/diagnostics/process_status.h"

namespace tandem::cluster {

// Thread-safe. One per process. It owns the trace recorder, so it must outlive all threads that may record.
class Presence {
 public:
  // Joins as `member` ("worker/0") of the job's round `epoch`. `store` is the channel to the job's store,
  // which listens at `store_address`. Blocks for the first heartbeat. Errors are those of JobMonitor::Start
  // and DiagnosticsServer::Start.
  static absl::StatusOr<std::unique_ptr<Presence>> Start(const std::string& member, int64_t epoch,
                                                         std::shared_ptr<rpc::Channel> store,
                                                         const std::string& store_address);

  // The status that heartbeats report: the step, and the process's state. Shared with the code that counts
  // the steps.
  const std::shared_ptr<rpc::ProcessStatus>& status() const { return status_; }
  // Reports the process as up: health checks return SERVING from now on.
  void Up() { diagnostics_->SetServing(true); }
  // Announces that the process has finished its work (JobMonitor::Leave). Without it, the process's silence
  // counts as its death after a lease.
  absl::Status Leave() { return monitor_->Leave(); }

 private:
  Presence() = default;

  trace::Recorder recorder_;
  std::shared_ptr<rpc::ProcessStatus> status_;
  std::unique_ptr<rpc::DiagnosticsServer> diagnostics_;
  std::unique_ptr<JobMonitor> monitor_;
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_MEMBERSHIP_PRESENCE_H_
