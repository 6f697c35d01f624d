// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/replica.h"

#include "ps/failover/replica_impl.h"

namespace tandem::ps {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);
constexpr absl::Duration kQuiet = absl::Milliseconds(300);  // of a link, before its process is asked for
// A primary that was asked to leave and is deposed within this time has left.
constexpr absl::Duration kLeaveWish = absl::Seconds(10);
constexpr absl::Duration kSlowTakeover = absl::Seconds(5);  // is told, again and again
constexpr absl::Duration kLoadTimeout = absl::Seconds(30);  // to remove followers before tables are loaded

std::string NewLife() {
  std::random_device device;
  return absl::StrFormat("%08x%08x", device(), device());
}

}  // namespace

Replica::Replica(ReplicaOptions options) : impl_(std::make_shared<Impl>(std::move(options))) {}
Replica::~Replica() { Stop(); }
rpc::Service Replica::service() { return impl_->MakeService(); }
void Replica::Start(const std::string& address) { impl_->Start(address); }
v1::ReplicaStatus Replica::Status() const { return impl_->Status(); }
absl::Status Replica::RemoveFollowers(absl::Duration timeout) { return impl_->RemoveFollowers(timeout); }
void Replica::AllowFollowers() { impl_->AllowFollowers(); }
void Replica::BoardReset() { impl_->BoardReset(); }
absl::Status Replica::HandOver(const std::string& to, absl::Duration timeout) {
  return impl_->HandOver(to, timeout);
}
absl::Status Replica::Leave(absl::Duration timeout) { return impl_->Leave(timeout); }
bool Replica::left() const { return impl_->left(); }
bool Replica::handed_over() const { return impl_->handed_over(); }
void Replica::Stop() { impl_->Stop(); }

Replica::Impl::Impl(ReplicaOptions options)
    : options_(std::move(options)),
      path_(*options_.server->data_path()),
      detector_(options_.lease, options_.silence, options_.stall) {
  TANDEM_CHECK(options_.board != nullptr && options_.silence < options_.lease);
}

void Replica::Impl::Post(std::function<void(Impl&)> body) {
  loop_.RunSoon([weak = weak_from_this(), body = std::move(body)] {
    if (const std::shared_ptr<Impl> self = weak.lock(); self != nullptr && !self->stopping_) body(*self);
  });
}

void Replica::Impl::After(absl::Duration delay, std::function<void(Impl&)> body) {
  loop_.Schedule(MonotonicNow() + delay, [weak = weak_from_this(), body = std::move(body)] {
    if (const std::shared_ptr<Impl> self = weak.lock(); self != nullptr && !self->stopping_) body(*self);
  });
}

void Replica::Impl::Start(const std::string& address) {
  path_.SetReceiverEvents(
      {.on_heard = Posts<>([](Impl& impl) {
         impl.detector_.PrimaryHeard(MonotonicNow());
         impl.protocol_->OnPrimaryHeard(impl.protocol_->placement().term);
       }),
       .on_complete = Posts<>([](Impl& impl) {
         impl.failed_copies_ = 0;
         impl.Publish();
       }),
       .on_failure = [weak = weak_from_this()](const absl::Status& why) {
         const std::shared_ptr<Impl> self = weak.lock();
         if (self == nullptr) return;
         // The present copy is the one that has failed. A new one may have begun when the loop gets there.
         self->Post([id = self->waits_.known().self.id, why](Impl& impl) { impl.CopyFailed(id, why); });
       }});
  path_.SetLoadHooks(
      [weak = weak_from_this()] {
        const std::shared_ptr<Impl> self = weak.lock();
        return self == nullptr ? absl::UnavailableError("the server is stopping")
                               : self->RemoveFollowers(kLoadTimeout);
      },
      [weak = weak_from_this()] {
        if (const std::shared_ptr<Impl> self = weak.lock()) self->AllowFollowers();
      });
  Post([address](Impl& impl) {
    impl.protocol_.emplace(NewLife(), address, impl.options_.min_copies, Protocol::Fault::kNone,
                           impl.options_.fresh && !impl.board_reset_);
    impl.Handle([](Protocol& p, Protocol::Actions* a) { p.Start(a); });
    impl.Tick();
  });
}

void Replica::Impl::Stop() {
  if (stopping_.exchange(true)) return;
  options_.board->Cancel();
  FailRemoval("the server is stopping");
  loop_.Stop();
  EndHandOver(absl::UnavailableError("the server is stopping"));
  for (const auto& reply : take_over_replies_) reply(absl::UnavailableError("the server is stopping"));
  take_over_replies_.clear();
  waits_.Stop();
  board_calls_.Stop();
  probes_.Stop();
  channels_.clear();
}

// The actions of the protocol.

void Replica::Impl::CarryOut(Action action) {
  using Kind = Action::Kind;
  switch (action.kind) {
    case Kind::kRead:
      return Read();
    case Kind::kCompareAndSet:
      return CompareAndSet(action.expected, action.placement);
    case Kind::kWait:
      return After(kWait,
                   [](Impl& impl) { impl.Handle([](Protocol& p, Protocol::Actions* a) { p.OnWaited(a); }); });
    case Kind::kAskCopies:
      return AskCopies(action.placement);
    case Kind::kBeginCopy:
      refusal_.clear();  // of an earlier primary
      return BeginCopy(action.copy, action.placement);
    case Kind::kProbe:
      return Probe(action.placement);
    case Kind::kCloseAppends:
      takeover_began_ = MonotonicNow();
      return path_.receiver().Close("this copy takes over from its primary");
    case Kind::kApplyReceived:
      return ApplyReceived();
    case Kind::kLead:
      return Lead(action.placement);
    case Kind::kStartLink:
      return StartLink(action.copy, action.held);
    case Kind::kEndLink:
      return EndLink(action.copy.id);
    case Kind::kRequire:
      // The protocol heeds the silence of required copies only: it has not heeded an earlier report.
      detector_.ReportSilenceAgain(action.copy.id, MonotonicNow());
      if (const absl::Status required = path_.log()->Require(action.copy.id); !required.ok()) {
        Post([id = action.copy.id](Impl& impl) {
          impl.Handle([&](Protocol& p, Protocol::Actions* a) { p.OnLinkEnded(id, a); });
        });
      }
      return;
    case Kind::kRelease:
      if (promoted_) path_.log()->Release(action.copy.id);
      return;
    case Kind::kConfirm:
      if (promoted_) path_.log()->Confirm(action.placement.in_sync.size());
      return;
    case Kind::kServe:
      refusal_.clear();
      if (promoted_) path_.SetServing(true, "");
      return;
    case Kind::kRefuse:
      refusal_ = std::string(action.status.message());
      if (protocol_->role() == Protocol::Role::kPrimary) {
        LogWarning(absl::StrCat("shard ", options_.shard, ": ", refusal_));
      }
      return path_.SetServing(false, refusal_);
    case Kind::kFollowersRemoved: {
      Publish();  // whoever asked for this finds it in the status
      absl::MutexLock lock(&removal_mutex_);
      if (removed_) std::exchange(removed_, nullptr)(absl::OkStatus());
      return;
    }
    case Kind::kTellTakeOver:
      return TellTakeOver(action.copy, action.placement);
    case Kind::kStepDown:
      return StepDown(action.copy.id);
    case Kind::kEnd:
      // The protocol ends a process with Cancelled only after a hand-over (Depose).
      handed_over_ = absl::IsCancelled(action.status);
      return End(action.status);
  }
}

void Replica::Impl::Read() {
  const bool posted = board_calls_.Post([weak = weak_from_this(), this] {
    const std::shared_ptr<Impl> self = weak.lock();
    if (self == nullptr || stopping_) return;
    absl::StatusOr<v1::ShardPlacement> found = options_.board->Read(options_.shard, kBoardTimeout);
    Post([found = std::move(found)](Impl& impl) {
      if (absl::IsDataLoss(found.status())) {
        return impl.End(Annotate(found.status(), "the placement document is damaged"));
      }
      if (found.ok()) {
        impl.board_error_.clear();
        impl.Handle([&](Protocol& p, Protocol::Actions* a) { p.OnRead(FromProto(*found), a); });
        impl.NoticePlacement();
      } else {
        impl.board_error_ = absl::StrCat("the placement document cannot be read: ", found.status().message());
        impl.Handle([&](Protocol& p, Protocol::Actions* a) { p.OnReadFailed(a); });
      }
    });
  });
  (void)posted;  // refused only when the replica stops
}

void Replica::Impl::CompareAndSet(uint64_t expected, const ShardPlacement& desired) {
  board_calls_.Post([weak = weak_from_this(), this, expected, desired] {
    const std::shared_ptr<Impl> self = weak.lock();
    if (self == nullptr || stopping_) return;
    absl::StatusOr<CompareAndSetResult> result =
        options_.board->CompareAndSet(options_.shard, expected, ps::ToProto(desired), kBoardTimeout);
    Post([result = std::move(result)](Impl& impl) {
      using Outcome = CompareAndSetResult::Outcome;
      const absl::Status error = result.ok() ? result->error : result.status();
      impl.board_error_ =
          error.ok() ? "" : absl::StrCat("the placement document cannot be changed: ", error.message());
      // An error before anything was sent is taken for an unknown outcome, which is on the safe side.
      const Outcome outcome = result.ok() ? result->outcome : Outcome::kUnknown;
      impl.Handle([&](Protocol& p, Protocol::Actions* a) {
        switch (outcome) {
          case Outcome::kDone:
            if (std::exchange(impl.no_placement_since_, absl::InfiniteFuture()) < absl::InfiniteFuture()) {
              LogInfo(absl::StrCat("shard ", impl.options_.shard,
                                   ": its placement document is in the job's store again"));
            }
            return p.OnCompareAndSet(Protocol::Outcome::kDone, {}, a);
          case Outcome::kChanged:
            return p.OnCompareAndSet(Protocol::Outcome::kChanged, FromProto(result->current), a);
          case Outcome::kUnknown:
            return p.OnCompareAndSet(Protocol::Outcome::kUnknown, {}, a);
        }
      });
      impl.NoticePlacement();
    });
  });
}

// Both.

void Replica::Impl::End(const absl::Status& status) {
  if (!end_.ok()) return;
  end_ = status;
  // The follower to which it was to hand over has taken over, and its answer was lost.
  if (absl::IsCancelled(status) && MonotonicNow() - leave_asked_ < kLeaveWish) left_ = true;
  const std::string message = absl::StrCat("shard ", options_.shard, ": ", status.message());
  absl::IsCancelled(status) ? LogInfo(message) : LogError(message);
  path_.SetServing(false, std::string(status.message()));
  FailRemoval(std::string(status.message()));
  EndHandOver(absl::UnavailableError(message));
  Publish();
  if (options_.on_end) options_.on_end(status);
}

void Replica::Impl::Tick() {
  const absl::Time now = MonotonicNow();
  detector_.Tick(now);
  GiveUpPlacement(now);
  Handle([&](Protocol& p, Protocol::Actions* a) {
    switch (p.role()) {
      case Protocol::Role::kLearner:
      case Protocol::Role::kFollower:
        // A learner that is not attached yet has its own reasons to doubt (OnAttachFailed).
        if (attached_ && detector_.IsPrimaryLost(now)) p.OnPrimaryLost(p.placement().term, a);
        return;
      case Protocol::Role::kPrimary: {
        for (const LinkState& link : path_.log()->links()) {
          detector_.FollowerStored(link.copy.id, link.stored_position, path_.log()->last_position(), now);
        }
        const Detector::Changes changes = detector_.TakeChanges(now);
        for (const std::string& id : changes.silent) {
          LogInfo(absl::StrCat("shard ", options_.shard, ": copy ", id, " is silent, or stores nothing"));
          p.OnFollowerSilent(id, a);
        }
        for (const std::string& id : changes.heard) p.OnFollowerHeard(id, a);
        ProbeLinks(now);
        return p.OnLease(detector_.HoldsLease(p.MayTakeOver(), path_.BootTime()), a);
      }
      case Protocol::Role::kTakingOver:
        return WarnOfSlowTakeover(now);
      default:
        return;
    }
  });
  primary_silent_ms_ = attached_ && !promoted_ ? absl::ToInt64Milliseconds(detector_.PrimarySilence(now)) : 0;
  waits_.Expire(now);
  After(kTick, [](Impl& impl) { impl.Tick(); });
}

void Replica::Impl::WarnOfSlowTakeover(absl::Time now) {
  if (now - std::max(takeover_began_, takeover_warned_) < kSlowTakeover) return;
  takeover_warned_ = now;
  const Receiver::State received = path_.receiver().state();
  LogWarning(absl::StrCat("shard ", options_.shard, ": this copy takes over since ",
                          absl::FormatDuration(absl::Trunc(now - takeover_began_, absl::Seconds(1))),
                          ": it has applied record ", received.applied_position, " of ",
                          received.stored_position, ". If that stands still, its disk may (--ps-spill)"));
}

void Replica::Impl::ProbeLinks(absl::Time now) {
  for (const std::string& id : detector_.Quiet(kQuiet, now)) {
    const Copy* const copy = protocol_->FindCopy(id);
    if (copy == nullptr) continue;
    absl::Time& probed = probed_[id];
    if (now - probed < kQuiet) continue;
    probed = absl::InfiniteFuture();  // a probe is under way: one at a time, since each may take long
    probes_.Post([weak = weak_from_this(), this, address = copy->address, id] {
      const std::shared_ptr<Impl> self = weak.lock();
      if (self == nullptr || stopping_) return;
      Post([id, refused = Refuses(address)](Impl& impl) {
        if (const auto at = impl.probed_.find(id); at != impl.probed_.end()) at->second = MonotonicNow();
        if (!refused) return;
        impl.detector_.TakeForDead(id, MonotonicNow());
        impl.Handle([&](Protocol& p, Protocol::Actions* a) { p.OnLinkEnded(id, a); });
      });
    });
  }
}

void Replica::Impl::UpdateLease() {
  if (promoted_ && protocol_->role() == Protocol::Role::kPrimary) {
    path_.SetLeaseEnd(detector_.LeaseEnd(protocol_->MayTakeOver()));
  }
}

void Replica::Impl::Publish() {
  UpdateLease();
  StatusWaits::Known known{
      .placement = protocol_->placement(),
      .self = protocol_->self(),
      .role = end_.ok() ? protocol_->role() : Protocol::Role::kEnded,
      .serving = protocol_->serving() && promoted_ && end_.ok(),
      .linked = linked_,
      .failure = !end_.ok()          ? std::string(end_.message())
                 : !refusal_.empty() ? refusal_
                                     : board_error_,
      .takeover = takeover_,
      .handover_pause = handover_pause_,
      .handing_over_to = protocol_->handing_over() ? protocol_->hand_over_to().address : ""};
  const StatusWaits::Known before = waits_.known();
  const bool published = waits_.Publish(known);
  AnswerTakeOver();  // the caller finds the decision in the status
  if (!published) return;
  const bool changed = before.role != known.role || before.serving != known.serving ||
                       before.placement.term != known.placement.term;
  if (changed && options_.on_change) options_.on_change(Status());
}

absl::StatusOr<rpc::Channel*> Replica::Impl::ChannelTo(const std::string& address) {
  std::unique_ptr<rpc::Channel>& channel = channels_[address];
  if (channel == nullptr) {
    absl::StatusOr<std::unique_ptr<rpc::Channel>> made =
        options_.connect ? options_.connect(address) : rpc::ConnectGrpc(address, {.caller = options_.caller});
    if (!made.ok()) return made.status();
    channel = *std::move(made);
  }
  return channel.get();
}

void Replica::Impl::Forget(const std::string& address) { channels_.erase(address); }

}  // namespace tandem::ps
