// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_DIAGNOSTICS_DIAGNOSTICS_SERVER_H_
#define TANDEM_RPC_DIAGNOSTICS_DIAGNOSTICS_SERVER_H_

// The diagnostics server that every process of a job runs in addition to its work. It serves
// tandem.v1.Diagnostics (status and traces) and gRPC health checking on a port that the kernel chooses.
// `tandem status` and `tandem trace` call it.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/trace/recorder.h"
#include "rpc/diagnostics/process_status.h"
#include "rpc/network.h"
#include "rpc/server.h"
#include "rpc/service.h"

namespace tandem::rpc {

// The options of DiagnosticsServer::Start.
struct DiagnosticsOptions {
  // Where it listens, and where it is announced.
  ListenAddresses where = {.listen = "127.0.0.1:0"};
  // Limits the events of one trace, even if its reader requests more.
  size_t max_events = 400'000;
  // The error to simulate in this process's clock, for tests.
  int64_t skew_ns = 0;
};

// Owns one server with one thread, which sleeps while there are no requests. Thread-safe. A trace that is not
// stopped within the limit given when it was started stops by itself.
class DiagnosticsServer {
 public:
  // Starts serving and stores the address in `status`. `recorder` must outlive this object. Errors: those of
  // rpc::Server::Start.
  static absl::StatusOr<std::unique_ptr<DiagnosticsServer>> Start(const DiagnosticsOptions& options,
                                                                  std::shared_ptr<ProcessStatus> status,
                                                                  trace::Recorder* recorder);
  // Stops the current trace, if there is one.
  ~DiagnosticsServer();

  const std::string& address() const { return address_; }
  // Returns the service that it serves, whose handlers refer to this object.
  rpc::Service service();
  // Sets the state that gRPC health checking reports for the process as a whole (""). NOT_SERVING until the
  // first call.
  void SetServing(bool serving);

 private:
  class Service;
  DiagnosticsServer();

  std::string address_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<Server> server_;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_DIAGNOSTICS_DIAGNOSTICS_SERVER_H_
