#ifndef TANDEM_RPC_REMOTE_DIRECTORY_H_
#define TANDEM_RPC_REMOTE_DIRECTORY_H_

// Who is there: names of workers, and where they listen. Implementations: one for a single process below
// (tests), one over a job's store (collectives/directory).

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

// A plain value.
struct Member {
  std::string name;          // "worker/0"
  std::string address;       // "10.0.0.2:4711" or "unix:/path", as others reach it
  uint64_t incarnation = 0;  // of this life of it: random, never 0

  friend bool operator==(const Member&, const Member&) = default;
};

// Thread-safe. The members it tells of are those that registered, renewed their lease in time, and did not
// leave.
class Directory {
 public:
  using Members = std::map<std::string, Member>;  // by name
  using Watcher = std::function<void(const Members&)>;
  virtual ~Directory() = default;

  // Adds a member, whose lease the directory renews until Unregister or its own end. AlreadyExists, naming
  // the other's address, when a living member has the name.
  virtual absl::Status Register(const Member& member) = 0;
  // The member leaves. Nothing happens if it is not there.
  virtual absl::Status Unregister(const Member& member) = 0;

  // Waits until a member of this name is there. DeadlineExceeded, naming it and who is there, after
  // `timeout`.
  absl::StatusOr<Member> Lookup(absl::string_view name, absl::Duration timeout);
  Members List() const;
  std::optional<Member> Find(absl::string_view name) const;
  // Runs `watcher` with the members now, and whenever they have changed, one call at a time, until Unwatch.
  uint64_t Watch(Watcher watcher);
  // When it returns the watcher does not run and will not. Not from within the watcher.
  void Unwatch(uint64_t id);

 protected:
  // For implementations: the members are these from now on.
  void Publish(Members members);

 private:
  mutable absl::Mutex mutex_;
  absl::Mutex telling_ ABSL_ACQUIRED_BEFORE(mutex_);  // watchers run under this one
  Members members_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_watch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::shared_ptr<const Watcher>> watchers_ ABSL_GUARDED_BY(mutex_);
};

// "worker/0, worker/1, ps/0", cut to the first few.
std::string NamesOf(const Directory::Members& members);

// For agents of one process. Nobody dies here, but by Forget.
class MemoryDirectory : public Directory {
 public:
  absl::Status Register(const Member& member) override;
  absl::Status Unregister(const Member& member) override;
  // As when the lease of `name` has run out.
  void Forget(absl::string_view name);

 private:
  absl::Mutex mutex_;
  Members members_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_DIRECTORY_H_
