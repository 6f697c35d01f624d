// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_DIRECTORY_H_
#define TANDEM_RPC_REMOTE_DIRECTORY_H_

// A directory of workers: their names, and the addresses at which they listen. Implementations:
//
//   - MemoryDirectory below, for workers in a single process (tests);
//   - StoreDirectory in cluster/rendezvous/store_directory.h, in the store of a job.

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

// A worker in the directory. A plain value.
struct Member {
  std::string name;     // "worker/0"
  std::string address;  // "10.0.0.2:4711" or "unix:/path", as other workers reach it
  // A random number other than 0 that tells this process from earlier ones of the same name. 0: the directory
  // knows only the address, and any process of the name there is meant.
  uint64_t incarnation = 0;

  friend bool operator==(const Member&, const Member&) = default;
};

// A directory of the living members. A member is in it from Register until Unregister, or until its lease
// expires because its process is dead or silent. The object holds a copy of the members; how soon it shows a
// change that another process made depends on the implementation. Thread-safe.
class Directory {
 public:
  using Members = std::map<std::string, Member>;  // by name
  // A function that is called with all members. It must not block. Of this directory it may call only List
  // and Find; the other methods would deadlock or wait for the watcher itself.
  using Watcher = std::function<void(const Members&)>;
  virtual ~Directory() = default;

  // Adds a member, which must not be registered yet. The directory object renews its lease until Unregister
  // or until the object is destroyed. Implementations on a network block, and have further errors.
  // AlreadyExists: a living member, whose address the message names, has this name; nothing has changed then.
  virtual absl::Status Register(const Member& member) = 0;
  // Removes a member that was registered with this object. Returns OK without an effect if there is none with
  // its name and incarnation. Implementations on a network block, and return their errors.
  virtual absl::Status Unregister(const Member& member) = 0;

  // Returns the member with the name `name`. Blocks until it has registered, for at most `timeout`.
  // DeadlineExceeded after that; the message names `name` and the current members.
  absl::StatusOr<Member> Lookup(absl::string_view name, absl::Duration timeout);
  // Returns the members as this object knows them now. Does not wait for other processes.
  Members List() const;
  // Returns the member with the name `name` in List(), or nullopt if there is none.
  std::optional<Member> Find(absl::string_view name) const;
  // Calls `watcher` with the current members on the calling thread before it returns, and again after each
  // change until Unwatch, on the thread that made or received the change. Watchers of one directory never run
  // at the same time; Watch and Unwatch block while one runs. Returns the number to pass to Unwatch.
  uint64_t Watch(Watcher watcher);
  // Removes a watcher. Blocks while any watcher runs. After the return the watcher does not run and will not
  // run again. No effect for an unknown number.
  void Unwatch(uint64_t id);

 protected:
  // Replaces the members and, if something has changed, runs the watchers on this thread. Implementations
  // call this; a watcher must not.
  void Publish(Members members);

 private:
  mutable absl::Mutex mutex_;
  absl::Mutex watcher_call_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // held while watchers run
  Members members_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_watch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::shared_ptr<const Watcher>> watchers_ ABSL_GUARDED_BY(mutex_);
};

// Returns the names in ascending order, for messages: "ps/0, worker/0, worker/1". After 16 names the text
// ends with " and N more". Returns "nobody" if there are none.
std::string NamesOf(const Directory::Members& members);

// A directory for RPC agents in one process. Leases never expire; Forget simulates that. Changes show at
// once. Watchers run on the thread that calls Register, Unregister or Forget, before that call returns.
class MemoryDirectory : public Directory {
 public:
  absl::Status Register(const Member& member) override;
  absl::Status Unregister(const Member& member) override;
  // Removes `name` as if its lease had expired. No effect if there is no such member.
  void Forget(absl::string_view name);

 private:
  absl::Mutex mutex_;
  Members members_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_DIRECTORY_H_
