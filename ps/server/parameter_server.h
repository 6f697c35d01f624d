// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_PARAMETER_SERVER_H_
#define TANDEM_PS_SERVER_PARAMETER_SERVER_H_

// A parameter server of a job: implements the service tandem.v1.ParameterServer for the buckets it owns.
//
//   ps::ParameterServer server({.index = 0, .num_servers = 2});
//   auto listening = rpc::Server::Start({.listen = "0.0.0.0:7000"}, {server.service()});
//   ...
//   server.Stop();                 // first: finishes the waiting calls
//   (*listening)->Shutdown(grace); // then: no handler runs any more
//
// proto/tandem/v1/parameter_server.proto defines the calls. ps/server/table/update_order.h defines the update
// modes: when a push is applied and how long a pull waits. In short:
//
//   - A push is checked as a whole before any part of it is applied. It is applied exactly once.
//   - A pull that must wait for other workers is deferred. It holds no thread. The push for which it waits
//     triggers its response. Otherwise it fails with DeadlineExceeded, naming table, step and workers, a
//     moment before its caller's deadline.
//   - SaveCheckpoint, LoadCheckpoint, DropTable, SetUpdateMode and Flush see the tables between pushes:
//   pushes that
//     arrive meanwhile are deferred. So a checkpoint's rows, optimizer state, clocks and fences are of one
//     moment. Pulls go on. BeginCheckpoint defers pushes while it fixes that moment; SaveCheckpoint then
//     writes while they go on, and defers them only for the rest of a bucket once copies of rows take
//     max_copied_bytes. On durable servers CreateTable, WriteRowStates and each bucket of a snapshot defer
//     pushes, too.

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "ps/shard_map.h"
#include "ps/storage/spill/cold_tier.h"
#include "rpc/caller.h"
#include "rpc/security/epoch_gate.h"
#include "rpc/service.h"

namespace tandem::ps {

class DataPath;
class FileSystem;

// A server that logs what changes its tables, and comes back with it (docs/durability.md).
struct DurabilityOptions {
  // The directory of this server's log and snapshots, on a local disk; created if it is missing. "": the
  // server is not durable.
  std::string directory;
  // True: a push is acknowledged when its record is on the disk. False: when the kernel has it, so that it
  // survives the process but not the machine.
  bool sync = true;
  // Goes on with what is left of a log that is damaged, or that was not synced before the machine was started
  // again. Acknowledged pushes may be lost.
  bool accept_loss = false;
  uint64_t snapshot_bytes = uint64_t{1} << 30;     // of log after which a snapshot truncates it
  uint64_t segment_bytes = uint64_t{64} << 20;     // of a file of the log
  uint64_t max_queued_bytes = uint64_t{64} << 20;  // of records that are not written yet; later pushes wait
  // Runs once if the log has failed (a disk error): the server acknowledges nothing any more, and its process
  // should end.
  std::function<void(const absl::Status&)> on_failure;
  // Tests pass another file system, whose directory exists and is not locked, and the id of another boot.
  FileSystem* files = nullptr;
  std::string boot_id;
};

struct ParameterServerOptions {
  uint32_t index = 0;  // index of this server, < num_servers
  uint32_t num_servers = 1;
  uint32_t num_buckets = kDefaultBuckets;       // a power of two >= num_servers, equal on all servers
  Clock* clock = Clock::Real();                 // for deadlines; must outlive the server
  int threads = 2;                              // threads that run deferred pulls
  size_t max_message_bytes = size_t{1} << 30;   // a request that needs more is refused
  size_t max_parked_bytes = size_t{2} << 30;    // limit for pulls and pushes that wait; more are refused
  absl::Duration max_wait = absl::Minutes(30);  // longest deferral of a call without a deadline
  // Holds the rows on disk of tables with `spill` (ps/storage/spill/spill_store.h). nullptr: such tables are
  // refused.
  std::shared_ptr<ColdStore> cold_store;
  // Limit of the memory of tables. A table or checkpoint that needs more is refused. While the tables hold
  // more, calls that would create rows fail with ResourceExhausted. 0: no limit.
  uint64_t max_memory_bytes = 0;
  // Memory for copies of rows that change while a checkpoint is written beside pushes. Once they take more,
  // pushes are deferred until the bucket is written. Exceeded by what changes in 256 rows' time, and in
  // tables with `spill` by what changes while a bucket is written.
  uint64_t max_copied_bytes = uint64_t{256} << 20;
  // Called before each row that is written so, on the thread that writes, and may block it. For tests.
  std::function<void()> before_checkpoint_row;
  // Directories of checkpoints must lie below this one, "": any directory.
  std::string checkpoint_root;
  // Decides who may create rows by a pull (rpc::Right::kTrain). The rights of all other calls are checked
  // before they reach the server (rpc::ServerOptions::gate). nullptr: everyone may.
  std::shared_ptr<rpc::EpochGate> gate;
  // Returns the run id and the epoch with which callers must connect, for Register. nullptr: none.
  std::function<rpc::Caller()> job;
  uint32_t first_free_rank = 0;  // the first rank that Register gives
  DurabilityOptions durability;
  // The clock of a primary's lease, and of a follower's lag: BootTimeNow(), unless a test passes another.
  std::function<absl::Time()> boot_time = BootTimeNow;
  // This server is one of several copies of its shard (ps/failover/data_path.h). It begins closed: calls
  // other than those that observe fail with Unavailable until it is made the primary. Not together with
  // durability.directory.
  bool failover = false;
};

// Thread-safe.
class ParameterServer {
 public:
  explicit ParameterServer(const ParameterServerOptions& options);
  // Calls Stop. No handler of service() may be running.
  ~ParameterServer();

  // Brings back what the server's log holds (ParameterServerOptions::durability). Must be called once before
  // the server serves if it is durable; otherwise does nothing. Blocks on the disk, without a deadline.
  // Errors are those of Durability::Recover; the server must then be destroyed.
  absl::Status Recover();

  // Returns the part by which this server is one copy of its shard; nullptr without
  // ParameterServerOptions::failover. Valid while the server exists.
  DataPath* data_path();

  // Return the services ParameterServer, Durability and Subscriptions. Their handlers refer to this object,
  // which must outlive them.
  rpc::Service service();
  rpc::Service durability_service();
  rpc::Service subscriptions_service();

  // Returns the number of calls that wait: for another worker's push, or for room in the log.
  size_t waiting_calls() const;
  // Tells which workers have left the job for good, by rank, instead of those of the call before. A pull of a
  // SYNC or BOUNDED table that waits for a push of one of them fails with FailedPrecondition, which names it,
  // and does not wait for its deadline. A rank that is not in the next call has come back.
  void SetWorkersThatLeft(const std::set<uint32_t>& workers);

  // Finishes all deferred calls: with Cancelled, or with Unavailable if another life or copy of the server
  // will answer them (durability, failover). Refuses later pulls and pushes with Unavailable. Ends background
  // work, so that a checkpoint that is being written is abandoned, and joins all threads. Blocks until they
  // have ended, without a deadline. Idempotent. Must not be called from a handler.
  void Stop();

  // Returns the number of deferred calls, for tests and monitoring.
  size_t parked_calls() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_PARAMETER_SERVER_H_
