// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_RENDEZVOUS_STORE_DIRECTORY_H_
#define TANDEM_CLUSTER_RENDEZVOUS_STORE_DIRECTORY_H_

// A directory of workers, for their remote calls, in the store of a job.
//
// The key PREFIX/member/NAME contains "INCARNATION BEAT ADDRESS". Its owner increments BEAT several times per
// lease. A process that sees no change for a lease, by its own clock, considers the member dead and sets the
// record to "". A member that finds its record empty was only silent, and writes it again. PREFIX/changes
// counts the changes of the directory. PREFIX/change/N is created with the N-th change, so that all processes
// can wait for it instead of polling.

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cluster/store/store.h"
#include "rpc/remote/directory.h"

namespace tandem::cluster {

struct StoreDirectoryOptions {
  // The prefix of the keys.
  std::string prefix = "rpc";
  // A member that is silent for this long is removed. At least 10 ms.
  absl::Duration lease = absl::Seconds(5);
};

// A directory in a store. Watchers run in a thread of the directory. While the store cannot be reached, the
// members stay as they are. Thread-safe.
class StoreDirectory : public rpc::remote::Directory {
 public:
  // Opens the directory and reads the members once. `store` must outlive it. Errors: those of the store;
  // InvalidArgument if the lease is too short.
  static absl::StatusOr<std::unique_ptr<StoreDirectory>> Open(Store* store,
                                                              const StoreDirectoryOptions& options = {});
  // Stops renewing. Members that are still registered here expire after their lease.
  ~StoreDirectory() override;

  // Registers a member. If there is a record of this name, blocks for up to a lease to find out whether its
  // owner is alive. AlreadyExists, naming the other's address, if it is. Errors of the store are returned
  // too.
  absl::Status Register(const rpc::remote::Member& member) override;
  absl::Status Unregister(const rpc::remote::Member& member) override;

 private:
  // A member that was registered here.
  struct RegisteredMember {
    rpc::remote::Member member;
    int64_t beat = 0;
    std::string record;  // as it was last written
  };
  // A record, and since when it has not changed.
  struct Seen {
    std::string record;
    // When this process first saw the record as it is, by its own clock.
    absl::Time since;
  };

  StoreDirectory(Store* store, const StoreDirectoryOptions& options) : store_(store), options_(options) {}
  // The loop of the directory's thread.
  void Run();
  // Increments the beats of the members that were registered here.
  void Renew();
  // Reads all records and publishes the living members.
  absl::Status Refresh();
  // Announces a change to all processes.
  absl::Status Announce();
  std::string KeyOf(const std::string& name) const;

  Store* const store_;
  const StoreDirectoryOptions options_;
  std::map<std::string, Seen> seen_;  // by key; used only by the thread
  int64_t changes_ = 0;               // used only by the thread
  absl::Time last_refresh_;           // used only by the thread

  absl::Mutex mutex_;
  std::map<std::string, RegisteredMember> registered_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_RENDEZVOUS_STORE_DIRECTORY_H_
