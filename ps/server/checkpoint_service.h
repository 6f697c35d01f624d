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
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/longest_time.h"
#include "ps/checkpoint/format.h"
#include "ps/server/request_handler.h"
#include "ps/server/table/table_registry.h"
#include "ps/shard_map.h"
#include "ps/storage/table_storage.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

// Writes this server's part of a checkpoint, and reads it back. The rows, the optimizer state, the workers'
// clocks and the push fences of a checkpoint are of one moment, at which no push is under way
// (RequestHandler::BetweenPushes). Save writes at that moment, while pushes wait. Begin only fixes it, and
// WriteBegun writes while pushes go on; rows that change meanwhile are copied first (ps/storage/row_cut.h).
//
// One thread at a time may call Save, Begin and Load, the server's background thread. Another one may call
// WriteBegun and FinishBegun meanwhile. AddStatistics is thread-safe.
//
// Save, WriteBegun and Load block on the disk and until the pushes under way are done, without a deadline.
// They give up with Cancelled once the server is stopping, which they notice after each bucket. Save and
// WriteBegun do so, too, while they are interrupted.
class CheckpointService {
 public:
  // All must outlive the service, and so must the shard map of `tables`.
  // Of `options` it uses max_copied_bytes and before_checkpoint_row.
  CheckpointService(const ParameterServerOptions& options, TableRegistry* tables, RequestHandler* requests,
                    const std::atomic<bool>* stopping)
      : max_copied_bytes_(options.max_copied_bytes),
        before_row_(options.before_checkpoint_row),
        tables_(*tables),
        requests_(*requests),
        stopping_(*stopping),
        server_(tables->server()),
        shard_map_(tables->shard_map()) {}

  // `after_load` runs in Load, between pushes, once the new storage is installed; its error becomes that of
  // Load. Durable servers take a snapshot there, because their log does not lead to the loaded tables.
  void set_after_load(std::function<absl::Status()> after_load) { after_load_ = std::move(after_load); }

  // Applies what GBA tables have accumulated. Then writes one file for each table into `directory`, which
  // must exist, and syncs the directory. Returns the names of the files and their total size in bytes. Pushes
  // that arrive during the whole call are deferred; pulls run. Committing the checkpoint is up to the caller
  // (ps/checkpoint/checkpoint_dir.h).
  //
  // With `name`, the name that the checkpoint will have, the server remembers this moment. A later call whose
  // `base` is this name writes only what has changed since. A table's file is complete nevertheless in these
  // cases: the table was made or loaded since, a call with another name came between, or the checkpoint
  // `base` is not the one of that moment.
  //
  // First blocks while a checkpoint that Begin has begun is being written; IsWriting tells.
  //
  // NotFound: this server does not see `directory`. FailedPrecondition: a table has acknowledged pushes that
  // still wait (ServerTable::Describe). Otherwise the errors of WriteTableFile. On an error removes the files
  // that it has finished; the gradients of GBA tables stay applied.
  absl::StatusOr<v1::SaveCheckpointResponse> Save(const std::string& directory, const std::string& name = "",
                                                  const std::string& base = "");
  // Fixes this moment as that of a checkpoint, for WriteBegun. `key` identifies it for Want and FinishBegun.
  // First applies what GBA tables have accumulated. Pushes are deferred for a time that depends on the number
  // of buckets, not on that of rows. Blocks only until the pushes under way are done. `name` and `base` are
  // as in Save. AlreadyExists: one that was begun before is still being written. FailedPrecondition: as of
  // Save.
  absl::Status Begin(const std::string& key, const std::string& name, const std::string& base);
  // Says that the caller waits for the checkpoint `key`. No effect if another one was begun. Thread-safe.
  void Want(const std::string& key);
  // Blocks until Want was called for the checkpoint that Begin has begun. DeadlineExceeded: it was not, for
  // kMostUnwanted, so that the copies should be freed; Cancelled: the server is stopping.
  absl::Status AwaitWanted();
  // Writes the files of the checkpoint that Begin has begun. Pushes and pulls go on. Once copies of
  // changed rows take more than max_copied_bytes, pushes wait for the rest of the bucket. The service looks
  // at that before each bucket and, unless the table has `spill`, every kRowsBetweenLooks rows. Errors as of
  // Save.
  absl::StatusOr<v1::SaveCheckpointResponse> WriteBegun(const std::string& directory);
  // Stores the result of WriteBegun, or the error that prevented it, for FinishBegun, and frees the copies.
  void EndBegun(absl::StatusOr<v1::SaveCheckpointResponse> result);
  // Returns whether a checkpoint that Begin has begun is being written, or is about to be. Thread-safe.
  bool IsWriting() const;
  // Returns what EndBegun has stored for `key`. NotFound: another checkpoint was begun since, or this process
  // has begun none of that key.
  absl::StatusOr<v1::SaveCheckpointResponse> FinishBegun(const std::string& key);
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
  // Makes the calls under way, and those to come, give up until Interrupt(false). Does not block.
  // Thread-safe.
  void Interrupt(bool interrupted) {
    interrupted_ = interrupted;
    // The server may have begun to stop since, and its own call may have come before.
    if (stopping_) interrupted_ = true;
  }
  // Fills in the fields about checkpoints that were saved. Thread-safe.
  void AddStatistics(v1::ServerStatistics* statistics) const;

  static constexpr uint64_t kRowsBetweenLooks = 256;
  static constexpr absl::Duration kMostUnwanted = absl::Seconds(30);

 private:
  // A table as it is saved.
  struct SavedTable {
    std::weak_ptr<TableStorage> storage;  // its cut is of the moment of that save
    uint64_t save_id;
  };
  using SavedTables = std::map<std::string, SavedTable>;  // by table
  // A checkpoint that is written while pushes go on.
  struct Begun {
    struct Table {
      v1::TableFileHeader header;  // without `base`
      std::shared_ptr<TableStorage> storage;
      uint64_t base_save_id = 0;  // of the save on which the file may build; 0: none
    };
    std::string key, name, base;
    std::vector<Table> tables;
    SavedTables saved;
    uint64_t most_copied = 0;  // bytes
    bool is_wanted = false;
    bool is_dropped = false;  // never wanted, and in the way of another
    bool is_over = false;
    absl::StatusOr<v1::SaveCheckpointResponse> result = absl::UnknownError("not written");
  };

  absl::Status CheckDirectory(const std::string& directory) const;
  // Blocks while a begun checkpoint is written. Drops one that nobody has wanted yet.
  void AwaitBegun();
  void AwaitBegunLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(begun_mutex_);
  std::vector<uint32_t> OwnBuckets() const;
  // Applies what a GBA table has accumulated and fills in the header of its file, without `base`. To be
  // called between pushes.
  absl::Status PrepareTable(ServerTable& table, const std::vector<v1::WorkerFence>& fences, bool with_id,
                            v1::TableFileHeader* header);
  // Returns the id of the last save of the table, if the checkpoint `name` may build on `base`; else 0.
  uint64_t BaseSaveId(const std::string& table, const std::shared_ptr<TableStorage>& storage,
                      const std::string& name, const std::string& base) const;
  // Adds a file that was written to `response`.
  static void AddFile(const v1::TableFileHeader& header, const std::string& file_name,
                      const TableFileSummary& summary, v1::SaveCheckpointResponse* response);
  // Visits a bucket of a begun checkpoint, without pushes while copies of rows take too much memory.
  absl::StatusOr<BucketChanges> VisitBegun(Begun& begun, Begun::Table& table, uint32_t bucket,
                                           TableStorage::RowVisitor visit);
  // Makes the files durable, or removes them after an error; counts the save.
  absl::StatusOr<v1::SaveCheckpointResponse> Finish(const absl::Status& status, const std::string& directory,
                                                    v1::SaveCheckpointResponse response);

  absl::StatusOr<v1::LoadCheckpointResponse> LoadTables(const std::string& directory);
  // `other_bytes`: of the tables that were loaded before, for the limit of memory.
  absl::Status LoadRows(TableFileReader& file, const v1::TableConfig& config, uint64_t other_bytes,
                        TableStorage& storage);

  const uint64_t max_copied_bytes_;
  const std::function<void()> before_row_;
  TableRegistry& tables_;
  RequestHandler& requests_;
  const std::atomic<bool>& stopping_;
  std::atomic<bool> interrupted_{false};  // true once the server is stopping
  const uint32_t server_;
  const ShardMap& shard_map_;
  std::function<absl::Status()> after_load_;

  // The last save with a name, on which the next one can build. Used while no begun checkpoint is written, or
  // by EndBegun.
  std::string saved_name_;
  SavedTables saved_tables_;

  mutable absl::Mutex begun_mutex_;
  std::shared_ptr<Begun> begun_ ABSL_GUARDED_BY(begun_mutex_);  // nullptr: none yet

  mutable absl::Mutex statistics_mutex_;
  LongestTime longest_pause_;                                           // for which pushes were held
  v1::ServerStatistics statistics_ ABSL_GUARDED_BY(statistics_mutex_);  // the fields about checkpoints
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_CHECKPOINT_SERVICE_H_
