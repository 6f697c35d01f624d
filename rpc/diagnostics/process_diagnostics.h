// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_DIAGNOSTICS_PROCESS_DIAGNOSTICS_H_
#define TANDEM_RPC_DIAGNOSTICS_PROCESS_DIAGNOSTICS_H_

// Serves this process's status and traces to `tandem status` and `tandem trace`.

#include <memory>
#include <string>

#include "base/trace/recorder.h"
#include "rpc/diagnostics/diagnostics_server.h"
#include "rpc/diagnostics/process_status.h"

namespace tandem::rpc {

// The diagnostics of this process. Thread-safe. One per process. It owns the recorder, so it must outlive all
// threads that may record events.
class ProcessDiagnostics {
 public:
  // Starts serving at the address from which this machine reaches `store`. If that fails, a warning says why,
  // and the job runs without diagnostics.
  static std::unique_ptr<ProcessDiagnostics> Start(std::string member, int64_t epoch,
                                                   const std::string& store);

  const std::shared_ptr<rpc::ProcessStatus>& status() const { return status_; }
  // Sets the state that gRPC health checking reports for the process as a whole.
  void SetServing(bool serving);

 private:
  ProcessDiagnostics() = default;

  trace::Recorder recorder_;
  std::shared_ptr<rpc::ProcessStatus> status_;
  std::unique_ptr<rpc::DiagnosticsServer> server_;  // nullptr if diagnostics are not served.
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_DIAGNOSTICS_PROCESS_DIAGNOSTICS_H_
