// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_SERVER_INSERT_HANDLER_H_
#define TANDEM_REPLAY_SERVER_INSERT_HANDLER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "replay/chunks/chunk.h"
#include "replay/chunks/trajectory.h"
#include "replay/server/memory_meter.h"
#include "replay/server/parked_calls.h"
#include "replay/server/served_table.h"
#include "rpc/service.h"
#include "tandem/v1/replay.pb.h"

namespace tandem::replay {

// Handles the method Insert: keeps the chunks of each writer that later requests may refer to, builds items,
// and inserts them. Thread-safe. Lock order: the handler's mutex, then a writer's; a table's, then its
// fence's.
class InsertHandler {
 public:
  struct Options {
    std::string server;             // for errors: "replay/0"
    uint64_t incarnation = 0;       // of the server
    uint64_t max_memory_bytes = 0;  // of chunks; 0: no limit
    size_t max_header_bytes = 64 << 20;
    Clock* clock = nullptr;
  };
  // All arguments must outlive the handler.
  InsertHandler(Options options, ServedTables* tables, ParkedCalls* parked, MemoryMeter* memory)
      : options_(std::move(options)), tables_(*tables), parked_(*parked), memory_(*memory) {}

  // Does not block. Finishes the call, now or later.
  void Handle(std::shared_ptr<rpc::ServerCall> call);

 private:
  // An insert that waits in a table.
  struct Waiting {
    std::shared_ptr<Table> table;
    uint64_t call = 0;
  };
  struct Writer {
    using Chunks = std::map<uint64_t, std::shared_ptr<const Chunk>>;
    absl::Mutex mutex;
    uint64_t incarnation ABSL_GUARDED_BY(mutex) = 0;
    std::shared_ptr<const Signature> signature ABSL_GUARDED_BY(mutex);
    std::vector<std::shared_ptr<const ItemLayout>> layouts ABSL_GUARDED_BY(mutex);
    Chunks chunks ABSL_GUARDED_BY(mutex);
    std::vector<Waiting> waiting ABSL_GUARDED_BY(mutex);  // of this incarnation
    absl::Time last_request ABSL_GUARDED_BY(mutex);
  };

  std::shared_ptr<Writer> FindWriter(const std::string& name);
  // Moves the chunks of writers that have sent nothing for a while to `dropped`; they send them again.
  void DropIdleChunks(absl::Time now, std::vector<Writer::Chunks>* dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::vector<NewItem>> Parse(const v1::ReplayInsertRequest& request, const Bytes& payload,
                                             Writer* writer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer->mutex);
  absl::Status TakeSignature(const v1::ReplayInsertRequest& request, Writer* writer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer->mutex);
  absl::Status TakeChunks(const v1::ReplayInsertRequest& request, const Bytes& payload, Writer* writer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer->mutex);
  absl::StatusOr<std::shared_ptr<const ItemLayout>> Layout(const v1::ReplayInsertRequest& request,
                                                           Writer* writer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer->mutex);
  void Start(const std::shared_ptr<rpc::ServerCall>& call, const v1::ReplayInsertRequest& request,
             std::vector<NewItem> items, const std::shared_ptr<ServedTable>& served, Writer* writer);

  const Options options_;
  ServedTables& tables_;
  ParkedCalls& parked_;
  MemoryMeter& memory_;
  absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<Writer>> writers_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_sweep_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_SERVER_INSERT_HANDLER_H_
