#ifndef TANDEM_RPC_DIAGNOSTICS_DIAGNOSTICS_SERVER_H_
#define TANDEM_RPC_DIAGNOSTICS_DIAGNOSTICS_SERVER_H_

// What every process of a job serves beside its work: tandem.v1.Diagnostics (how it goes, what it is busy
// with) and gRPC health, at a port that the kernel picks. `tandem status` and `tandem trace` ask here.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/trace/recorder.h"
#include "rpc/diagnostics/process_status.h"
#include "rpc/server.h"
#include "rpc/service.h"

namespace tandem::rpc {

struct DiagnosticsOptions {
  std::string host = "127.0.0.1";  // to bind, and under which others reach it
  size_t max_events = 400'000;     // of one trace, whatever its reader asks for
  int64_t skew_ns = 0;             // for tests: what this process's clock seems to be off
};

// Thread-safe. Owns one server with one thread, which sleeps unless somebody asks. A trace that nobody ends
// within the limit its starter gave ends by itself.
class DiagnosticsServer {
 public:
  // `recorder` outlives this object. The address becomes status->Get().diagnostics. Errors are
  // rpc::Server::Start's.
  static absl::StatusOr<std::unique_ptr<DiagnosticsServer>> Start(const DiagnosticsOptions& options,
                                                                  std::shared_ptr<ProcessStatus> status,
                                                                  trace::Recorder* recorder);
  // Ends a trace under way.
  ~DiagnosticsServer();

  const std::string& address() const { return address_; }
  // What gRPC health answers for the process as a whole (""): NOT_SERVING until the first call.
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
