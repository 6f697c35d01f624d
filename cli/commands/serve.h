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
#include "cluster/member.h"
#include "cluster/process.h"
#include "cluster/server.h"
#include "rpc/service.h"

namespace tandem::cli {

// The metrics of a server, for Prometheus.
struct ServedMetrics {
  int port = -1;                      // 0: the kernel picks one; negative: no metrics are served
  std::function<std::string()> text;  // runs on another thread
};

// The process of `tandem replay serve` or `tandem weights serve`. If a launcher or the user has given it a
// role of a job outside the main one (TANDEM_ROLE=replay, without RANK), it is a member of that job: it sends
// heartbeats, and the other processes find it. Otherwise it serves alone.
struct Serving {
  std::unique_ptr<cluster::Process> process;
  std::unique_ptr<cluster::Member> member;  // nullptr: no job
  std::unique_ptr<cluster::Server> server;  // made by ServeServices

  // Handles signals, and joins the job if there is one. Errors: those of Process::Start,
  // Environment::FromEnv and Member::Join.
  static absl::StatusOr<Serving> Start();
};

// The help of `--listen` shows this as its default.
inline constexpr char kServeListenDefault[] = "127.0.0.1:0; in a job: an address that the others reach";

struct ServingFlags {
  std::string listen;  // "": 127.0.0.1 with any port; in a job, an address that its other processes reach
  std::string transport = "auto";
  bool reflection = false;
  ServedMetrics metrics = {};
};

// Serves `services` as `name`, prints the address that clients connect to, and blocks until a signal. The
// caller stops what the services use, then calls serving->server->Drain(). Errors: those of
// cluster::Server and of PageHttp::Start; then it has not blocked, and no address was printed.
absl::Status ServeServices(const std::string& name, const ServingFlags& flags,
                           std::vector<rpc::Service> services, Serving* serving);

// Prints the address that clients connect to, rpc::AdvertisedAddress of `listen` ("host:port" or
// "unix:/path") with the bound port, and blocks until the process gets one of the signals. Serves the metrics
// meanwhile, at the host of `listen`, or at 127.0.0.1 if that is a Unix socket. Errors: those of
// AdvertisedAddress and PageHttp::Start; then it has not blocked, and no address was printed.
absl::Status ServeUntilSignal(const std::string& listen, int bound_port, const SignalPipe& signals,
                              const ServedMetrics& metrics = {});

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMANDS_SERVE_H_
