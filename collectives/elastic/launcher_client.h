// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_ELASTIC_LAUNCHER_CLIENT_H_
#define TANDEM_COLLECTIVES_ELASTIC_LAUNCHER_CLIENT_H_

// A process's side of `--on-failure reform`: it learns from its launcher (launcher/launcher_control.h) which
// round is over and which ranks it has in the next one, and reports peers that do not respond.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/store/remote_store.h"
#include "collectives/elastic/assignment.h"

namespace tandem::collectives {

// A client of the launcher's store. Thread-safe.
class LauncherClient {
 public:
  // Connects to `address`, the value of TANDEM_AGENT, for `process`, a role and local rank such as
  // "worker/1". Does not block. Returns InvalidArgument for a malformed address.
  static absl::StatusOr<std::unique_ptr<LauncherClient>> Connect(const std::string& address,
                                                                 std::string process);

  // Blocks until the launcher's round `number` is over and returns the reason. Returns DeadlineExceeded after
  // `timeout`, and Unavailable if the launcher does not respond.
  absl::StatusOr<std::string> AwaitOver(int64_t number, absl::Duration timeout);
  // Blocks until this process has an assignment in round `number`, or in the first round after it that is not
  // over. Returns FailedPrecondition, with the launcher's reason, if there will be no further round,
  // DeadlineExceeded after `deadline`, and Unavailable if the launcher does not respond.
  absl::StatusOr<Assignment> AwaitAssignment(int64_t number, absl::Time deadline);
  // Reports that this process's peers in round `number` do not respond, with `reason`. Blocks for one call to
  // the launcher.
  absl::Status ReportPeerFailure(int64_t number, absl::string_view reason);

 private:
  LauncherClient(std::shared_ptr<rpc::Channel> channel, std::string process)
      : store_(std::move(channel), absl::Seconds(5)), process_(std::move(process)) {}

  cluster::RemoteStore store_;
  const std::string process_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_ELASTIC_LAUNCHER_CLIENT_H_
