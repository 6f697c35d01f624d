// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_DIRECTORY_H_
#define TANDEM_RPC_REMOTE_DIRECTORY_H_

// A directory of workers: their names, and the addresses at which they listen. Implementations:
// MemoryDirectory below for a single process (tests), and collectives/rendezvous/store_directory.h on a job's
// store.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem::rpc::remote {

// A worker in the directory.
struct Member {
  std::string name;     // "worker/0"
  std::string address;  // "10.0.0.2:4711" or "unix:/path", as other workers reach it
  // A random number other than 0 that tells this process from earlier ones of the same name.
  uint64_t incarnation = 0;

  friend bool operator==(const Member&, const Member&) = default;
};

// A directory of the living members. A member is in it from Register until it unregisters or its lease runs
// out. Thread-safe.
class Directory {
 public:
  using Members = std::map<std::string, Member>;  // by name
  using Watcher = std::function<void(const Members&)>;
  virtual ~Directory() = default;

  // Adds a member. The directory renews its lease until Unregister or until the directory is destroyed.
  // AlreadyExists, naming the other's address: a living member has this name.
  virtual absl::Status Register(const Member& member) = 0;
  // Removes a member. No effect if it is not in the directory.
  virtual absl::Status Unregister(const Member& member) = 0;

  // Returns the member of this name. Blocks until it has registered. DeadlineExceeded after `timeout`; the
  // message names it and the current members.
  absl::StatusOr<Member> Lookup(absl::string_view name, absl::Duration timeout);
  // Returns the members as they are known here now. Does not block.
  Members List() const;
  std::optional<Member> Find(absl::string_view name) const;
  // Runs `watcher` with the current members in this thread, and later again with each change, until Unwatch.
  // Calls of watchers never overlap. Returns a number for Unwatch.
  uint64_t Watch(Watcher watcher);
  // Ends the calls of a watcher. After the return it does not run and will not run again. Must not be called
  // by a watcher.
  void Unwatch(uint64_t id);

 protected:
  // Replaces the members and runs the watchers if something has changed. For implementations.
  void Publish(Members members);

 private:
  mutable absl::Mutex mutex_;
  absl::Mutex watcher_call_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // held while watchers run
  Members members_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_watch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::shared_ptr<const Watcher>> watchers_ ABSL_GUARDED_BY(mutex_);
};

// Returns the first names, for messages: "worker/0, worker/1, ps/0". "nobody" if there are none.
std::string NamesOf(const Directory::Members& members);

// A directory for RPC agents in one process. Leases never run out; Forget simulates that.
class MemoryDirectory : public Directory {
 public:
  absl::Status Register(const Member& member) override;
  absl::Status Unregister(const Member& member) override;
  // Removes `name` as if its lease had run out.
  void Forget(absl::string_view name);

 private:
  absl::Mutex mutex_;
  Members members_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_DIRECTORY_H_
