// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_MONITOR_METRICS_OPTIONS_H_
#define TANDEM_CLI_MONITOR_METRICS_OPTIONS_H_

// The flags of commands that serve metrics: where, and for whom.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cluster/metrics/http_access.h"

namespace CLI {
class App;
}
namespace tandem::rpc {
class JobKey;
}

namespace tandem::cli {

// The values of the flags.
struct MetricsOptions {
  int port = -1;                   // 0: the kernel picks one; negative: no metrics are served
  std::string host = "127.0.0.1";  // the address to bind
  std::string password_file;       // "": see ReadMetricsAccess
  bool open = false;               // without a password on an address that other machines reach
  std::vector<std::string> names;  // by which clients call this server
};

// Adds --metrics-port, --metrics-listen, --metrics-password-file, --metrics-open and --metrics-names to
// `command`. All but the port also have variables, so that one setting serves all servers of a launcher.
void AddMetricsFlags(CLI::App* command, MetricsOptions* options);

// Returns the access that the flags describe; nullopt if no metrics are served. An address that other
// machines reach asks for the password in the password file, or else for MetricsCredentials of this process's
// key, unless it is open. Errors: PermissionDenied if other users may read the password file; InvalidArgument
// if its first line is not "user:password"; the system's if it cannot be read; those of JobKey::Load.
absl::StatusOr<std::optional<cluster::HttpAccess>> ReadMetricsAccess(const MetricsOptions& options);

// Returns "tandem:PASSWORD" with a password that is derived from `key`. It allows nothing but reading
// metrics, and the key cannot be computed from it.
std::string MetricsCredentials(const rpc::JobKey& key);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_METRICS_OPTIONS_H_
