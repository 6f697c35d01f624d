#ifndef TANDEM_PS_SERVER_CHECKPOINT_SERVICE_H_
#define TANDEM_PS_SERVER_CHECKPOINT_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ps/checkpoint/format.h"
#include "ps/server/request_handler.h"
#include "ps/server/table/table_registry.h"
#include "ps/shard_map.h"
#include "ps/storage/table_storage.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

// Writes this server's part of a checkpoint, and reads it back. The rows, the optimizer state, the workers'
// clocks and the push fences of a checkpoint are of one moment, at which no push is under way. Not
// thread-safe: the server's background thread uses it. Both functions block while they read or write files,
// and give up with Cancelled once the server is stopping.
class CheckpointService {
 public:
  // All must outlive the service.
  CheckpointService(TableRegistry* tables, RequestHandler* requests, const std::atomic<bool>* stopping)
      : tables_(*tables),
        requests_(*requests),
        stopping_(*stopping),
        server_(tables->server()),
        shard_map_(tables->shard_map()) {}

  // Writes one file for each table into `directory`, which must exist. Applies what GBA tables have
  // accumulated before. On an error removes the files that it has finished.
  absl::StatusOr<v1::SaveCheckpointResponse> Save(const std::string& directory);
  // Reads the rows of this server's buckets from a committed checkpoint, whatever number of servers wrote it.
  // Creates the tables that do not exist. On an error no table has changed.
  absl::StatusOr<v1::LoadCheckpointResponse> Load(const std::string& directory);

 private:
  absl::StatusOr<v1::LoadCheckpointResponse> LoadTables(const std::string& directory);
  absl::Status LoadRows(TableFileReader& file, const v1::TableConfig& config, TableStorage& storage);

  TableRegistry& tables_;
  RequestHandler& requests_;
  const std::atomic<bool>& stopping_;
  const uint32_t server_;
  const ShardMap& shard_map_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_CHECKPOINT_SERVICE_H_
