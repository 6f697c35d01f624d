// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_COMMANDS_SERVE_H_
#define TANDEM_CLI_COMMANDS_SERVE_H_

// This file has the part that `tandem replay serve`, `tandem weights serve` and `tandem store` share.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/process/signal_pipe.h"
#include "cli/monitor/metrics_options.h"
#include "cluster/member.h"
#include "cluster/process.h"
#include "cluster/server.h"
#include "rpc/service.h"

namespace CLI {
class App;
}

namespace tandem::cli {

// The flags of a server.
struct ServingFlags {
  std::string listen;  // "": 127.0.0.1 with any port; in a job, an address that its other processes reach
  std::string transport = "auto";
  MetricsOptions metrics;
  bool reflection = false;
};
// Adds them to a command.
void AddServingFlags(CLI::App* command, ServingFlags* flags);

// The process of `tandem replay serve` or `tandem weights serve`. If a launcher or the user has given it a
// role of a job outside the main one (TANDEM_ROLE=replay, without RANK), it is a member of that job: it sends
// heartbeats, and the other processes find it. Otherwise it serves alone.
class Serving {
 public:
  // Handles signals, and joins the job if there is one. Errors: those of Process::Start,
  // Environment::FromEnv and Member::Join.
  static absl::StatusOr<Serving> Start();
  // Serves `services` as `name`, prints the address that clients connect to, and blocks until a signal.
  // `metrics` returns the server's metrics for Prometheus, on another thread. The caller stops what the
  // services use, then calls Drain. Errors: those of ReadMetricsAccess and cluster::Server; then it has not
  // blocked, and no address was printed.
  absl::Status Serve(const std::string& name, const ServingFlags& flags, std::function<std::string()> metrics,
                     std::vector<rpc::Service> services);
  void Drain() { server_->Drain(); }

 private:
  std::unique_ptr<cluster::Process> process_;
  std::unique_ptr<cluster::Member> member_;  // nullptr: no job
  std::unique_ptr<cluster::Server> server_;
};

// Prints the address that clients connect to, rpc::AdvertisedAddress of `listen` ("host:port" or
// "unix:/path") with the bound port, and blocks until the process gets one of the signals. Errors: those of
// AdvertisedAddress; then it has not blocked, and no address was printed.
absl::Status ServeUntilSignal(const std::string& listen, int bound_port, const SignalPipe& signals);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMANDS_SERVE_H_
