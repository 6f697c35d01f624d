// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_COMMANDS_SERVE_H_
#define TANDEM_CLI_COMMANDS_SERVE_H_

// The part of `tandem replay serve`, `tandem weights serve` and `tandem store` after the server has started.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/process/signal_pipe.h"
#include "rpc/epoch_gate.h"

namespace tandem::cli {

// The metrics of a server, for Prometheus.
struct ServedMetrics {
  int port = -1;                      // 0: the kernel picks one; negative: no metrics are served
  std::function<std::string()> text;  // runs on another thread
};

// Returns the gate of a server that belongs to no job. If TANDEM_JOB_TOKEN is set, callers that change
// something must present it; otherwise every caller is served. `name` is the server's in messages.
// InvalidArgument for a malformed token.
absl::StatusOr<std::shared_ptr<rpc::EpochGate>> StandaloneGate(const std::string& name);

// Prints the address that clients connect to, rpc::AdvertisedAddress of `listen` ("host:port" or
// "unix:/path") with the bound port, and blocks until the process gets one of the signals. Serves the metrics
// meanwhile, at the host of `listen`, or at 127.0.0.1 if that is a Unix socket. Errors: those of
// AdvertisedAddress and PageHttp::Start; then it has not blocked, and no address was printed.
absl::Status ServeUntilSignal(const std::string& listen, int bound_port, const launcher::SignalPipe& signals,
                              const ServedMetrics& metrics = {});

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMANDS_SERVE_H_
