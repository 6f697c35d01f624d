#ifndef TANDEM_PS_SERVER_SERVER_CORE_H_
#define TANDEM_PS_SERVER_SERVER_CORE_H_

// The inside of ParameterServer: tables, fences, what waits, and the handlers.
//
// Lock order: push_mutex_, then tables_mutex_ or a table's; under either no other. The gate's is held alone.

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
#include "ps/checkpoint/format.h"
#include "ps/server/gate.h"
#include "ps/server/helper_threads.h"
#include "ps/server/parameter_server.h"
#include "ps/server/push_fence.h"
#include "ps/server/request/wire.h"
#include "ps/server/table/server_table.h"
#include "ps/server/table/statistics.h"
#include "ps/server/task_executor.h"
#include "ps/shard_map.h"
#include "rpc/deferred_calls.h"
#include "rpc/service.h"

namespace tandem::ps {

class ParameterServer::Impl {
 public:
  explicit Impl(const ParameterServerOptions& options);
  ~Impl() { Stop(); }

  rpc::Service MakeService();
  void Stop();
  size_t parked_calls() const { return deferred_.size(); }

 private:
  using Waiters = std::vector<ServerTable::Waiter>;

  // A pull until it is answered.
  struct PendingPull {
    std::shared_ptr<rpc::ServerCall> call;
    ParsedRequest request;
    TableCounters::Clock::time_point arrived;
    uint64_t ticket = 0;
    size_t next = 0;  // slices before this one were ready
  };

  // parameter_server.cc: tables.
  absl::Status CreateTable(const v1::TableConfig& config);
  absl::StatusOr<std::shared_ptr<ServerTable>> FindTable(absl::string_view name) const;
  std::vector<std::shared_ptr<ServerTable>> AllTables() const;
  v1::ServerInfo Info() const;
  v1::ServerStatistics Statistics() const;
  absl::Status SetUpdateMode(const v1::SetUpdateModeRequest& request);
  // FailedPrecondition when the table needs a disk that this server has not.
  absl::StatusOr<std::unique_ptr<TableStorage>> NewStorage(const v1::TableConfig& config) const;

  // requests.cc: pulls and pushes.
  void HandlePull(std::shared_ptr<rpc::ServerCall> call);
  void ContinuePull(const std::shared_ptr<PendingPull>& pull);
  void ExpirePull(const PendingPull& pull, rpc::DeferredCalls::Reason reason);
  void RespondToPull(PendingPull& pull);  // its request may be moved on
  void HandlePush(std::shared_ptr<rpc::ServerCall> call, TableCounters::Clock::time_point arrived);
  void DeferPush(std::shared_ptr<rpc::ServerCall> call, TableCounters::Clock::time_point arrived);
  void RunPush(const std::shared_ptr<rpc::ServerCall>& call, TableCounters::Clock::time_point arrived);
  // Checks the push against fences and clocks and queues its parts, all or none. False: a duplicate. Server 0
  // adds the places of GBA tables to `response`.
  absl::StatusOr<bool> Admit(const ParsedRequest& request, std::vector<TablePush> parts,
                             absl::Span<const std::shared_ptr<ServerTable>> tables,
                             v1::PushResponse* response);
  // One TablePush for each table of the push, in order of appearance.
  std::vector<TablePush> MakeParts(const std::shared_ptr<const ParsedRequest>& request,
                                   std::vector<std::shared_ptr<ServerTable>>* tables);
  void Dispatch(Waiters released);
  // OK unless what waits holds more memory than it may.
  absl::Status CheckParkedBytes(uint64_t more) const;
  absl::Time ExpiryTime(const rpc::ServerCall& call) const;
  WireContext Wire();

  // checkpoint_tasks.cc; on the background thread.
  absl::StatusOr<v1::SaveCheckpointResponse> SaveCheckpoint(const std::string& directory);
  absl::StatusOr<v1::LoadCheckpointResponse> LoadCheckpoint(const std::string& directory);
  absl::StatusOr<v1::LoadCheckpointResponse> LoadTables(const std::string& directory);
  absl::Status LoadRows(TableFileReader& file, const v1::TableConfig& config, TableStorage& storage);

  // Runs `body` while no push is under way; pushes that come meanwhile wait. Background thread only.
  absl::Status BetweenPushes(const std::function<absl::Status(Waiters* released)>& body);
  // A handler whose body runs on the background thread.
  template <typename Request, typename Response>
  rpc::Handler Background(std::function<absl::StatusOr<Response>(const Request&)> body);

  const ParameterServerOptions options_;
  const absl::Time started_;
  const ShardMap shard_map_;
  BufferPool buffers_;
  HelperThreads helpers_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> parked_bytes_{0};  // of calls in lot_

  mutable absl::Mutex tables_mutex_;
  std::map<std::string, std::shared_ptr<ServerTable>, std::less<>> tables_ ABSL_GUARDED_BY(tables_mutex_);

  // Held from a push's checks until its parts are queued, so that pushes are taken one by one.
  absl::Mutex push_mutex_;
  PushFence fences_ ABSL_GUARDED_BY(push_mutex_);

  Gate gate_;
  rpc::DeferredCalls deferred_;
  TaskExecutor executor_;    // pulls that had to wait, pushes that met a closed gate
  TaskExecutor background_;  // one thread: checkpoints, table creation, changes of mode
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_SERVER_CORE_H_
