#ifndef TANDEM_RPC_DIAGNOSTICS_PROCESS_DIAGNOSTICS_H_
#define TANDEM_RPC_DIAGNOSTICS_PROCESS_DIAGNOSTICS_H_

// This process's side of `tandem status` and `tandem trace`.

#include <memory>
#include <string>

#include "base/trace/recorder.h"
#include "rpc/diagnostics/diagnostics_server.h"
#include "rpc/diagnostics/process_status.h"

namespace tandem::rpc {

// Thread-safe. One per process; it holds the recorder, so it must outlive all threads that may record.
class ProcessDiagnostics {
 public:
  // Serves diagnostics at the address from which `store` is reached. A job does not fail for want of them:
  // then a warning says why they are not served.
  static std::unique_ptr<ProcessDiagnostics> Start(std::string member, int64_t epoch, const std::string& store);

  const std::shared_ptr<rpc::ProcessStatus>& status() const { return status_; }
  // What gRPC health answers for the process as a whole.
  void SetServing(bool serving);

 private:
  ProcessDiagnostics() = default;

  trace::Recorder recorder_;
  std::shared_ptr<rpc::ProcessStatus> status_;
  std::unique_ptr<rpc::DiagnosticsServer> server_;  // may be nullptr
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_DIAGNOSTICS_PROCESS_DIAGNOSTICS_H_
