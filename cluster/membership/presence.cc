// SPDX-License-Identifier: Apache-2.0
#include "cluster/membership/presence.h"

#include <utility>

#include "base/status.h"
#include "rpc/network.h"

namespace tandem::cluster {

absl::StatusOr<std::unique_ptr<Presence>> Presence::Start(const std::string& member, int64_t epoch,
                                                          std::shared_ptr<rpc::Channel> store,
                                                          const std::string& store_address) {
  std::unique_ptr<Presence> presence(new Presence);
  presence->status_ = std::make_shared<rpc::ProcessStatus>(member, epoch);
  rpc::DiagnosticsOptions options;
  TANDEM_ASSIGN_OR_RETURN(options.host, rpc::LocalAddressFor(store_address));
  TANDEM_ASSIGN_OR_RETURN(presence->diagnostics_,
                          rpc::DiagnosticsServer::Start(options, presence->status_, &presence->recorder_));
  TANDEM_ASSIGN_OR_RETURN(presence->monitor_,
                          JobMonitor::Start(std::move(store), {.member = member, .status = presence->status_},
                                            [](const JobState&) {}));
  return presence;
}

}  // namespace tandem::cluster
