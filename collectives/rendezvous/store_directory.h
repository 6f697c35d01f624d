#ifndef TANDEM_COLLECTIVES_RENDEZVOUS_STORE_DIRECTORY_H_
#define TANDEM_COLLECTIVES_RENDEZVOUS_STORE_DIRECTORY_H_

// The workers that call each other's remote functions, by name, in a job's store.
//
// Under PREFIX/member/NAME stands "INCARNATION BEAT ADDRESS"; its owner counts BEAT up several times in a
// lease. Whoever sees it stand still for a lease, by its own clock, takes the member for dead and blanks the
// record. A member that finds its record blank was only silent, and writes it again. PREFIX/changes counts
// joins and leaves; PREFIX/change/N comes into being with the Nth, so that everybody hears of it without
// asking over and over.

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collectives/store/store.h"
#include "rpc/remote/directory.h"

namespace tandem::collectives {

struct StoreDirectoryOptions {
  std::string prefix = "rpc";
  absl::Duration lease = absl::Seconds(5);
};

// Thread-safe. Its watchers run on a thread of its own. While the store cannot be reached the members stay as
// they were.
class StoreDirectory : public rpc::remote::Directory {
 public:
  // `store` outlives it. Reads the members once; the store's errors.
  static absl::StatusOr<std::unique_ptr<StoreDirectory>> Open(Store* store,
                                                              const StoreDirectoryOptions& options = {});
  // What was registered here is left to its lease.
  ~StoreDirectory() override;

  // Where a record of this name stands, waits at most a lease to see whether its owner lives.
  absl::Status Register(const rpc::remote::Member& member) override;
  absl::Status Unregister(const rpc::remote::Member& member) override;

 private:
  struct Own {
    rpc::remote::Member member;
    int64_t beat = 0;
    std::string record;  // as it was last written
  };
  struct Seen {
    std::string record;
    absl::Time since;  // it stands like this, by our clock
  };

  StoreDirectory(Store* store, const StoreDirectoryOptions& options) : store_(store), options_(options) {}
  void Run();
  // Counts our beats up.
  void Renew();
  // Reads all records, publishes who lives.
  absl::Status Refresh();
  absl::Status Announce();
  std::string KeyOf(const std::string& name) const;

  Store* const store_;
  const StoreDirectoryOptions options_;
  std::map<std::string, Seen> seen_;  // by key; of the thread
  int64_t changes_ = 0;               // the same
  absl::Time last_refresh_;           // the same

  absl::Mutex mutex_;
  std::map<std::string, Own> own_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_RENDEZVOUS_STORE_DIRECTORY_H_
