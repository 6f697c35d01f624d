// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_REFERENCES_H_
#define TANDEM_RPC_REMOTE_REFERENCES_H_

// The references of one worker: the values that it owns, with their holders elsewhere, and the references
// that it holds to values of other workers.
//
// Reference counting with leases, after torch.distributed.rpc's RRef. Every reference that a worker holds is
// a fork. A fork has a number that is unique in the job, and a lease at the owner, which the holder renews
// several times per lease. The owner releases a value when it has neither forks nor local references.
//
// A reference that is sent gets a new fork for its receiver. The sender registers the new fork with the owner
// and renews it. The sender keeps its own fork until the owner knows the new one and the call that carries it
// has ended. The receiver also registers the new fork, at once, and renews it from then on. So the owner
// learns of the new fork before it can learn that the old one is gone, even if one of the workers dies.
// Messages about forks may be lost, repeated or reordered. After the death of a worker the owner waits only
// for that worker's lease.
//
// A call that is repeated carries the same forks again. The receiver then has one reference, not two. If it
// has already released the fork, the owner no longer accepts that number: the receiver takes a new one and
// reports it in the response. The sender registers the new number too before it releases its own fork. A
// sender that gets no response, or cannot reach the owner, keeps its fork for one lease; within that time the
// receiver registers what it has.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/timed_wait.h"
#include "rpc/remote/call/functions.h"
#include "rpc/remote/call/future.h"
#include "rpc/remote/call/invocation.h"
#include "rpc/remote/call/wire.h"

namespace tandem::rpc::remote {

class RpcAgent;
class References;

// Identifies a value or a fork: the incarnation of the worker that created it, and its number there.
using ReferenceNumber = std::pair<uint64_t, uint64_t>;

// A fork, as workers describe it to each other.
struct ForkMessage {
  uint64_t creator = 0, number = 0;            // the value's ReferenceNumber
  uint64_t fork_creator = 0, fork_number = 0;  // the fork's ReferenceNumber
  std::string holder;
  uint64_t owner_incarnation = 0;  // 0: unknown
  TANDEM_REMOTE_FIELDS(ForkMessage, creator, number, fork_creator, fork_number, holder, owner_incarnation)

  ReferenceNumber key() const { return {creator, number}; }
  ReferenceNumber fork() const { return {fork_creator, fork_number}; }
};

// Describes a value that a worker owns (DebugRefs).
struct DebugRef {
  // "Model"; the error if the value could not be created; empty while it is being created.
  std::string type;
  // References of the owner itself, plus calls under way that create the value.
  int64_t local = 0;
  struct Holder {
    std::string worker;
    double lease_left_seconds = 0;
    TANDEM_REMOTE_FIELDS(Holder, worker, lease_left_seconds)
  };
  std::vector<Holder> holders;
  TANDEM_REMOTE_FIELDS(DebugRef, type, local, holders)
};

// One reference: a fork, or one of the owner itself. All copies of an RRef share one handle. The destructor
// releases the reference. Thread-safe.
class ReferenceHandle {
 public:
  ~ReferenceHandle();

  const std::string& owner() const { return owner_; }
  bool is_local() const { return local_; }
  ReferenceNumber key() const { return key_; }
  // Returns the references of this worker, or null if its RPC agent has been destroyed.
  std::shared_ptr<References> home() const { return home_.lock(); }
  // Returns the future of the call that creates the value. Not valid if another worker started that call.
  const Future<void>& created() const { return created_; }
  // Returns why the reference is no longer valid, or OK if it is.
  absl::Status lost() const;
  // Sets the incarnation of the owner to which the call that creates the value was sent.
  void SetOwnerIncarnation(uint64_t incarnation) { owner_incarnation_ = incarnation; }

 private:
  friend class References;
  std::weak_ptr<References> home_;
  ReferenceNumber key_, fork_;
  std::string owner_;
  std::atomic<uint64_t> owner_incarnation_{0};
  bool local_ = false;
  Future<void> created_;
  mutable absl::Mutex mutex_;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  // Until then the message that carried the reference may arrive again.
  absl::Time may_repeat_until_ = absl::InfinitePast();
};

// A fork that was sent under one number and is held under another.
struct RenumberedReference {
  ReferenceNumber sent, held;
};

// A reference on its way to another worker. Keeps the reference alive until the message has arrived or cannot
// arrive any more.
struct Borrow {
  ~Borrow();
  std::weak_ptr<References> home;
  std::shared_ptr<ReferenceHandle> handle;
  ReferenceNumber fork;
  std::string to;
};

// The references of one call to or from the worker `peer`. Messages of the call may arrive again until
// `may_repeat_until`. Kept until the call has ended. Used by one thread at a time.
class MessageReferences : public ReferenceScope {
 public:
  MessageReferences(std::shared_ptr<References> references, std::string peer,
                    absl::Time may_repeat_until = absl::InfinitePast())
      : references_(std::move(references)), peer_(std::move(peer)), may_repeat_until_(may_repeat_until) {}
  absl::StatusOr<std::string> Send(const std::shared_ptr<ReferenceHandle>& handle) override;
  absl::StatusOr<std::shared_ptr<ReferenceHandle>> Receive(absl::string_view wire) override;
  // Returns the forks to report in the response, because they are held under other numbers.
  const std::vector<RenumberedReference>& renumbered() const { return renumbered_; }
  // Starts a borrow for a fork that the response has reported.
  void Renumber(const RenumberedReference& reference);
  // Keeps what was sent by a call that has ended for a lease, so that its receiver can register it.
  static void KeepForALease(std::shared_ptr<const MessageReferences> message);

 private:
  const std::shared_ptr<References> references_;
  const std::string peer_;
  const absl::Time may_repeat_until_;
  std::vector<RenumberedReference> renumbered_;
  std::vector<std::shared_ptr<Borrow>> borrows_;
};

// The references of one worker. Thread-safe.
class References : public std::enable_shared_from_this<References> {
 public:
  using Waiter = absl::AnyInvocable<void(absl::StatusOr<StoredValue>) &&>;

  References(RpcAgent* agent, std::string name, uint64_t incarnation, absl::Duration lease)
      : name_(std::move(name)), incarnation_(incarnation), lease_(lease), agent_(agent) {}

  // Adds the functions with which workers manage references (reference_functions.h).
  static void AddFunctions(Functions* functions, const std::shared_ptr<References>& references);

  // --- At the owner.
  // Takes over a value and returns a local reference to it.
  std::shared_ptr<ReferenceHandle> Own(StoredValue value);
  // Announces a call that creates the value `key`. `fork` is that of the holder elsewhere, or {0, 0} if this
  // worker called itself. FinishCreation must follow once. NotFound: the value has been released.
  absl::Status BeginCreation(ReferenceNumber key, ReferenceNumber fork, const std::string& holder);
  // Stores the value, or the error of the call, and runs the waiters.
  void FinishCreation(ReferenceNumber key, absl::StatusOr<StoredValue> value);
  // Runs `waiter` with the value, or with the error of its creation: now if it exists, else when it does.
  // NotFound: the value has been released.
  void WaitFor(ReferenceNumber key, Waiter waiter);
  // Registers or renews a fork for a holder. NotFound: the value has been released, or an earlier incarnation
  // of this worker owned it. OK, without effect, if the fork has been removed already.
  absl::Status AddFork(const ForkMessage& fork);
  // Removes a fork. Returns whether it existed.
  bool RemoveFork(const ForkMessage& fork);
  std::vector<DebugRef> DebugRefs() const;

  // --- At holders.
  //
  // Returns a reference to a value that a call from this worker creates at `owner`, which may be this worker.
  // `created` is the future of that call.
  std::shared_ptr<ReferenceHandle> NewRemote(const std::string& owner, Future<void> created);
  // Returns the number of forks that this worker holds, and of deletions of forks that the owners have not
  // confirmed yet.
  size_t held() const;
  size_t unconfirmed() const {
    absl::MutexLock lock(&mutex_);
    return unconfirmed_;
  }
  // Waits until no deletion is unconfirmed. Returns false if `deadline` comes first.
  bool AwaitConfirmed(absl::Time deadline) const {
    absl::MutexLock lock(&mutex_);
    const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return unconfirmed_ == 0; };
    return AwaitUntil(&mutex_, absl::Condition(&none), deadline);
  }
  // Waits until `holds` returns true for the values that this worker owns. `holds` must be quick and lock
  // nothing. Returns false if `deadline` comes first. For tests.
  bool AwaitRefs(absl::FunctionRef<bool(const std::vector<DebugRef>&)> holds, absl::Time deadline) const;

  // --- For the RPC agent.
  //
  // Starts to send a reference to `to`: returns its encoding and appends the borrow to `borrows`. Returns the
  // reason if the reference is no longer valid.
  absl::StatusOr<std::string> Send(const std::shared_ptr<ReferenceHandle>& handle, const std::string& to,
                                   std::vector<std::shared_ptr<Borrow>>* borrows);
  // Decodes a reference that has arrived. `*sent` becomes the fork under which it was sent. The handle's fork
  // differs from it if this worker has released that one before.
  absl::StatusOr<std::shared_ptr<ReferenceHandle>> Receive(absl::string_view wire,
                                                           absl::Time may_repeat_until,
                                                           ReferenceNumber* sent);
  // Starts a borrow: `to` will hold the reference as `fork`. Returns null if the value has been released.
  std::shared_ptr<Borrow> StartBorrow(const std::shared_ptr<ReferenceHandle>& handle, ReferenceNumber fork,
                                      const std::string& to);
  static std::string WireOf(const ReferenceHandle& handle, ReferenceNumber fork);
  ForkMessage MessageOf(const ReferenceHandle& handle, ReferenceNumber fork, const std::string& holder) const;
  ReferenceNumber ForkOf(const ReferenceHandle& handle) const { return handle.fork_; }
  // Renews the forks of this worker and releases forks of others whose lease has run out. Call it about every
  // lease() / 4.
  void RunMaintenance();
  // Keeps references that were sent (a MessageReferences or a Borrow) for one lease. No effect after Close.
  void KeepForALease(std::shared_ptr<const void> references);
  // Releases all forks of this worker and tells their owners. RRefs to them become invalid.
  void ReleaseAll();
  // Called when the agent is destroyed. Waits for calls that are being started on it, and drops what is kept.
  void Close();
  absl::Duration lease() const { return lease_; }
  // Keeps the agent alive while the object exists.
  class Use;

 private:
  friend class ReferenceHandle;
  friend struct Borrow;

  // A fork that another worker holds.
  struct Fork {
    std::string holder;
    absl::Time expiry;
  };
  // A value that this worker owns.
  struct Value {
    absl::StatusOr<StoredValue> made = absl::UnavailableError("it is being made");
    bool ready = false;
    // Local references, plus calls under way that create the value.
    int local = 0;
    std::map<ReferenceNumber, Fork> forks;
    std::vector<Waiter> waiters;
  };
  // Callbacks to run and values to destroy after the lock has been released.
  struct DeferredActions {
    std::vector<Waiter> waiters;
    absl::StatusOr<StoredValue> result = StoredValue();
    std::vector<StoredValue> values;
    void Run();
  };
  ReferenceNumber NextNumber() { return {incarnation_, next_.fetch_add(1) + 1}; }
  // Returns the entry of a value. Adds one if the value is not known yet, because messages may overtake the
  // call that creates it. NotFound: the value has been released.
  absl::StatusOr<Value*> FindOrExpect(ReferenceNumber key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<DebugRef> Refs() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void FreeIfUnused(ReferenceNumber key, DeferredActions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropLocal(ReferenceNumber key);
  void Drop(const ReferenceHandle& handle);
  void Delete(const std::string& owner, const ForkMessage& fork);
  void RegisterFork(const std::string& owner, const ForkMessage& fork, std::shared_ptr<Borrow> borrow);
  void RenewHeld();
  void EndBorrow(const Borrow& borrow);

  const std::string name_;
  const uint64_t incarnation_;
  const absl::Duration lease_;
  std::atomic<uint64_t> next_{0};
  size_t unconfirmed_ ABSL_GUARDED_BY(mutex_) = 0;

  mutable absl::Mutex mutex_;
  RpcAgent* agent_ ABSL_GUARDED_BY(mutex_);
  int uses_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<ReferenceNumber, Value> values_ ABSL_GUARDED_BY(mutex_);
  // Released values and forks, and until when they are remembered, for messages that arrive late.
  absl::flat_hash_map<ReferenceNumber, absl::Time> released_values_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<ReferenceNumber, absl::Time> deleted_forks_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<ReferenceNumber, std::weak_ptr<ReferenceHandle>> held_forks_ ABSL_GUARDED_BY(mutex_);
  // Forks created by other workers that were held here. The messages that carried them may arrive again.
  struct Dropped {
    absl::Time until;      // end of remembering
    ReferenceNumber next;  // the fork that is held in its place
  };
  absl::flat_hash_map<ReferenceNumber, Dropped> dropped_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<ReferenceNumber, std::weak_ptr<Borrow>> borrows_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<absl::Time, std::shared_ptr<const void>>> kept_ ABSL_GUARDED_BY(mutex_);
};

// Keeps the RPC agent alive while it exists; agent() returns null if the agent has been closed.
class References::Use {
 public:
  explicit Use(References* references);
  ~Use();
  Use(const Use&) = delete;
  RpcAgent* agent() const { return agent_; }

 private:
  References* const references_;
  RpcAgent* agent_;
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_REFERENCES_H_
