// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_TABLE_TABLE_REGISTRY_H_
#define TANDEM_PS_SERVER_TABLE_TABLE_REGISTRY_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/buffer_pool.h"
#include "ps/server/table/server_table.h"
#include "ps/shard_map.h"
#include "ps/storage/spill/cold_tier.h"
#include "ps/storage/table_storage.h"

namespace tandem::ps {

// Owns the tables of one server, by name, together with the requests that use them, and makes new tables.
// Thread-safe, but only one thread at a time may call Create, Add, Drop and Clear.
class TableRegistry {
 public:
  struct Options {
    uint32_t server;            // index of this server
    const ShardMap* shard_map;  // must outlive the registry
    BufferPool* buffers;        // this and the next must outlive the registry and its tables
    Helpers* helpers;           // take part in large updates of the tables
    // Rows on disk; must outlive the tables. nullptr: tables with `spill` are refused.
    std::shared_ptr<ColdStore> cold_store;
    uint64_t max_memory_bytes = 0;  // of all tables; 0: no limit
    // Rows are created by pushes, never by pulls (TableStorage::Create).
    bool durable = false;
  };
  explicit TableRegistry(Options options) : options_(std::move(options)) {}

  uint32_t server() const { return options_.server; }
  const ShardMap& shard_map() const { return *options_.shard_map; }

  // Creates the table that `config` describes, with the rows of a DENSE table. Its workers' clocks begin at
  // `first_step`, which is at most 2^62. Returns OK and does nothing if it exists with the same
  // configuration. No table is added after an error.
  //
  //   - AlreadyExists if it exists with another configuration; names the fields that differ
  //   - InvalidArgument if ValidateTableConfig refuses `config`, or num_workers exceeds 65536
  //   - ResourceExhausted if there are 1024 tables, or the table's dense rows, counters and byte budget would
  //     exceed max_memory_bytes; checked before memory is allocated
  //   - the errors of NewStorage
  absl::Status Create(const v1::TableConfig& config, uint64_t first_step = 0) {
    return CreateWithin(config, first_step, options_.max_memory_bytes);
  }
  // Creates a table that the server's log has, whatever max_memory_bytes says: it fitted when it was created.
  absl::Status Recreate(const v1::TableConfig& config, uint64_t first_step) {
    return CreateWithin(config, first_step, 0);
  }
  // Returns the table. NotFound: no table has this name; the message names those that exist.
  absl::StatusOr<std::shared_ptr<ServerTable>> Find(absl::string_view name) const;
  // Returns all tables in the order of their names.
  std::vector<std::shared_ptr<ServerTable>> All() const;
  // Returns ResourceExhausted if the tables hold more than max_memory_bytes. Measures them at most every 100
  // ms, so that a call is cheap.
  absl::Status CheckMemory() const;
  // Returns ResourceExhausted if rows that a checkpoint brings need more than max_memory_bytes, or a little
  // more: a server that had reached the limit must be able to load what it saved.
  absl::Status CheckLoadedBytes(uint64_t bytes) const;
  // Returns the memory of queued pushes of all tables (ServerTable::waiting_bytes), in bytes.
  uint64_t WaitingBytes() const;

  // The following make a table in steps, as LoadCheckpoint needs it.

  // Checks the limits of Create for a new table beside those that exist and `new_tables` others, which need
  // `new_bytes`. Adds this one to both counts. ResourceExhausted: a limit would be exceeded. InvalidArgument:
  // num_workers is too large.
  absl::Status CheckNewTable(const v1::TableConfig& config, size_t* new_tables, uint64_t* new_bytes) const {
    return CheckNewTable(config, options_.max_memory_bytes, new_tables, new_bytes);
  }
  // Does the same with another limit of memory. 0: no limit, as for tables that the server had before.
  absl::Status CheckNewTable(const v1::TableConfig& config, uint64_t max_memory_bytes, size_t* new_tables,
                             uint64_t* new_bytes) const;
  // Returns new storage for the buckets of this server. Requires a `config` that has passed
  // ValidateTableConfig. FailedPrecondition: the table has `spill` and the server no cold store; other errors
  // are those of ColdStore::NewTier.
  absl::StatusOr<std::unique_ptr<TableStorage>> NewStorage(const v1::TableConfig& config) const;
  // Returns a table that Find does not return yet. `storage` may be nullptr until ServerTable::Install.
  std::shared_ptr<ServerTable> NewTable(v1::TableConfig config, std::shared_ptr<TableStorage> storage) const;
  // Makes Find return `table`. Does nothing if a table of that name exists.
  void Add(std::shared_ptr<ServerTable> table);

  // Makes Find not return the table any more, and releases the pulls that wait for it (ServerTable::Drop).
  // Returns the table, which requests that have found it before may still use; nullptr if there is none.
  std::shared_ptr<ServerTable> Drop(absl::string_view name, std::vector<ServerTable::Waiter>* released);
  // Removes all tables, which a follower does before it is copied anew.
  void Clear();

 private:
  absl::Status CreateWithin(const v1::TableConfig& config, uint64_t first_step, uint64_t max_memory_bytes);
  // Returns the memory of all tables, in bytes.
  uint64_t MemoryBytes() const;

  const Options options_;
  const std::shared_ptr<std::atomic<int64_t>> measured_tables_ = std::make_shared<std::atomic<int64_t>>(0);
  mutable std::atomic<int64_t> next_measurement_{0};  // CheckMemory: nanoseconds of the monotonic clock
  mutable std::atomic<uint64_t> measured_bytes_{0};
  mutable absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<ServerTable>, std::less<>> tables_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_TABLE_TABLE_REGISTRY_H_
