// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_ETCD_WATCHER_H_
#define TANDEM_CLUSTER_STORE_ETCD_WATCHER_H_

// Wakes threads that wait for keys of an etcd store, through one watch on all keys of the job.

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cluster/store/etcd/etcd_client.h"

namespace tandem::cluster {

// Thread-safe.
class EtcdWatcher {
 public:
  // `client` is borrowed. Watches keys that begin with `prefix`.
  EtcdWatcher(EtcdClient* client, std::string prefix);
  ~EtcdWatcher();

  // Makes all calls of Await return now.
  void WakeAll();

  // One waiting thread. Construct it, read the keys, then call Await: no change after the construction is
  // missed. While the watch is broken, or not yet established, Await returns from time to time, so that the
  // caller reads the keys again.
  class Waiter {
   public:
    // `keys` are names in etcd. With `prefix`, any key that begins with one of them counts.
    Waiter(EtcdWatcher* watcher, std::vector<std::string> keys, bool prefix);
    ~Waiter();
    // Blocks until one of the keys has changed, a change may have been missed, or `deadline` is reached.
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
  bool ended_ ABSL_GUARDED_BY(mutex_) = true;  // there is no watch; the next wait makes one
  std::set<Waiter*> waiters_ ABSL_GUARDED_BY(mutex_);
};

// Returns the end of the etcd range that contains all keys that begin with `prefix`.
std::string EtcdRangeEnd(std::string prefix);

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_ETCD_WATCHER_H_
