// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_CHECKPOINT_SERVICE_H_
#define TANDEM_PS_SERVER_CHECKPOINT_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "ps/checkpoint/format.h"
#include "ps/server/request_handler.h"
#include "ps/server/table/table_registry.h"
#include "ps/shard_map.h"
#include "ps/storage/table_storage.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

// Writes this server's part of a checkpoint, and reads it back. The rows, the optimizer state, the workers'
// clocks and the push fences of a checkpoint are of one moment, at which no push is under way
// (RequestHandler::BetweenPushes). Not thread-safe, except for AddStatistics: the server's background thread
// uses it.
//
// Both functions block on the disk and until the pushes under way are done, without a deadline. They give up
// with Cancelled once the server is stopping, which they notice after each bucket.
class CheckpointService {
 public:
  // All must outlive the service, and so must the shard map of `tables`.
  CheckpointService(TableRegistry* tables, RequestHandler* requests, const std::atomic<bool>* stopping)
      : tables_(*tables),
        requests_(*requests),
        stopping_(*stopping),
        server_(tables->server()),
        shard_map_(tables->shard_map()) {}

  // `after_load` runs in Load, between pushes, once the new storage is installed; its error becomes that of
  // Load. Durable servers take a snapshot there, because their log does not lead to the loaded tables.
  void set_after_load(std::function<absl::Status()> after_load) { after_load_ = std::move(after_load); }

  // Writes one file for each table into `directory`, which must exist, and syncs the directory. Returns the
  // files' names and their total size in bytes. First applies what GBA tables have accumulated. Pushes that
  // arrive during the whole call are deferred; pulls run. Committing the checkpoint is up to the caller
  // (ps/checkpoint/checkpoint_dir.h).
  //
  // With `name`, the name that the checkpoint will have, the server remembers this moment. A later call whose
  // `base` is this name writes only what has changed since, table by table, unless the table was made or
  // loaded since, a call with another name came between, or the checkpoint `base` is not the one of that
  // moment. Otherwise files are complete.
  //
  // NotFound: this server does not see `directory`. FailedPrecondition: a table has acknowledged pushes that
  // still wait (ServerTable::Describe). Otherwise the errors of WriteTableFile. On an error removes the files
  // that it has finished; the gradients of GBA tables stay applied.
  absl::StatusOr<v1::SaveCheckpointResponse> Save(const std::string& directory, const std::string& name = "",
                                                  const std::string& base = "");
  // Replaces the tables with those of the committed checkpoint in `directory`, whatever number of servers
  // wrote it: reads the rows of this server's buckets, the clocks and the push fences. Creates the tables
  // that do not exist, with their saved configuration; existing tables keep theirs. Returns the number of
  // rows.
  //
  // Reads all files into new storage while pushes and pulls run, so that the server holds its tables twice.
  // Defers pushes only while it installs the new storage. Errors, after which no table has changed or been
  // created:
  //
  //   - NotFound: a table of this server is not in the checkpoint
  //   - InvalidArgument: a table was saved with another kind, row_type, dim, number of elements or optimizer
  //   - DataLoss: files are damaged or missing, or come from different saves
  //   - ResourceExhausted: a limit of TableRegistry::Create, or the rows exceed max_memory_bytes by an eighth
  //   - otherwise the errors of ReadManifest, TableFileReader and TableRegistry::NewStorage
  absl::StatusOr<v1::LoadCheckpointResponse> Load(const std::string& directory);
  // Fills in the fields about checkpoints that were saved. Thread-safe.
  void AddStatistics(v1::ServerStatistics* statistics) const;

 private:
  absl::StatusOr<v1::LoadCheckpointResponse> LoadTables(const std::string& directory);
  // `other_bytes`: of the tables that were loaded before, for the limit of memory.
  absl::Status LoadRows(TableFileReader& file, const v1::TableConfig& config, uint64_t other_bytes,
                        TableStorage& storage);

  TableRegistry& tables_;
  RequestHandler& requests_;
  const std::atomic<bool>& stopping_;
  const uint32_t server_;
  const ShardMap& shard_map_;
  std::function<absl::Status()> after_load_;

  // The last save with a name, on which the next one can build.
  struct SavedTable {
    std::weak_ptr<TableStorage> storage;  // its cut is of the moment of that save
    uint64_t save_id;
  };
  std::string saved_name_;
  std::map<std::string, SavedTable> saved_tables_;  // by table

  mutable absl::Mutex statistics_mutex_;
  v1::ServerStatistics statistics_ ABSL_GUARDED_BY(statistics_mutex_);  // the fields about checkpoints
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_CHECKPOINT_SERVICE_H_
