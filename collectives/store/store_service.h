#ifndef TANDEM_COLLECTIVES_STORE_STORE_SERVICE_H_
#define TANDEM_COLLECTIVES_STORE_STORE_SERVICE_H_

// tandem.v1.Store (proto/tandem/v1/store.proto) over a MemoryStore and a Membership. A waiting Get or Wait is
// a parked call, not a blocked thread.

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "collectives/membership/membership.h"
#include "collectives/store/memory_store.h"
#include "rpc/service.h"
#include "tandem/v1/store.pb.h"

namespace tandem::collectives {

// Thread-safe. `store` and `membership` are borrowed. The Service refers to this object, which must outlive
// whatever serves it. Owns one thread, which ends waits whose time is up.
class StoreService {
 public:
  StoreService(MemoryStore* store, Membership* membership);
  ~StoreService();

  rpc::Service MakeService();
  // Answers all parked calls, and all waits that come later, with Aborted, so that a server can shut down at
  // once. Idempotent.
  void StopWaits();

 private:
  struct Parked {
    absl::Time deadline;
    uint64_t wait = 0;  // the store's number, 0 until it is known
    std::function<void(bool stopped)> give_up;
  };
  // Runs `ready(value of keys[0])` when all keys exist, or `give_up(missing)` when `timeout_ms` or the call's
  // own deadline is over, or `refuse` when the service stops: exactly one of them, once.
  void Park(const rpc::ServerCall& call, std::vector<std::string> keys, int64_t timeout_ms,
            std::function<void(std::string)> ready, std::function<void(std::vector<std::string>)> give_up,
            std::function<void(absl::Status)> refuse);
  // Takes the parked call out; false if somebody else has.
  bool Take(uint64_t token, Parked* parked);
  void RunTimer();

  // Applies `body` once per request id: a repeat gets the first answer.
  absl::StatusOr<std::string> Once(const std::string& request_id,
                                   const std::function<absl::StatusOr<std::string>()>& body);

  MemoryStore* const store_;
  Membership* const membership_;

  absl::Mutex mutex_;  // not held while calling the store or a call's reply
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool timer_changed_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_token_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<uint64_t, Parked> parked_ ABSL_GUARDED_BY(mutex_);
  std::multimap<absl::Time, uint64_t> deadlines_ ABSL_GUARDED_BY(mutex_);

  // Answers that may have been lost on their way, oldest first. A client repeats a call within its time-out,
  // so a bounded memory suffices.
  static constexpr size_t kRememberedAnswers = 16384;
  absl::Mutex once_mutex_;
  absl::flat_hash_map<std::string, std::string> answers_ ABSL_GUARDED_BY(once_mutex_);
  std::deque<std::string> answer_order_ ABSL_GUARDED_BY(once_mutex_);

  std::thread timer_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_STORE_STORE_SERVICE_H_
