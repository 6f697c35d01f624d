// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_SERVER_INSERT_HANDLER_H_
#define TANDEM_REPLAY_SERVER_INSERT_HANDLER_H_

#include <atomic>
#include <cstdint>
#include <deque>
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
#include "base/bytes.h"
#include "base/clock.h"
#include "replay/chunks/chunk.h"
#include "replay/chunks/trajectory.h"
#include "replay/server/memory_meter.h"
#include "replay/server/parked_calls.h"
#include "replay/server/served_table.h"
#include "rpc/service.h"
#include "rpc/transport/timer_queue.h"
#include "tandem/v1/replay.pb.h"

namespace tandem::replay {

// Handles the method Insert: keeps the chunks of each writer that later requests may refer to, builds items,
// and inserts them. Thread-safe. Lock order: the handler's mutex, then a writer's, then memory_mutex_; a
// table's, then its fence's.
//
// Requests whose chunks exceed max_memory_bytes wait, first come, first served, if the items of their table
// leave it by samples or by age. Requests to other tables are refused: only inserts could make room. So are
// those that wait, the first one first, while for memory_patience nothing could make room but inserts: no
// answer is kept, and the tables that items leave are empty, or their samples wait for more items.
class InsertHandler {
 public:
  struct Options {
    std::string server;             // for errors: "replay/0"
    uint64_t incarnation = 0;       // of the server
    uint64_t max_memory_bytes = 0;  // the largest number of bytes of chunks; 0: no limit
    absl::Duration memory_patience = absl::Seconds(5);
    std::function<bool()> answers_keep_items;       // SampleHandler::KeepsItems
    uint64_t max_item_bytes = uint64_t{512} << 20;  // of an item's values: a response must hold them
    size_t max_header_bytes = 64 << 20;
    Clock* clock = nullptr;
  };
  // All arguments must outlive the handler.
  InsertHandler(Options options, ServedTables* tables, ParkedCalls* parked, MemoryMeter* memory)
      : options_(std::move(options)), tables_(*tables), parked_(*parked), memory_(*memory) {}

  // Does not block. Finishes the call, now or later.
  void Handle(std::shared_ptr<rpc::ServerCall> call);
  // Ends the requests that wait for memory, and refuses those that would have to, with Unavailable.
  // Idempotent.
  void Stop();

  // Returns the number of requests that wait for memory.
  uint64_t memory_waits() const;
  // Returns the number of requests that were refused because of max_memory_bytes.
  uint64_t memory_refusals() const { return memory_refusals_; }

 private:
  // A request's turn at the memory.
  enum class Turn {
    kFirst,   // it has not waited: it is placed behind those that wait
    kWaited,  // it was the first of those that wait, and is so again if there is no memory
    kLast,    // likewise, but refused if there is no memory
  };
  // A request that waits for memory.
  struct MemoryWait {
    std::shared_ptr<rpc::ServerCall> call;
    std::shared_ptr<ParkedCalls::Entry> parked;
    uint64_t bytes = 0;  // of its new chunks
  };
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

  // Handles a request.
  void Process(const std::shared_ptr<rpc::ServerCall>& call, Turn turn);
  // Lets a request wait for memory, or finishes it: with DeadlineExceeded if it has `no_wait`.
  void WaitForMemory(const std::shared_ptr<rpc::ServerCall>& call, uint64_t bytes, bool no_wait, Turn turn);
  // Processes the requests that wait for memory, as far as there is some.
  void RunMemoryWaits();
  // Returns whether memory may become free without inserts.
  bool MemoryMayBecomeFree() const;
  // Notes whether memory may become free. Returns whether the first request that waits shall be refused
  // because it could not for memory_patience. Logs a warning while requests wait for long.
  bool RefusesFirst(bool may_become_free) ABSL_EXCLUSIVE_LOCKS_REQUIRED(memory_mutex_);
  // Takes a call out of those that wait for memory. Returns nullptr if it is not among them.
  std::shared_ptr<rpc::ServerCall> TakeMemoryWait(const rpc::ServerCall* call);
  absl::Status OutOfMemory(uint64_t bytes) const;
  std::shared_ptr<Writer> FindWriter(const std::string& name);
  // Moves the chunks of writers that have sent nothing for a while to `dropped`; they send them again.
  void DropIdleChunks(absl::Time now, std::vector<Writer::Chunks>* dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the items of a request. Sets `*short_of` to the bytes of its new chunks if there is no memory for
  // them, or if other requests wait for memory and this one `queues` behind them; then none of them is taken.
  absl::StatusOr<std::vector<NewItem>> Parse(const v1::ReplayInsertRequest& request, const Bytes& payload,
                                             bool queues, Writer* writer, uint64_t* short_of)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer->mutex);
  // InvalidArgument: the item is larger than max_item_bytes, so that no response could hold it.
  absl::Status CheckSize(const Trajectory& trajectory) const;
  absl::Status TakeSignature(const v1::ReplayInsertRequest& request, Writer* writer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer->mutex);
  absl::Status TakeChunks(const v1::ReplayInsertRequest& request, const Bytes& payload, bool queues,
                          Writer* writer, uint64_t* short_of) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer->mutex);
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
  std::atomic<uint64_t> memory_refusals_{0};
  mutable absl::Mutex memory_mutex_;
  std::deque<MemoryWait> memory_waits_ ABSL_GUARDED_BY(memory_mutex_);
  bool polls_ ABSL_GUARDED_BY(memory_mutex_) = false;  // RunMemoryWaits is scheduled, or runs
  bool stopped_ ABSL_GUARDED_BY(memory_mutex_) = false;
  // Since when no request that waits has found memory, and since when none could become free.
  absl::Time short_since_ ABSL_GUARDED_BY(memory_mutex_) = absl::InfiniteFuture();
  absl::Time stuck_since_ ABSL_GUARDED_BY(memory_mutex_) = absl::InfiniteFuture();
  absl::Time last_short_ ABSL_GUARDED_BY(memory_mutex_) = absl::InfinitePast();
  absl::Time warned_ ABSL_GUARDED_BY(memory_mutex_) = absl::InfinitePast();
  rpc::TimerQueue polling_;  // runs RunMemoryWaits while requests wait
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_SERVER_INSERT_HANDLER_H_
