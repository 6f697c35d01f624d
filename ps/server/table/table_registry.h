// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_TABLE_TABLE_REGISTRY_H_
#define TANDEM_PS_SERVER_TABLE_TABLE_REGISTRY_H_

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

// The tables of one server, by name, and the parts that new tables are made of. A table is never removed.
// Thread-safe, but only one thread at a time may call Create and Add.
class TableRegistry {
 public:
  struct Options {
    uint32_t server;            // index of this server
    const ShardMap* shard_map;  // this and the next two must outlive the registry
    BufferPool* buffers;
    Helpers* helpers;                       // take part in large updates of the tables
    std::shared_ptr<ColdStore> cold_store;  // rows on disk; nullptr: tables with `spill` are refused
  };
  explicit TableRegistry(Options options) : options_(std::move(options)) {}

  uint32_t server() const { return options_.server; }
  const ShardMap& shard_map() const { return *options_.shard_map; }

  // Creates the table that `config` describes. Does nothing if it exists with the same configuration.
  // AlreadyExists: it exists with another one; names the fields that differ. InvalidArgument: `config` is
  // wrong.
  absl::Status Create(const v1::TableConfig& config);
  // NotFound: no table has this name; the message names those that exist.
  absl::StatusOr<std::shared_ptr<ServerTable>> Find(absl::string_view name) const;
  std::vector<std::shared_ptr<ServerTable>> All() const;  // in order of name
  // Returns the memory of queued pushes of all tables (ServerTable::waiting_bytes), in bytes.
  uint64_t WaitingBytes() const;

  // The following make a table in steps, as LoadCheckpoint needs it.

  // Returns storage for the buckets of this server. FailedPrecondition: the table needs a disk and the server
  // has none.
  absl::StatusOr<std::unique_ptr<TableStorage>> NewStorage(const v1::TableConfig& config) const;
  // Returns a table that Find does not return yet. `storage` may be nullptr until ServerTable::Install.
  std::shared_ptr<ServerTable> NewTable(v1::TableConfig config, std::shared_ptr<TableStorage> storage) const;
  // Does nothing if a table of that name exists.
  void Add(std::shared_ptr<ServerTable> table);

 private:
  const Options options_;
  mutable absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<ServerTable>, std::less<>> tables_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_TABLE_TABLE_REGISTRY_H_
