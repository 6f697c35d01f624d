// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_REQUEST_HANDLER_H_
#define TANDEM_PS_SERVER_REQUEST_HANDLER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/buffer_pool.h"
#include "base/bytes.h"
#include "base/longest_time.h"
#include "google/protobuf/message_lite.h"
#include "ps/log/change_log.h"
#include "ps/server/gate.h"
#include "ps/server/parameter_server.h"
#include "ps/server/push_fence.h"
#include "ps/server/request/bind.h"
#include "ps/server/request/response_writer.h"
#include "ps/server/request/split_push.h"
#include "ps/server/table/server_table.h"
#include "ps/server/table/table_registry.h"
#include "ps/server/task_executor.h"
#include "rpc/deferred_calls.h"
#include "rpc/service.h"

namespace tandem::v1 {
class PushFenceState;
}

namespace tandem::ps {

class CopyRole;

// Returns PermissionDenied, naming `what` the caller wants, if the caller says that it is another worker than
// its request does. A caller that does not say which process of the job it is may speak for any worker.
absl::Status CheckWorker(const rpc::Caller& caller, uint32_t worker, absl::string_view what);

// Runs pulls and pushes: parses them (request/parse.h), binds them to tables (request/bind.h), defers pulls
// that must wait for other workers, applies pushes exactly once, and responds (request/response_writer.h).
//
// Thread-safe. Lock order: push_mutex_, then the registry's mutex, a table's or the log's, then that of the
// table's RowStalenessMeter; no other lock is taken under these. The gate's mutex is held alone.
class RequestHandler {
 public:
  using Waiters = std::vector<ServerTable::Waiter>;

  // `tables`, `buffers` and `stopping` must outlive the handler. `stopping` becomes true before Stop is
  // called.
  RequestHandler(const ParameterServerOptions& options, TableRegistry* tables, BufferPool* buffers,
                 const std::atomic<bool>* stopping);

  // Makes pushes durable: they are appended to `log`, which must outlive the handler, before they are
  // applied, and acknowledged when their records are durable. Must be called before the server takes pushes
  // and other changes; it may answer pulls already.
  void SetLog(ChangeLog* log) { log_.store(log, std::memory_order_release); }
  // Says whether clients may change tables; initially true. If not, pushes and StartPushEpoch fail with
  // Unavailable, also those that have arrived before: once this call has returned, they append nothing to the
  // log.
  void SetTakesChanges(bool takes_changes);
  absl::Status CheckTakesChanges() const;
  // Does the same as SetTakesChanges(false), and blocks until the pushes under way are applied. Code that
  // logs other changes asks CheckTakesChanges first, under a lock that the caller of EndChanges takes
  // afterwards, or runs on the thread of that caller.
  void EndChanges();
  // Finishes all deferred calls with Unavailable. After EndChanges no call is deferred for long.
  void FinishDeferred() { deferred_.ExpireAll(); }
  // Returns the log, or nullptr if there is none.
  ChangeLog* log() const { return log_.load(std::memory_order_acquire); }
  // Appends a change of the tables other than a push, if there is a log. A change whose order among the
  // pushes matters must be made and logged within BetweenPushes.
  void LogChange(RecordKind kind, const google::protobuf::MessageLite& body);
  // Calls `durable` once everything that was logged is durable, or at once if there is no log.
  void WhenDurable(ChangeLog::Durable durable);

  // Recovery: apply a push of the log again, without an answer; restore fences; repeat a StartPushEpoch.
  absl::Status ReplayPush(const Bytes& request, uint64_t log_position);
  v1::PushFenceState SaveFenceState();
  void RestoreFenceState(const v1::PushFenceState& state);
  void RepeatStartEpoch(uint32_t worker, uint64_t epoch, uint64_t token);

  // Handle the methods Pull and Push. Neither blocks. Finish the call, now or later.
  void HandlePull(std::shared_ptr<rpc::ServerCall> call);
  void HandlePush(std::shared_ptr<rpc::ServerCall> call);
  // Handles the method Pull at a copy that does not serve, because it is not the primary. Answers a read-only
  // pull that allows a lag if `role` permits it (CopyRole::CheckRead), and refuses others. Does not block.
  void HandlePullAtFollower(std::shared_ptr<rpc::ServerCall> call, CopyRole& role);

  // These two take a sequence of a worker, as a push does, for a call that writes rows. The caller asks
  // whether the sequence is new, writes, and takes the sequence if all rows were written: the client then
  // repeats a call that failed. At most one thread at a time may make such calls.
  //
  // Returns false if the sequence was taken before. Errors are those of PushFence::Check.
  absl::StatusOr<bool> IsNewSequence(uint32_t worker, uint64_t epoch, uint64_t sequence);
  // Takes the sequence, unless a newer epoch of the worker has begun.
  void TakeSequence(uint32_t worker, uint64_t epoch, uint64_t sequence);

  // Implement ParameterServer::waiting_calls and SetWorkersThatLeft.
  size_t waiting_calls() const { return deferred_.size(); }
  void SetWorkersThatLeft(const std::set<uint32_t>& workers);

  // Runs `body` while no push is under way; pushes that arrive meanwhile are deferred. Afterwards runs the
  // pulls that `body` adds to `released`. Blocks until the pushes under way are done, and while
  // another thread's call runs.
  absl::Status BetweenPushes(absl::FunctionRef<absl::Status(Waiters* released)> body);
  // The same for a `body` that releases nothing; notes for how long pushes were held, and waited for.
  absl::Status BetweenPushes(LongestTime* longest, absl::FunctionRef<absl::Status()> body);
  // Does the same from its construction, which blocks likewise, to its destruction on the same thread. That
  // thread must not hold a lock for which a push may wait.
  class PushPause {
   public:
    explicit PushPause(RequestHandler* requests);
    PushPause(const PushPause&) = delete;
    PushPause& operator=(const PushPause&) = delete;
    ~PushPause();

   private:
    RequestHandler& requests_;
  };

  // Save and restore which pushes this server has taken (ps/server/push_fence.h), for checkpoints. To be
  // called within BetweenPushes. `same_servers`: the fences come from a checkpoint of the same set of
  // servers; otherwise only the workers' epochs are restored.
  std::vector<v1::WorkerFence> SaveFences();
  void RestoreFences(const std::vector<v1::WorkerFence>& fences, bool same_servers);

  // Handles the method StartPushEpoch. If there is a log, the caller must respond when it is durable.
  absl::StatusOr<v1::StartPushEpochResponse> StartPushEpoch(const v1::StartPushEpochRequest& request);

  // Return the number of deferred calls and the memory of their requests, in bytes.
  size_t deferred_calls() const { return deferred_.size(); }
  uint64_t deferred_bytes() const { return deferred_bytes_.load(std::memory_order_relaxed); }

  // Finishes all deferred calls with Cancelled, those to a durable server with Unavailable, and joins the
  // threads. Idempotent.
  void Stop();

 private:
  using TimePoint = TableCounters::Clock::time_point;

  // A deferred pull.
  struct PendingPull {
    std::shared_ptr<rpc::ServerCall> call;
    BoundRequest request;
    TimePoint arrived;
    uint64_t ticket = 0;
    size_t next = 0;  // the tables of the slices before this one let the pull run
  };

  // Asks the tables one after the other whether the pull may run; responds when all of them agree. A table
  // that does not agree yet calls this function again.
  void ContinuePull(const std::shared_ptr<PendingPull>& pull);
  void ExpirePull(const PendingPull& pull, rpc::DeferredCalls::Reason reason);

  // A push and, on a durable server, its space in the log.
  struct PendingPush {
    std::shared_ptr<rpc::ServerCall> call;
    TimePoint arrived;
    std::shared_ptr<ChangeLog::Space> log_space;
  };

  // The error of calls that the end of the server interrupts. Clients repeat calls to a durable server, which
  // will come back.
  absl::Status Stopping() const;
  void StartPush(PendingPush push);
  // Defers a push until the log has space for it.
  void AwaitLogSpace(ChangeLog& log, PendingPush push);
  // Defers a push that met the closed gate until it opens.
  void DeferPush(PendingPush push);
  // Runs a push that has entered the gate, and leaves the gate.
  void RunPush(PendingPush push);
  absl::Status ApplyPush(PendingPush* push, Waiters* released);
  // Checks the push against the fences and the tables' clocks, then queues its parts, all or none of them.
  // Moves the queued parts out of `push`. Returns false if the push is a duplicate. On server 0 tells
  // `response` the positions in GBA tables.
  // Appends the push to the log, if there is one.
  absl::StatusOr<bool> Admit(const BoundRequest& request, PendingPush* pending, SplitPush* push,
                             const std::shared_ptr<PushResponder>& response);

  // Runs the pulls that tables have released: the last one on this thread, the others on the executor.
  void Dispatch(Waiters released);
  // ResourceExhausted: what waits would hold more memory than it may, with `more` bytes added.
  absl::Status CheckDeferredBytes(uint64_t more) const;
  // Returns when to stop deferring a call: a moment before its caller gives up, so that the caller still gets
  // the error that names the missing workers.
  absl::Time ExpiryTime(const rpc::ServerCall& call) const;

  const ParameterServerOptions& options_;
  TableRegistry& tables_;
  BufferPool& buffers_;
  const std::atomic<bool>& stopping_;
  std::atomic<ChangeLog*> log_{nullptr};     // nullptr: pushes are not made durable
  std::atomic<bool> takes_changes_{true};    // set to false under push_mutex_
  std::atomic<uint64_t> deferred_bytes_{0};  // of the requests in deferred_

  // Held from a push's checks until its parts are queued, so that pushes are accepted one at a time.
  absl::Mutex push_mutex_;
  PushFence fences_ ABSL_GUARDED_BY(push_mutex_);

  absl::Mutex between_pushes_mutex_;  // held by the thread that closes the gate; acquired before all others
  Gate gate_;
  rpc::DeferredCalls deferred_;
  TaskExecutor executor_;  // runs deferred pulls, and pushes that met the closed gate
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_REQUEST_HANDLER_H_
