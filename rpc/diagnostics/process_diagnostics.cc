// SPDX-License-Identifier: Apache-2.0
#include "rpc/diagnostics/process_diagnostics.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status.h"
#include "rpc/network.h"

namespace tandem::rpc {

std::unique_ptr<ProcessDiagnostics> ProcessDiagnostics::Start(std::string member, int64_t epoch,
                                                              const std::string& store) {
  std::unique_ptr<ProcessDiagnostics> own(new ProcessDiagnostics);
  own->status_ = std::make_shared<rpc::ProcessStatus>(std::move(member), epoch);
  const absl::Status served = [&]() -> absl::Status {
    rpc::DiagnosticsOptions options;
    TANDEM_ASSIGN_OR_RETURN(options.where, rpc::ListenBeside(store, absl::StrCat("diagnostics-", getpid())));
    TANDEM_ASSIGN_OR_RETURN(own->server_,
                            rpc::DiagnosticsServer::Start(options, own->status_, &own->recorder_));
    return absl::OkStatus();
  }();
  if (!served.ok()) LogWarning(absl::StrCat("no diagnostics are served: ", served.message()));
  return own;
}

void ProcessDiagnostics::SetServing(bool serving) {
  if (server_ != nullptr) server_->SetServing(serving);
}

}  // namespace tandem::rpc
