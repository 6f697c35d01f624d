#ifndef TANDEM_RPC_REMOTE_REFERENCES_H_
#define TANDEM_RPC_REMOTE_REFERENCES_H_

// Who holds what, of one worker: the values that it owns, with their holders elsewhere, and the references to
// others' values that it holds.
//
// Every reference that a worker holds is a fork: it has a number of its own, unique in the job, and a lease
// at the owner, which the holder renews a few times within its length. A value goes when no fork and no local
// reference is left. (torch.distributed.rpc's owner-counted RRefs, with leases in place of trust.)
//
// A reference that is sent gets a fork for its receiver. The sender registers it with the owner, renews it,
// and keeps its own fork until the owner has it and the call that carries it is over; the receiver registers
// it too, at once, and renews it from then on. So the owner hears of the new fork before it can hear that the
// old one is gone, whoever dies: messages about forks may be lost, repeated or overtake each other, and only
// the lease of one who dies is waited for.
//
// A call that is tried again brings the same forks again. The receiver then has one reference, not two. If it
// had let go of it, the owner takes that fork no more: it takes a new one, and its answer says so, so that
// the sender registers that, too, before it lets go of its own. A sender that got no answer keeps its own for
// a lease, within which the receiver registers what it has; and so does one that could not tell the owner.

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
#include "rpc/remote/call/functions.h"
#include "rpc/remote/call/future.h"
#include "rpc/remote/call/invocation.h"
#include "rpc/remote/call/wire.h"

namespace tandem::rpc::remote {

class RpcAgent;
class References;

// Who made it (an incarnation), and its number there.
using ReferenceNumber = std::pair<uint64_t, uint64_t>;

// A fork, as workers tell each other of it.
struct ForkMessage {
  uint64_t creator = 0, number = 0;            // of the value
  uint64_t fork_creator = 0, fork_number = 0;  // of the fork
  std::string holder;
  uint64_t owner_incarnation = 0;  // 0: not known
  TANDEM_REMOTE_FIELDS(ForkMessage, creator, number, fork_creator, fork_number, holder, owner_incarnation)

  ReferenceNumber key() const { return {creator, number}; }
  ReferenceNumber fork() const { return {fork_creator, fork_number}; }
};

// What DebugRefs tells of a value.
struct DebugRef {
  std::string type;   // "Model"; empty while the value is being made
  int64_t local = 0;  // references of the owner itself, and calls under way to make the value
  struct Holder {
    std::string worker;
    double lease_left_seconds = 0;
    TANDEM_REMOTE_FIELDS(Holder, worker, lease_left_seconds)
  };
  std::vector<Holder> holders;
  TANDEM_REMOTE_FIELDS(DebugRef, type, local, holders)
};

// One reference: a fork, or the owner's own. Shared by the copies of an RRef. Thread-safe.
class ReferenceHandle {
 public:
  ~ReferenceHandle();

  const std::string& owner() const { return owner_; }
  bool is_local() const { return local_; }
  ReferenceNumber key() const { return key_; }
  std::shared_ptr<References> home() const { return home_.lock(); }
  // Of the call that makes the value; not valid where another worker made it.
  const Future<void>& created() const { return created_; }
  // Why it refers to nothing any more; OK while it does.
  absl::Status lost() const;
  // The call that makes the value goes to this life of the owner.
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
  absl::Time may_come_again_ = absl::InfinitePast();  // its message, until then
};

// A reference that was sent as one fork and is held as another.
struct RenumberedReference {
  ReferenceNumber sent, held;
};

// A reference on its way to another worker: keeps it alive. Goes when the message has arrived, or never will.
struct Borrow {
  ~Borrow();
  std::weak_ptr<References> home;
  std::shared_ptr<ReferenceHandle> handle;
  ReferenceNumber fork;
  std::string to;
};

// The references of one call, to or from the worker `peer`, of which messages may come again until
// `may_come_again`. Kept until the call is over. For one thread at a time.
class MessageReferences : public ReferenceScope {
 public:
  MessageReferences(std::shared_ptr<References> references, std::string peer,
                    absl::Time may_come_again = absl::InfinitePast())
      : references_(std::move(references)), peer_(std::move(peer)), may_come_again_(may_come_again) {}
  absl::StatusOr<std::string> Send(const std::shared_ptr<ReferenceHandle>& handle) override;
  absl::StatusOr<std::shared_ptr<ReferenceHandle>> Receive(absl::string_view wire) override;
  // For the answer to whom they came from.
  const std::vector<RenumberedReference>& renumbered() const { return renumbered_; }
  // What the answer said of those that were sent.
  void Renumber(const RenumberedReference& reference);
  // Of a call that is over: keeps what was sent for a lease, in which its receiver says that it has it.
  static void KeepForALease(std::shared_ptr<const MessageReferences> message);

 private:
  const std::shared_ptr<References> references_;
  const std::string peer_;
  const absl::Time may_come_again_;
  std::vector<RenumberedReference> renumbered_;
  std::vector<std::shared_ptr<Borrow>> loans_;
};

// Thread-safe.
class References : public std::enable_shared_from_this<References> {
 public:
  using Waiter = absl::AnyInvocable<void(absl::StatusOr<StoredValue>) &&>;

  References(RpcAgent* agent, std::string name, uint64_t incarnation, absl::Duration lease)
      : name_(std::move(name)), incarnation_(incarnation), lease_(lease), agent_(agent) {}

  // What workers ask of each other.
  static void AddFunctions(Functions* functions, const std::shared_ptr<References>& references);

  // --- At the owner.
  std::shared_ptr<ReferenceHandle> Own(StoredValue value);
  // A call has come that makes the value `key`, for a holder elsewhere or (no fork) here; FinishMaking
  // follows once.
  absl::Status BeginMaking(ReferenceNumber key, ReferenceNumber fork, const std::string& holder);
  void FinishMaking(ReferenceNumber key, absl::StatusOr<StoredValue> value);
  // Runs `waiter` with the value: at once, or when it is made. NotFound when it is gone.
  void WaitFor(ReferenceNumber key, Waiter waiter);
  // A holder says that there is this fork. NotFound when the value is gone.
  absl::Status AddFork(const ForkMessage& fork);
  bool RemoveFork(const ForkMessage& fork);
  std::vector<DebugRef> DebugRefs() const;

  // --- At holders.
  // To a value that a call from here makes at `owner`, which is to be this worker or another.
  std::shared_ptr<ReferenceHandle> NewRemote(const std::string& owner, Future<void> created);
  // Forks that are held here, and deletions that their owners have not confirmed yet.
  size_t held() const;
  size_t unconfirmed() const {
    absl::MutexLock lock(&mutex_);
    return unconfirmed_;
  }
  // Waits until there are none; false when `deadline` came first.
  bool AwaitConfirmed(absl::Time deadline) const {
    absl::MutexLock lock(&mutex_);
    const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return unconfirmed_ == 0; };
    return mutex_.AwaitWithDeadline(absl::Condition(&none), deadline);
  }
  // Waits until what it owns is such that `holds`, which must be quick and lock nothing; false when
  // `deadline` came first.
  bool AwaitRefs(absl::FunctionRef<bool(const std::vector<DebugRef>&)> holds, absl::Time deadline) const;

  // --- For the agent.
  absl::StatusOr<std::string> Send(const std::shared_ptr<ReferenceHandle>& handle, const std::string& to,
                                   std::vector<std::shared_ptr<Borrow>>* loans);
  // `sent` is the fork that it was sent as; the handle's is another where that one had been given up.
  absl::StatusOr<std::shared_ptr<ReferenceHandle>> Receive(absl::string_view wire, absl::Time may_come_again,
                                                           ReferenceNumber* sent);
  // `to` holds it, too, as `fork`. Null where the value is gone.
  std::shared_ptr<Borrow> StartBorrow(const std::shared_ptr<ReferenceHandle>& handle, ReferenceNumber fork,
                                      const std::string& to);
  static std::string WireOf(const ReferenceHandle& handle, ReferenceNumber fork);
  ForkMessage MessageOf(const ReferenceHandle& handle, ReferenceNumber fork, const std::string& holder) const;
  ReferenceNumber ForkOf(const ReferenceHandle& handle) const { return handle.fork_; }
  // Renews what is held, releases what nobody renewed. To be called every lease() / 4 or so.
  void RunMaintenance();
  // Keeps references that were sent (MessageReferences, a Loan), unless the agent is gone.
  void KeepForALease(std::shared_ptr<const void> references);
  // Gives up all forks that are held: their owners are told, their RRefs refer to nothing any more.
  void ReleaseAll();
  // The agent goes: waits for the calls that are being started on it, and keeps nothing any more.
  void Close();
  absl::Duration lease() const { return lease_; }
  // The agent, kept from going for as long as this lives; null when it is gone.
  class Use;

 private:
  friend class ReferenceHandle;
  friend struct Borrow;

  struct Fork {
    std::string holder;
    absl::Time expiry;
  };
  struct Value {
    absl::StatusOr<StoredValue> made = absl::UnavailableError("it is being made");
    bool ready = false;
    int local = 0;
    std::map<ReferenceNumber, Fork> forks;
    std::vector<Waiter> waiters;
  };
  // What is to be done, or to go, when the lock is free.
  struct DeferredActions {
    std::vector<Waiter> waiters;
    absl::StatusOr<StoredValue> result = StoredValue();
    std::vector<StoredValue> values;
    void Run();
  };
  ReferenceNumber NextNumber() { return {incarnation_, next_.fetch_add(1) + 1}; }
  absl::StatusOr<Value*> FindOrExpect(ReferenceNumber key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<DebugRef> Refs() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void FreeIfUnused(ReferenceNumber key, DeferredActions* aftermath) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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
  // What was released, and until when it is remembered, for messages that come late.
  absl::flat_hash_map<ReferenceNumber, absl::Time> freed_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<ReferenceNumber, absl::Time> deleted_forks_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<ReferenceNumber, std::weak_ptr<ReferenceHandle>> held_ ABSL_GUARDED_BY(mutex_);
  // Forks of others' making that were held here: their messages may come again.
  struct Dropped {
    absl::Time until;      // it is remembered
    ReferenceNumber next;  // the fork that is held in its place
  };
  absl::flat_hash_map<ReferenceNumber, Dropped> dropped_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<ReferenceNumber, std::weak_ptr<Borrow>> loans_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<absl::Time, std::shared_ptr<const void>>> kept_ ABSL_GUARDED_BY(mutex_);
};

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
