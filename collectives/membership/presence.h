#ifndef TANDEM_COLLECTIVES_MEMBERSHIP_PRESENCE_H_
#define TANDEM_COLLECTIVES_MEMBERSHIP_PRESENCE_H_

// What makes a program's process one that `tandem status` and `tandem trace` see: heartbeats to the job's
// store, and diagnostics served.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/trace/recorder.h"
#include "collectives/membership/job_monitor.h"
#include "rpc/channel.h"
#include "rpc/diagnostics/diagnostics_server.h"
#include "rpc/diagnostics/process_status.h"

namespace tandem::collectives {

// Thread-safe. One per process; it holds the recorder, so it must outlive all threads that may record.
class Presence {
 public:
  // As `member` ("worker/0") of the job's round `epoch`, with the job's store over `store`, which listens at
  // `store_address`. Blocks for the first heartbeat. Errors: JobMonitor::Start's, DiagnosticsServer::Start's.
  static absl::StatusOr<std::unique_ptr<Presence>> Start(const std::string& member, int64_t epoch,
                                                         std::shared_ptr<rpc::Channel> store,
                                                         const std::string& store_address);

  // What is told: the step, and what the process does. shared, for whoever counts the steps.
  const std::shared_ptr<rpc::ProcessStatus>& status() const { return status_; }
  // It is up, health says from now on.
  void Up() { diagnostics_->SetServing(true); }
  // It has finished its work: JobMonitor::Leave. Without that its silence is taken for its death, a lease
  // later.
  absl::Status Leave() { return monitor_->Leave(); }

 private:
  Presence() = default;

  trace::Recorder recorder_;
  std::shared_ptr<rpc::ProcessStatus> status_;
  std::unique_ptr<rpc::DiagnosticsServer> diagnostics_;
  std::unique_ptr<JobMonitor> monitor_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_MEMBERSHIP_PRESENCE_H_
