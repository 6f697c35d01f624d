// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_RENDEZVOUS_STORE_RENDEZVOUS_H_
#define TANDEM_CLUSTER_RENDEZVOUS_STORE_RENDEZVOUS_H_

// The rendezvous over a Store. Its keys, under "rdzv/<run_id>/":
//
//   state        the document (state.h), changed by compare-and-set only
//   changed/<v>  created after version v of the document was written; threads that wait for a change wait
//                for this key. It is only a hint: if the writer died before it created the key, the others
//                read the document again within a fraction of the lease
//   beat/<id>    node <id> beats here while it lives (Store::Beat)

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "cluster/rendezvous/rendezvous.h"
#include "cluster/rendezvous/state.h"
#include "cluster/store/prefix_store.h"

namespace tandem::cluster {

// Thread-safe.
class StoreRendezvous final : public Rendezvous {
 public:
  StoreRendezvous(Store* store, const RendezvousOptions& options, Clock* clock);
  ~StoreRendezvous() override;

  absl::StatusOr<Round> Join(const Node& node) override;
  absl::StatusOr<RendezvousEvent> WaitForEvent(int64_t epoch, absl::Time deadline) override;
  absl::Status RequestRestart(int64_t epoch, absl::string_view reason, int exit_code) override;
  absl::Status Finish(int64_t epoch) override;
  absl::Status Close(bool failed, absl::string_view reason, int exit_code) override;
  absl::Status Stop(absl::string_view reason, int exit_code) override;
  absl::Status Leave() override;
  bool MayStart(int64_t epoch, int restarts) override;
  void OnLease(std::function<void(absl::Time until)> on_lease) override;
  absl::Status RecordRestarts(int64_t epoch, int restarts) override;

 private:
  // Another node's counter, and since when it has not changed, by this node's clock.
  struct Observed {
    std::string beat;
    absl::Time since;
  };

  // Reads the document, applies `change` and writes the result; repeats this if another node wrote in
  // between. Writes nothing if `change` changes nothing. Returns the document as it is then. Creates the
  // document only if `create`.
  absl::StatusOr<RendezvousState> Update(bool create,
                                         const std::function<absl::Status(RendezvousState*)>& change);
  // Parses the document; FailedPrecondition if it belongs to another job than the one seen before.
  absl::StatusOr<RendezvousState> Parse(const std::string& text);
  void Publish(const RendezvousState& state);
  absl::StatusOr<RendezvousState> Read();

  void Run();
  // One iteration of the thread: sends a heartbeat, reads the document and the counters, and applies changes
  // that are due.
  absl::Status Step();
  absl::Status SendHeartbeat();
  void TellLease(absl::Time until);
  absl::Status Observe(const RendezvousState& state);
  absl::Status Act(const RendezvousState& state);
  // Blocks until the document changes or the thread has something to do.
  void AwaitChange();
  absl::StatusOr<Round> AwaitRound(const Node& node, int64_t leaves);
  absl::Status AwaitRank(const Node& node, int64_t leaves);
  // Returns the node's counter; "" while it has none.
  absl::StatusOr<std::string> HeartbeatOf(absl::string_view id);
  absl::Status StoreLost(absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string id() const;

  const RendezvousOptions options_;
  Clock* const clock_;
  PrefixStore store_;

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string id_ ABSL_GUARDED_BY(mutex_);         // of the node that has joined and not left
  int64_t leaves_ ABSL_GUARDED_BY(mutex_) = 0;     // number of Leave calls: each ends a Join that waits
  RendezvousState state_ ABSL_GUARDED_BY(mutex_);  // the newest that was seen
  uint64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t joined_epoch_ ABSL_GUARDED_BY(mutex_) = 0;  // of the last round that Join returned
  std::string joined_id_ ABSL_GUARDED_BY(mutex_);     // this node's id in that round
  // The document that Join or WaitForEvent has returned last, to tell which nodes have changed since.
  RendezvousState told_ ABSL_GUARDED_BY(mutex_);
  absl::Time contact_ ABSL_GUARDED_BY(mutex_);  // when the last call that the store answered was sent
  // When the last successful read of the document began.
  absl::Time read_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Status store_error_ ABSL_GUARDED_BY(mutex_);  // of the last call that failed
  absl::Time gathering_since_ ABSL_GUARDED_BY(mutex_);
  // Since when enough nodes have come; infinite future if they have not.
  absl::Time enough_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::map<std::string, Observed> observed_ ABSL_GUARDED_BY(mutex_);
  absl::Time counters_read_at_ ABSL_GUARDED_BY(mutex_) =
      absl::InfinitePast();  // when the counters were last read
  // Used by the thread only.
  absl::Time next_heartbeat_ = absl::InfinitePast();
  int64_t acted_on_ = 0;  // the document's version

  absl::Mutex lease_mutex_ ABSL_ACQUIRED_AFTER(mutex_);
  std::function<void(absl::Time until)> on_lease_ ABSL_GUARDED_BY(lease_mutex_);
  bool lease_over_ ABSL_GUARDED_BY(lease_mutex_) = false;  // the job is closed

  absl::Mutex join_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // one Join at a time
  std::thread thread_;
};

// Lists the ids of the runs that have a rendezvous in `store`, sorted. For tools that inspect a job from
// outside.
absl::StatusOr<std::vector<std::string>> ListRendezvous(Store* store);
// Returns a run's document. NotFound if no node has joined the run there, or if the store has forgotten it.
absl::StatusOr<RendezvousState> ReadRendezvous(Store* store, const std::string& run_id);

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_RENDEZVOUS_STORE_RENDEZVOUS_H_
