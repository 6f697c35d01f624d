// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote/references.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "rpc/remote/reference_functions.h"
#include "rpc/remote/rpc_agent.h"
#include "tandem/v1/remote_function.pb.h"

namespace tandem::rpc::remote {
namespace {

// Released values and forks are remembered for this many leases.
constexpr int kLeasesRemembered = 10;
// The longest time for which messages may arrive again, if their call has no deadline.
constexpr absl::Duration kMaxRepeatTime = absl::Hours(24);

absl::Status Released(absl::string_view owner) {
  return absl::NotFoundError(absl::StrCat("the value was released by its owner ", owner,
                                          ": nobody held it any more, or the lease of its holder ran out"));
}

}  // namespace

// --- Handles and borrows

ReferenceHandle::~ReferenceHandle() {
  if (const std::shared_ptr<References> home = home_.lock()) home->Drop(*this);
}

absl::Status ReferenceHandle::lost() const {
  absl::MutexLock lock(&mutex_);
  return lost_;
}

Borrow::~Borrow() {
  if (const std::shared_ptr<References> alive = home.lock()) alive->EndBorrow(*this);
}

absl::StatusOr<std::string> MessageReferences::Send(const std::shared_ptr<ReferenceHandle>& handle) {
  return references_->Send(handle, peer_, &borrows_);
}

absl::StatusOr<std::shared_ptr<ReferenceHandle>> MessageReferences::Receive(absl::string_view wire) {
  ReferenceNumber sent;
  absl::StatusOr<std::shared_ptr<ReferenceHandle>> handle =
      references_->Receive(wire, may_repeat_until_, &sent);
  if (handle.ok() && !(*handle)->is_local() && references_->ForkOf(**handle) != sent) {
    renumbered_.push_back({sent, references_->ForkOf(**handle)});
  }
  return handle;
}

void MessageReferences::Renumber(const RenumberedReference& reference) {
  const auto borrow = std::find_if(borrows_.begin(), borrows_.end(), [&reference](const auto& borrow) {
    return borrow->fork == reference.sent && borrow->fork.first != 0;
  });
  if (borrow == borrows_.end()) return;
  if (auto next = references_->StartBorrow((*borrow)->handle, reference.held, peer_))
    borrows_.push_back(std::move(next));
}

void MessageReferences::KeepForALease(std::shared_ptr<const MessageReferences> message) {
  if (message->borrows_.empty()) return;
  References& references = *message->references_;
  references.KeepForALease(std::move(message));
}

References::Use::Use(References* references) : references_(references) {
  absl::MutexLock lock(&references_->mutex_);
  agent_ = references_->agent_;
  if (agent_ != nullptr) ++references_->uses_;
}

References::Use::~Use() {
  if (agent_ == nullptr) return;
  absl::MutexLock lock(&references_->mutex_);
  --references_->uses_;
}

void References::DeferredActions::Run() {
  for (Waiter& waiter : waiters) std::move(waiter)(result);
}

void References::Close() {
  std::vector<std::pair<absl::Time, std::shared_ptr<const void>>> kept;  // destroyed without the lock
  absl::MutexLock lock(&mutex_);
  kept.swap(kept_);
  agent_ = nullptr;
  const auto unused = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return uses_ == 0; };
  mutex_.Await(absl::Condition(&unused));
}

// --- At the owner

absl::StatusOr<References::Value*> References::FindOrExpect(ReferenceNumber key) {
  if (const auto found = values_.find(key); found != values_.end()) return &found->second;
  if (released_values_.contains(key)) return Released(name_);
  return &values_[key];  // this message has overtaken the call that creates the value
}

void References::FreeIfUnused(ReferenceNumber key, DeferredActions* actions) {
  const auto found = values_.find(key);
  if (found == values_.end() || found->second.local > 0 || !found->second.forks.empty()) return;
  Value& value = found->second;
  for (Waiter& waiter : value.waiters) actions->waiters.push_back(std::move(waiter));
  if (!value.waiters.empty()) actions->result = Released(name_);
  if (value.made.ok()) actions->values.push_back(*std::move(value.made));
  values_.erase(found);
  released_values_[key] = MonotonicNow() + kLeasesRemembered * lease_;
}

std::shared_ptr<ReferenceHandle> References::Own(StoredValue value) {
  auto handle = std::make_shared<ReferenceHandle>();
  handle->home_ = weak_from_this();
  handle->key_ = NextNumber();
  handle->owner_ = name_;
  handle->owner_incarnation_ = incarnation_;
  handle->local_ = true;
  absl::MutexLock lock(&mutex_);
  Value& entry = values_[handle->key_];
  entry.made = std::move(value);
  entry.ready = true;
  entry.local = 1;
  return handle;
}

absl::Status References::BeginCreation(ReferenceNumber key, ReferenceNumber fork, const std::string& holder) {
  absl::MutexLock lock(&mutex_);
  TANDEM_ASSIGN_OR_RETURN(Value * value, FindOrExpect(key));
  ++value->local;  // until FinishCreation
  if (fork.first != 0 && !deleted_forks_.contains(fork))
    value->forks[fork] = {holder, MonotonicNow() + lease_};
  return absl::OkStatus();
}

void References::FinishCreation(ReferenceNumber key, absl::StatusOr<StoredValue> made) {
  DeferredActions actions;
  {
    absl::MutexLock lock(&mutex_);
    Value& value = values_[key];
    if (!value.ready) {
      actions.waiters.swap(value.waiters);
      actions.result = made;
      value.made = std::move(made);
      value.ready = true;
    }
    --value.local;
    FreeIfUnused(key, &actions);
  }
  actions.Run();
}

void References::WaitFor(ReferenceNumber key, Waiter waiter) {
  absl::StatusOr<StoredValue> result = StoredValue();
  {
    absl::MutexLock lock(&mutex_);
    const absl::StatusOr<Value*> value = FindOrExpect(key);
    if (!value.ok()) {
      result = value.status();
    } else if ((*value)->ready) {
      result = (*value)->made;
    } else {
      (*value)->waiters.push_back(std::move(waiter));
      return;
    }
  }
  std::move(waiter)(std::move(result));
}

absl::Status References::AddFork(const ForkMessage& fork) {
  if (fork.owner_incarnation != 0 && fork.owner_incarnation != incarnation_) {
    return absl::NotFoundError(absl::StrCat("the value was lost with an earlier life of ", name_));
  }
  absl::MutexLock lock(&mutex_);
  if (const auto deleted = deleted_forks_.find(fork.fork()); deleted != deleted_forks_.end()) {
    deleted->second = MonotonicNow() + kLeasesRemembered * lease_;
    return absl::OkStatus();  // the removal has overtaken this message
  }
  TANDEM_ASSIGN_OR_RETURN(Value * value, FindOrExpect(fork.key()));
  value->forks[fork.fork()] = {fork.holder, MonotonicNow() + lease_};
  return absl::OkStatus();
}

bool References::RemoveFork(const ForkMessage& fork) {
  DeferredActions actions;
  bool was_there = false;
  {
    absl::MutexLock lock(&mutex_);
    deleted_forks_[fork.fork()] = MonotonicNow() + kLeasesRemembered * lease_;
    if (const auto found = values_.find(fork.key()); found != values_.end()) {
      was_there = found->second.forks.erase(fork.fork()) > 0;
      FreeIfUnused(fork.key(), &actions);
    }
  }
  actions.Run();
  return was_there;
}

void References::DropLocal(ReferenceNumber key) {
  DeferredActions actions;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = values_.find(key);
    if (found == values_.end()) return;
    --found->second.local;
    FreeIfUnused(key, &actions);
  }
  actions.Run();
}

std::vector<DebugRef> References::DebugRefs() const {
  absl::MutexLock lock(&mutex_);
  return Refs();
}

bool References::AwaitRefs(absl::FunctionRef<bool(const std::vector<DebugRef>&)> holds,
                           absl::Time deadline) const {
  absl::MutexLock lock(&mutex_);
  const auto now = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return holds(Refs()); };
  return AwaitUntil(&mutex_, absl::Condition(&now), deadline);
}

std::vector<DebugRef> References::Refs() const {
  std::vector<DebugRef> refs;
  const absl::Time now = MonotonicNow();
  for (const auto& [key, value] : values_) {
    DebugRef& ref = refs.emplace_back();
    if (value.ready) ref.type = value.made.ok() ? value.made->type->name : value.made.status().ToString();
    ref.local = value.local;
    for (const auto& [number, fork] : value.forks) {
      ref.holders.push_back({fork.holder, absl::ToDoubleSeconds(fork.expiry - now)});
    }
  }
  return refs;
}

// --- At holders

std::shared_ptr<ReferenceHandle> References::NewRemote(const std::string& owner, Future<void> created) {
  auto handle = std::make_shared<ReferenceHandle>();
  handle->home_ = weak_from_this();
  handle->key_ = NextNumber();
  handle->owner_ = owner;
  handle->created_ = std::move(created);
  absl::MutexLock lock(&mutex_);
  if (owner == name_) {
    handle->owner_incarnation_ = incarnation_;
    handle->local_ = true;
    values_[handle->key_].local = 1;
  } else {
    handle->fork_ = NextNumber();
    held_forks_[handle->fork_] = handle;
  }
  return handle;
}

size_t References::held() const {
  absl::MutexLock lock(&mutex_);
  return held_forks_.size();
}

void References::Drop(const ReferenceHandle& handle) {
  if (handle.local_) return DropLocal(handle.key_);
  {
    absl::MutexLock lock(&mutex_);
    const auto held = held_forks_.find(handle.fork_);
    // The fork was released before, or its message has just arrived again and another handle has the fork
    // now.
    if (held == held_forks_.end() || !held->second.expired()) return;
    held_forks_.erase(held);
    if (handle.fork_.first != incarnation_) {
      const absl::Time now = MonotonicNow();
      const absl::Time until = std::clamp(handle.may_repeat_until_, now, now + kMaxRepeatTime);
      dropped_[handle.fork_] = {until + kLeasesRemembered * lease_, {}};
    }
  }
  const ForkMessage message = MessageOf(handle, handle.fork_, name_);
  if (!handle.created_.valid() || handle.created_.ready()) return Delete(handle.owner_, message);
  // The owner must learn of the fork before it learns of its end. If both messages may be lost, the lease
  // decides.
  handle.created_.Then([self = shared_from_this(), owner = handle.owner_, message](const absl::Status&) {
    self->Delete(owner, message);
  });
}

void References::Delete(const std::string& owner, const ForkMessage& fork) {
  Use use(this);
  if (use.agent() == nullptr) return;
  {
    absl::MutexLock lock(&mutex_);
    ++unconfirmed_;
  }
  use.agent()
      ->RpcAsync(CallTarget(owner, {.timeout = lease_}), kDeleteFork, fork)
      .Then([self = shared_from_this()](const absl::StatusOr<bool>&) {
        absl::MutexLock lock(&self->mutex_);
        --self->unconfirmed_;
      });
}

void References::RegisterFork(const std::string& owner, const ForkMessage& fork,
                              std::shared_ptr<Borrow> borrow) {
  Use use(this);
  if (use.agent() == nullptr) return;
  // Keeps the borrow until the owner knows the fork. If the owner could not be reached, renewals tell it.
  use.agent()
      ->RpcAsync(CallTarget(owner, {.timeout = lease_}), kAddFork, fork)
      .Then([self = shared_from_this(), borrow](const absl::Status& told) {
        if (borrow != nullptr && !told.ok() && !absl::IsNotFound(told)) self->KeepForALease(borrow);
      });
}

absl::StatusOr<std::string> References::Send(const std::shared_ptr<ReferenceHandle>& handle,
                                             const std::string& to,
                                             std::vector<std::shared_ptr<Borrow>>* borrows) {
  if (absl::Status lost = handle->lost(); !lost.ok()) return lost;
  // The owner itself needs no fork.
  const ReferenceNumber fork = handle->owner_ == to ? ReferenceNumber{0, 0} : NextNumber();
  std::shared_ptr<Borrow> borrow = StartBorrow(handle, fork, to);
  if (borrow == nullptr) return Released(name_);
  borrows->push_back(std::move(borrow));
  return WireOf(*handle, fork);
}

std::shared_ptr<Borrow> References::StartBorrow(const std::shared_ptr<ReferenceHandle>& handle,
                                                ReferenceNumber fork, const std::string& to) {
  auto borrow = std::make_shared<Borrow>();
  borrow->home = weak_from_this();
  borrow->handle = handle;
  borrow->fork = fork;
  borrow->to = to;
  if (fork.first == 0) return borrow;
  const ForkMessage message = MessageOf(*handle, fork, to);
  if (!handle->local_) {
    RegisterFork(handle->owner_, message, borrow);
  } else if (!AddFork(message).ok()) {
    return nullptr;
  }
  absl::MutexLock lock(&mutex_);
  borrows_[fork] = borrow;
  return borrow;
}

void References::EndBorrow(const Borrow& borrow) {
  absl::MutexLock lock(&mutex_);
  borrows_.erase(borrow.fork);
  if (!borrow.handle->local_) return;
  // The receiver now has a full lease to renew the fork.
  const auto value = values_.find(borrow.handle->key_);
  if (value == values_.end()) return;
  const auto fork = value->second.forks.find(borrow.fork);
  if (fork != value->second.forks.end()) fork->second.expiry = MonotonicNow() + lease_;
}

absl::StatusOr<std::shared_ptr<ReferenceHandle>> References::Receive(absl::string_view wire,
                                                                     absl::Time may_repeat_until,
                                                                     ReferenceNumber* sent) {
  v1::RemoteReference message;
  if (!message.ParseFromArray(wire.data(), static_cast<int>(wire.size())) || message.owner().empty()) {
    return absl::InvalidArgumentError("a reference does not parse");
  }
  auto handle = std::make_shared<ReferenceHandle>();
  handle->key_ = {message.creator(), message.number()};
  *sent = handle->fork_ = {message.fork_creator(), message.fork_number()};
  handle->may_repeat_until_ = may_repeat_until;
  handle->owner_ = message.owner();
  handle->owner_incarnation_ = message.owner_incarnation();
  if (handle->owner_ == name_) {
    if (message.owner_incarnation() != 0 && message.owner_incarnation() != incarnation_) {
      return absl::NotFoundError(absl::StrCat("the value was lost with an earlier life of ", name_));
    }
    absl::MutexLock lock(&mutex_);
    TANDEM_ASSIGN_OR_RETURN(Value * value, FindOrExpect(handle->key_));
    ++value->local;
    handle->local_ = true;
    handle->home_ = weak_from_this();
    return handle;
  }
  if (message.fork_creator() == 0)
    return absl::InvalidArgumentError("a reference came that is another worker's");
  {
    absl::MutexLock lock(&mutex_);
    // A repeated call carries its references again. The owner does not accept a fork that was released
    // before.
    const auto dropped = dropped_.find(handle->fork_);
    if (dropped != dropped_.end()) handle->fork_ = dropped->second.next;
    if (const auto held = held_forks_.find(handle->fork_); held != held_forks_.end()) {
      if (std::shared_ptr<ReferenceHandle> there = held->second.lock()) return there;
    }
    if (dropped != dropped_.end()) handle->fork_ = dropped->second.next = NextNumber();
    held_forks_[handle->fork_] = handle;
    handle->home_ = weak_from_this();
  }
  RegisterFork(handle->owner_, MessageOf(*handle, handle->fork_, name_), nullptr);
  return handle;
}

std::string References::WireOf(const ReferenceHandle& handle, ReferenceNumber fork) {
  v1::RemoteReference message;
  message.set_owner(handle.owner_);
  message.set_owner_incarnation(handle.owner_incarnation_);
  message.set_creator(handle.key_.first);
  message.set_number(handle.key_.second);
  message.set_fork_creator(fork.first);
  message.set_fork_number(fork.second);
  return message.SerializeAsString();
}

ForkMessage References::MessageOf(const ReferenceHandle& handle, ReferenceNumber fork,
                                  const std::string& holder) const {
  ForkMessage message;
  std::tie(message.creator, message.number) = handle.key_;
  std::tie(message.fork_creator, message.fork_number) = fork;
  message.holder = holder;
  message.owner_incarnation = handle.owner_incarnation_;
  return message;
}

// --- Maintenance

void References::RenewHeld() {
  struct Held {
    std::vector<ForkMessage> messages;
    std::vector<std::weak_ptr<ReferenceHandle>> handles;  // empty for forks on their way to other workers
  };
  std::map<std::string, Held> by_owner;
  std::vector<std::shared_ptr<const void>> after;  // destroyed without the lock
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [fork, weak] : held_forks_) {
      const std::shared_ptr<ReferenceHandle> handle = weak.lock();
      if (handle == nullptr) continue;
      after.push_back(handle);
      if (!handle->lost().ok()) continue;
      Held& held = by_owner[handle->owner_];
      held.messages.push_back(MessageOf(*handle, fork, name_));
      held.handles.push_back(handle);
    }
    for (const auto& [fork, weak] : borrows_) {
      const std::shared_ptr<Borrow> borrow = weak.lock();
      if (borrow == nullptr) continue;
      after.push_back(borrow);
      if (borrow->handle->local_) {
        const auto value = values_.find(borrow->handle->key_);
        if (value == values_.end()) continue;
        const auto found = value->second.forks.find(fork);
        if (found != value->second.forks.end()) found->second.expiry = MonotonicNow() + lease_;
        continue;
      }
      Held& held = by_owner[borrow->handle->owner_];
      held.messages.push_back(MessageOf(*borrow->handle, fork, borrow->to));
      held.handles.emplace_back();
    }
  }
  Use use(this);
  if (use.agent() == nullptr) return;
  for (auto& [owner, held] : by_owner) {
    use.agent()
        ->RpcAsync(CallTarget(owner, {.timeout = lease_}), kRenewForks, std::move(held.messages))
        .Then([handles = std::move(held.handles),
               owner = owner](const absl::StatusOr<std::vector<int64_t>>& lost) {
          if (!lost.ok()) return;  // the next renewal may succeed
          for (const int64_t index : *lost) {
            if (index < 0 || index >= static_cast<int64_t>(handles.size())) continue;
            if (const auto handle = handles[static_cast<size_t>(index)].lock()) {
              absl::MutexLock lock(&handle->mutex_);
              handle->lost_ = Released(owner);
            }
          }
        });
  }
}

void References::KeepForALease(std::shared_ptr<const void> references) {
  absl::MutexLock lock(&mutex_);
  if (agent_ == nullptr) return;
  kept_.emplace_back(MonotonicNow() + lease_, std::move(references));
}

void References::RunMaintenance() {
  RenewHeld();
  std::vector<std::shared_ptr<const void>> over;  // destroyed without the lock
  DeferredActions actions;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = MonotonicNow();
    std::vector<ReferenceNumber> thinned;
    for (auto& [key, value] : values_) {
      const size_t before = value.forks.size();
      for (auto fork = value.forks.begin(); fork != value.forks.end();) {
        fork = fork->second.expiry < now ? value.forks.erase(fork) : std::next(fork);
      }
      if (value.forks.size() != before) thinned.push_back(key);
    }
    for (const ReferenceNumber& key : thinned) FreeIfUnused(key, &actions);
    for (auto& [until, references] : kept_) {
      if (until < now) over.push_back(std::move(references));
    }
    std::erase_if(kept_, [](const auto& entry) { return entry.second == nullptr; });
    absl::erase_if(released_values_, [now](const auto& entry) { return entry.second < now; });
    absl::erase_if(deleted_forks_, [now](const auto& entry) { return entry.second < now; });
    absl::erase_if(dropped_, [now](const auto& entry) { return entry.second.until < now; });
  }
  actions.Run();
}

void References::ReleaseAll() {
  std::vector<std::shared_ptr<ReferenceHandle>> handles;
  std::vector<std::pair<absl::Time, std::shared_ptr<const void>>> kept;
  {
    absl::MutexLock lock(&mutex_);
    kept.swap(kept_);
    for (const auto& [fork, weak] : held_forks_) {
      if (auto handle = weak.lock()) handles.push_back(std::move(handle));
    }
    held_forks_.clear();
  }
  for (const auto& handle : handles) {
    {
      absl::MutexLock lock(&handle->mutex_);
      handle->lost_ = absl::FailedPreconditionError("the worker that held this reference has shut down");
    }
    Delete(handle->owner_, MessageOf(*handle, handle->fork_, name_));
  }
}

}  // namespace tandem::rpc::remote
