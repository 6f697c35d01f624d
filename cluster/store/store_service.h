// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_STORE_SERVICE_H_
#define TANDEM_CLUSTER_STORE_STORE_SERVICE_H_

// The RPC service tandem.v1.Store (proto/tandem/v1/store.proto) over a MemoryStore and a Membership. A
// waiting Get, Wait, MultiGet or Pop is a deferred call, not a blocked thread.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "base/clock.h"
#include "cluster/membership/membership.h"
#include "cluster/store/memory_store.h"
#include "cluster/store/store_disk.h"
#include "rpc/service.h"
#include "tandem/v1/store.pb.h"

namespace tandem::cluster {

// Thread-safe. `store`, `membership` and `disk` are borrowed. With a disk, a response leaves once everything
// is on the disk that was changed before: what a client has seen or was told outlives the machine's death.
// The Service that MakeService returns refers to this
// object, which must outlive the server. Owns one thread, which ends waits whose time is up. The limits of
// `store` bound its deferred calls, too.
class StoreService {
 public:
  StoreService(MemoryStore* store, Membership* membership, StoreDisk* disk = nullptr);
  ~StoreService();

  // Returns the service, which refuses changes to the processes of members that have been replaced. A gate
  // before it decides who calls (StoreServer::Start).
  rpc::Service MakeService();
  // Responds with Aborted to all deferred calls and to all later waits, so that a server can shut down at
  // once. Idempotent.
  void StopWaits();

 private:
  // Returns a reply that waits for the disk, then calls `reply`.
  template <typename Response>
  rpc::Reply<Response> Synced(rpc::Reply<Response> reply);
  // Makes the handler of a method that changes the keys of its request, for callers that own them
  // (key_owners.h).
  template <typename Request, typename Response>
  rpc::Handler BindChange(absl::StatusOr<Response> (StoreService::*method)(const Request&));
  // Make the handler of a method of the store that responds at once, or of one that responds through its
  // `reply`.
  template <typename Request, typename Response>
  rpc::Handler Bind(absl::StatusOr<Response> (StoreService::*method)(const Request&));
  template <typename Request, typename Response>
  rpc::Handler Bind(void (StoreService::*method)(std::shared_ptr<rpc::ServerCall>, Request,
                                                 rpc::Reply<Response>));

  // The methods of the service; store.proto describes them.
  absl::StatusOr<tandem::v1::StoreSetResponse> Set(const tandem::v1::StoreSetRequest& request);
  void Get(std::shared_ptr<rpc::ServerCall> call, tandem::v1::StoreGetRequest request,
           rpc::Reply<tandem::v1::StoreGetResponse> reply);
  absl::StatusOr<tandem::v1::StoreAddResponse> Add(const tandem::v1::StoreAddRequest& request);
  absl::StatusOr<tandem::v1::StoreCompareSetResponse> CompareSet(
      const tandem::v1::StoreCompareSetRequest& request);
  void Wait(std::shared_ptr<rpc::ServerCall> call, tandem::v1::StoreWaitRequest request,
            rpc::Reply<tandem::v1::StoreWaitResponse> reply);
  absl::StatusOr<tandem::v1::StoreDeleteResponse> Delete(const tandem::v1::StoreDeleteRequest& request);
  absl::StatusOr<tandem::v1::StoreListResponse> List(const tandem::v1::StoreListRequest& request);
  absl::StatusOr<tandem::v1::StoreCheckResponse> Check(const tandem::v1::StoreCheckRequest& request);
  absl::StatusOr<tandem::v1::StoreAppendResponse> Append(const tandem::v1::StoreAppendRequest& request);
  void MultiGet(std::shared_ptr<rpc::ServerCall> call, tandem::v1::StoreMultiGetRequest request,
                rpc::Reply<tandem::v1::StoreMultiGetResponse> reply);
  absl::StatusOr<tandem::v1::StoreMultiSetResponse> MultiSet(const tandem::v1::StoreMultiSetRequest& request);
  absl::StatusOr<tandem::v1::StoreNumKeysResponse> NumKeys(const tandem::v1::StoreNumKeysRequest&);
  absl::StatusOr<tandem::v1::StorePushResponse> Push(const tandem::v1::StorePushRequest& request);
  absl::StatusOr<tandem::v1::StoreLengthResponse> Length(const tandem::v1::StoreLengthRequest& request);
  absl::StatusOr<tandem::v1::JoinResponse> Join(const tandem::v1::JoinRequest& request);
  absl::StatusOr<tandem::v1::EndLifeResponse> EndLife(const tandem::v1::EndLifeRequest& request);
  void Heartbeat(std::shared_ptr<rpc::ServerCall> call, tandem::v1::HeartbeatRequest request,
                 rpc::Reply<tandem::v1::HeartbeatResponse> reply);
  absl::StatusOr<tandem::v1::MembersResponse> Members(const tandem::v1::MembersRequest&);
  absl::StatusOr<tandem::v1::EndJobResponse> EndJob(const tandem::v1::EndJobRequest& request);

  // Refuses a call as MakeService says, or runs `handler`.
  rpc::Handler Guard(rpc::Handler handler);

  struct DeferredCall {
    absl::Time deadline;
    size_t bytes = 0;   // of the keys that it names
    uint64_t wait = 0;  // the store's number, 0 until it is known
    std::function<void(bool stopped)> expire;
  };
  // Runs exactly one of these, once: `ready(values of the first `wanted` keys)` when all keys exist;
  // `expire(missing)` when `timeout_ms` or the call's own deadline is over; `refuse` when the service stops.
  void Defer(const rpc::ServerCall& call, std::vector<std::string> keys, size_t wanted, int64_t timeout_ms,
             std::function<void(std::vector<std::string>)> ready,
             std::function<void(std::vector<std::string>)> expire, std::function<void(absl::Status)> refuse);
  // Registers `expire`, to be run at `deadline`, of a call that names `bytes` bytes of keys. Returns a token
  // for Take. Aborted if the service has stopped, ResourceExhausted beyond the store's limits.
  absl::StatusOr<uint64_t> DeferUntil(absl::Time deadline, size_t bytes,
                                      std::function<void(bool stopped)> expire);
  // Removes the deferred call of this token; returns false if it is already removed.
  bool Take(uint64_t token, DeferredCall* deferred);
  void RunTimer();

  // Pops are deferred separately: a repeated call joins the one that still waits, so that one item answers
  // both.
  using PopReply = rpc::Reply<tandem::v1::StorePopResponse>;
  struct DeferredPop {
    std::string queue;
    std::string request_id;
    std::vector<std::shared_ptr<rpc::ServerCall>> calls;  // the repeats of one request
    std::vector<PopReply> replies;
    uint64_t wait = 0;   // the store's number
    uint64_t token = 0;  // of the deadline
  };
  void Pop(std::shared_ptr<rpc::ServerCall> call, tandem::v1::StorePopRequest request, PopReply reply);
  // Moves the calls that nobody waits for any more, with their replies, to `dropped`.
  static void DropCancelled(DeferredPop* pop, DeferredPop* dropped);
  // Takes an item for pops_[id] or, if there is none, starts to wait for one. Sets `*item` if there was one.
  // Errors are those of MemoryStore::StartPop.
  absl::Status AskForItem(uint64_t id, absl::optional<std::string>* item)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(pop_mutex_);
  // Responds with the item that was chosen for pops_[id].
  void FinishPop(uint64_t id, std::string item);
  // Ends pops_[id] without an item: its time is up, or the service stops.
  void ExpirePop(uint64_t id, bool stopped);

  MemoryStore* const store_;
  Membership* const membership_;
  StoreDisk* const disk_;  // nullptr: the store is in memory only

  // Lock order: pop_mutex_, mutex_, the store's lock. Callbacks that a change triggers (responses to other
  // calls) run under none of them.
  absl::Mutex pop_mutex_;
  uint64_t next_pop_ ABSL_GUARDED_BY(pop_mutex_) = 1;
  absl::flat_hash_map<uint64_t, DeferredPop> pops_ ABSL_GUARDED_BY(pop_mutex_);
  absl::flat_hash_map<std::string, uint64_t> pop_by_request_ ABSL_GUARDED_BY(pop_mutex_);

  absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(pop_mutex_);  // not held while calling the store
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool timer_changed_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_token_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<uint64_t, DeferredCall> deferred_ ABSL_GUARDED_BY(mutex_);
  size_t deferred_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // the sum of their `bytes`
  std::multimap<absl::Time, uint64_t> deadlines_ ABSL_GUARDED_BY(mutex_);

  std::thread timer_;
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_STORE_SERVICE_H_
