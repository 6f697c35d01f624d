// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_SERVER_REPLAY_SERVER_H_
#define TANDEM_REPLAY_SERVER_REPLAY_SERVER_H_

// The service tandem.v1.Replay over tables in this process (proto/tandem/v1/replay.proto).

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/wait_log.h"
#include "replay/staleness/version_clock.h"
#include "rpc/service.h"
#include "tandem/v1/replay.pb.h"

namespace tandem::replay {

namespace v1 = ::tandem::v1;

struct ReplayServerOptions {
  std::string name = "replay/0";  // in errors
  // Limits the chunks in memory, of items, writers and answers. 0: no limit. Further inserts wait if the
  // items of their table leave it by samples or by age; else they are refused (insert_handler.h).
  uint64_t max_memory_bytes = 0;
  // Inserts that wait are refused after no item could leave any table for so long.
  absl::Duration memory_patience = absl::Seconds(5);
  // Limits the requests of calls that wait. Further ones that would have to wait fail with Unavailable.
  uint64_t max_parked_bytes = uint64_t{256} << 20;
  size_t max_message_bytes = size_t{1} << 30;
  // A call waits at most this long, even if its deadline is later.
  absl::Duration max_wait = absl::Hours(1);
  // Where checkpoints are. At the start the newest one is restored. Empty: there are none.
  std::string checkpoint_directory;
  // How often a checkpoint is written; InfiniteDuration: only by the method SaveCheckpoint.
  absl::Duration checkpoint_every = absl::InfiniteDuration();
  // Says whether actors can pull a committed version of the policy from a weight store beside this server
  // (weights::ModelStore::Find): in words, or as an error. Reasons why a paced table waits then name weights
  // that are missing. Called under the table's lock, so it must not call this server. Empty: not known.
  std::function<absl::StatusOr<std::string>(const CommittedVersion&)> find_weights;
  // How often the server logs why the calls of a table wait, if none of them has gone on meanwhile, and what
  // gets the lines, on a thread of the server.
  absl::Duration log_waits_every = kLogWaitsEvery;
  std::function<void(const std::string&)> log_wait = [](const std::string& line) { LogWarning(line); };
  Clock* clock = Clock::Real();
};

// A replay server without its transport. Thread-safe.
class ReplayServer {
 public:
  // Makes a server and restores the newest checkpoint, which blocks on the disk. Errors are those of reading
  // it (replay/checkpoint/checkpoint.h).
  static absl::StatusOr<std::unique_ptr<ReplayServer>> Make(const ReplayServerOptions& options);
  virtual ~ReplayServer() = default;

  // Returns the service, whose handlers must not be called after this object is destroyed.
  virtual rpc::Service service() = 0;
  // Writes a checkpoint. Blocks on the disk; one at a time. FailedPrecondition: there is no directory for it.
  virtual absl::StatusOr<v1::ReplaySaveCheckpointResponse> SaveCheckpoint() = 0;
  // Returns what ListTables returns for all tables.
  virtual v1::ListReplayTablesResponse State() const = 0;
  // Creates a table, as the method does.
  virtual absl::Status CreateTable(const v1::ReplayTableOptions& options) = 0;
  // Ends all calls that wait, and refuses later inserts and samples, with Unavailable, which clients repeat.
  // Ends the regular checkpoints; SaveCheckpoint can still be called, and then saves all that was
  // acknowledged. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_SERVER_REPLAY_SERVER_H_
