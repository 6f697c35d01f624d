#ifndef TANDEM_COLLECTIVES_STORE_ETCD_WATCHER_H_
#define TANDEM_COLLECTIVES_STORE_ETCD_WATCHER_H_

// Wakes those who wait for keys of an etcd store: one watch on all keys of the job, shared by all who wait.

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collectives/store/etcd/etcd_client.h"

namespace tandem::collectives {

// Thread-safe.
class EtcdWatcher {
 public:
  // `client` is borrowed. Watches keys that begin with `prefix`.
  EtcdWatcher(EtcdClient* client, std::string prefix);
  ~EtcdWatcher();

  // One who waits. Register, look at the keys, then Await: a change after Register is not missed. Where the
  // watch is broken, or not yet made, Await returns now and then, to look again.
  class Waiter {
   public:
    // Keys as etcd has them; with `prefix`, any that begins with one of them.
    Waiter(EtcdWatcher* watcher, std::vector<std::string> keys, bool prefix);
    ~Waiter();
    // Until one of the keys has changed, something may have been missed, or `deadline`.
    void Await(absl::Time deadline);

   private:
    friend class EtcdWatcher;
    EtcdWatcher* const watcher_;
    const std::vector<std::string> keys_;  // sorted
    const bool prefix_;
    bool changed_ = false;  // guarded by watcher_->mutex_
  };

 private:
  void EnsureWatch();
  void OnResponse(const std::string& response);
  void OnEnd();

  EtcdClient* const client_;
  const std::string prefix_;
  absl::Mutex open_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::unique_ptr<rpc::ResponseStream> stream_ ABSL_GUARDED_BY(open_mutex_);
  absl::Time next_open_ ABSL_GUARDED_BY(open_mutex_) = absl::InfinitePast();
  absl::Mutex mutex_;
  bool live_ ABSL_GUARDED_BY(mutex_) = false;  // etcd has confirmed the watch
  bool ended_ ABSL_GUARDED_BY(mutex_) = true;  // there is none: make one
  std::set<Waiter*> waiters_ ABSL_GUARDED_BY(mutex_);
};

// The end of the range of keys that begin with `prefix`, as etcd wants it.
std::string EtcdRangeEnd(std::string prefix);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_STORE_ETCD_WATCHER_H_
