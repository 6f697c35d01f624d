#ifndef TANDEM_COLLECTIVES_ELASTIC_LAUNCHER_CLIENT_H_
#define TANDEM_COLLECTIVES_ELASTIC_LAUNCHER_CLIENT_H_

// A process's line to its launcher (LauncherControl).

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/elastic/assignment.h"
#include "collectives/store/remote_store.h"

namespace tandem::collectives {

// Thread-safe.
class LauncherClient {
 public:
  // `address`: TANDEM_AGENT; `process`: "worker/1", by role and local rank. InvalidArgument for a malformed
  // address.
  static absl::StatusOr<std::unique_ptr<LauncherClient>> Connect(const std::string& address,
                                                              std::string process);

  // Blocks until the launcher's round `number` is over (why), at most `timeout`: DeadlineExceeded.
  // Unavailable when the launcher does not answer.
  absl::StatusOr<std::string> AwaitOver(int64_t number, absl::Duration timeout);
  // Blocks until this process has a place in round `number`, or in the first after it that is not over.
  // FailedPrecondition when there is to be no
  // further round, with the launcher's reason; DeadlineExceeded; Unavailable.
  absl::StatusOr<Assignment> AwaitAssignment(int64_t number, absl::Time deadline);
  // This process's peers of round `number` fail it.
  absl::Status ReportPeerFailure(int64_t number, absl::string_view reason);

 private:
  LauncherClient(std::shared_ptr<rpc::Channel> channel, std::string process)
      : store_(std::move(channel), absl::Seconds(5)), process_(std::move(process)) {}

  RemoteStore store_;
  const std::string process_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_ELASTIC_LAUNCHER_CLIENT_H_
