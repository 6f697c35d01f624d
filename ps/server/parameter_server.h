#ifndef TANDEM_PS_SERVER_PARAMETER_SERVER_H_
#define TANDEM_PS_SERVER_PARAMETER_SERVER_H_

// One of a job's parameter servers: the tandem.v1.ParameterServer service over the buckets this server owns.
//
//   ps::ParameterServer server({.index = 0, .num_servers = 2});
//   auto listening = rpc::Server::Start({.listen = "0.0.0.0:7000"}, {server.service()});
//   ...
//   server.Stop();                 // first: answers what waits
//   (*listening)->Shutdown(grace); // then: no handler runs any more
//
// The meaning of every call is in proto/tandem/v1/parameter_server.proto; what clocks, modes and kept pushes
// are is told in ps/server/table/server_table.h. In short:
//   - a push is checked as a whole before anything of it is applied, and applied exactly once;
//   - a pull that must wait for other workers is parked: it holds no thread, is answered by the push it waits
//   for, or
//     with DeadlineExceeded naming table, step and workers a moment before its caller's deadline;
//   - SaveCheckpoint, LoadCheckpoint and SetUpdateMode see the tables between pushes: pushes that come
//   meanwhile wait, so
//     that a checkpoint's rows, optimizer state, clocks and fences are of one instant. Pulls go on.

#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "base/clock.h"
#include "ps/shard_map.h"
#include "ps/storage/spill/cold_tier.h"
#include "rpc/service.h"

namespace tandem::ps {

struct ParameterServerOptions {
  uint32_t index = 0;  // of this server, < num_servers
  uint32_t num_servers = 1;
  uint32_t num_buckets = kDefaultBuckets;       // a power of two >= num_servers, the same on all servers
  Clock* clock = Clock::Real();                 // for the deadlines of waiting calls; outlives the server
  int threads = 2;                              // that answer pulls which had to wait
  size_t max_message_bytes = size_t{1} << 30;   // a pull whose rows exceed it is refused
  size_t max_parked_bytes = size_t{2} << 30;    // of pulls and pushes that wait; more are refused
  absl::Duration max_wait = absl::Minutes(30);  // of a call whose caller set no deadline
  // Where tables with `spill` keep their cold rows (ps/storage/spill/spill_store.h); without one, they are
  // refused.
  std::shared_ptr<ColdStore> cold_store;
};

// Thread-safe.
class ParameterServer {
 public:
  explicit ParameterServer(const ParameterServerOptions& options);
  ~ParameterServer();  // Stops; no handler of service() may run any more

  // The handlers refer to this object.
  rpc::Service service();

  // Answers all waiting calls with Cancelled, refuses those to come with Unavailable, ends background work (a
  // checkpoint being written is abandoned) and joins all threads. Idempotent; not from a handler.
  void Stop();

  // Calls that wait for other workers, for tests and monitoring.
  size_t parked_calls() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_PARAMETER_SERVER_H_
