// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/replica_impl.h"

namespace tandem::ps {
namespace {

constexpr absl::Duration kLongestWait = absl::Seconds(10);  // before a copy that fails is made anew
constexpr absl::Duration kAttachTimeout = absl::Seconds(2);
constexpr absl::Duration kProbeTimeout = absl::Seconds(1);
constexpr absl::Duration kWatchTimeout = absl::Seconds(15);
constexpr absl::Duration kBetweenWatches = absl::Milliseconds(20);
constexpr absl::Duration kStepDownTimeout = absl::Seconds(10);
constexpr char kAttach[] = "/tandem.v1.Failover/Attach";
constexpr char kWatchMethod[] = "/tandem.v1.Failover/Watch";
constexpr char kGetPlacement[] = "/tandem.v1.Failover/GetPlacement";

}  // namespace

// Learners and followers.

void Replica::Impl::BeginCopy(const Copy& self, const ShardPlacement& placement) {
  asked_at_ = absl::InfinitePast();
  path_.SetServing(false, absl::StrCat("this process copies shard ", options_.shard, " from its primary at ",
                                       placement.primary.address));
  // The primary decides whether what is here is of use: it sends the records behind it, or other tables.
  const Lineage held = path_.receiver().Reopen(placement.term, placement.primary.id, self.id);
  if (held.term == 0) {
    path_.receiver().Drop("the copy begins anew");
    path_.Clear();
    path_.receiver().Open(placement.term, placement.primary.id, self.id);
  }
  attached_ = false;
  unlinked_since_ = absl::InfiniteFuture();
  LogInfo(absl::StrCat(
      "shard ", options_.shard, ": copy ", self.id, " begins, from the primary ", placement.primary.id,
      " at ", placement.primary.address, ", term ", placement.term,
      held.term == 0 ? ""
                     : absl::StrCat(", with what it has: record ", held.position, " of term ", held.term)));
  v1::AttachRequest request;
  *request.mutable_me() = ps::ToProto(self);
  request.set_shard(options_.shard);
  request.set_num_servers(options_.num_servers);
  request.set_num_buckets(options_.num_buckets);
  request.set_primary(placement.primary.id);
  request.set_term(placement.term);
  request.set_held_term(held.term);
  request.set_held_position(held.position);
  const auto done = Posts<absl::StatusOr<v1::AttachResponse>>(
      [id = self.id](Impl& impl, const absl::StatusOr<v1::AttachResponse>& response) {
        impl.Attached(id, response.status());
      });
  absl::StatusOr<rpc::Channel*> channel = ChannelTo(placement.primary.address);
  if (!channel.ok()) return done(channel.status());
  CallAsync<v1::AttachResponse>(**channel, kAttach, request, kAttachTimeout, done);
}

void Replica::Impl::Attached(const std::string& id, const absl::Status& status) {
  if (id != protocol_->self().id) return;
  if (status.ok()) {
    nobody_since_ = absl::InfiniteFuture();
    attached_ = true;
    detector_.Follow(MonotonicNow());
    return Watch(id);
  }
  if (absl::IsInvalidArgument(status)) {
    const absl::Status mismatch = absl::FailedPreconditionError(
        absl::StrCat("this process cannot copy shard ", options_.shard, ": ", status.message()));
    return Handle([&](Protocol& p, Protocol::Actions* a) { p.OnMismatch(mismatch, a); });
  }
  LogDebug(absl::StrCat("shard ", options_.shard, ": not attached: ", status.message()));
  Forget(protocol_->placement().primary.address);
  Handle([&](Protocol& p, Protocol::Actions* a) { p.OnAttachFailed(id, a); });
}

void Replica::Impl::Watch(const std::string& id) {
  const Protocol::Role role = protocol_->role();
  if (id != protocol_->self().id || (role != Protocol::Role::kLearner && role != Protocol::Role::kFollower)) {
    return;
  }
  v1::WatchRequest request;
  request.set_me(id);
  request.set_known_version(protocol_->placement().version);
  const auto done = Posts<absl::StatusOr<v1::WatchResponse>>(
      [id](Impl& impl, const absl::StatusOr<v1::WatchResponse>& response) { impl.Watched(id, response); });
  absl::StatusOr<rpc::Channel*> channel = ChannelTo(protocol_->placement().primary.address);
  if (!channel.ok()) return done(channel.status());
  CallAsync<v1::WatchResponse>(**channel, kWatchMethod, request, kWatchTimeout, done);
}

void Replica::Impl::Watched(const std::string& id, const absl::StatusOr<v1::WatchResponse>& response) {
  const Protocol::Role role = protocol_->role();
  if (id != protocol_->self().id || (role != Protocol::Role::kLearner && role != Protocol::Role::kFollower)) {
    return;
  }
  const Copy primary = protocol_->placement().primary;
  const uint64_t term = protocol_->placement().term;
  const auto lost = [term](Impl& impl) {
    impl.Handle([term](Protocol& p, Protocol::Actions* a) { p.OnPrimaryLost(term, a); });
  };
  if (!response.ok()) {
    LogDebug(absl::StrCat("shard ", options_.shard,
                          ": the primary does not answer: ", response.status().message()));
    Forget(primary.address);
    probes_.Post([weak = weak_from_this(), this, id, primary, lost] {
      const std::shared_ptr<Impl> self = weak.lock();
      if (self == nullptr || stopping_) return;
      // A port that refuses connections belongs to a process that is dead. Any other error may pass; if it
      // does not, the primary is silent for the lease.
      if (Refuses(primary.address)) {
        return Post(lost);
      }
      After(kBetweenWatches, [id](Impl& impl) { impl.Watch(id); });
    });
    return;
  }
  if (response->self().id() != primary.id || response->role() != v1::REPLICA_ROLE_PRIMARY) {
    return lost(*this);  // another life of the process, or a copy that is deposed
  }
  Handle([&](Protocol& p, Protocol::Actions* a) {
    p.OnTold(FromProto(response->placement()), a);
    // The primary has no link to a copy that has failed; the pause before the next copy goes on.
    if (response->attached() || failed_copy_ == id || detaching_) {
      unlinked_since_ = absl::InfiniteFuture();
      return;
    }
    p.OnUnlinked(id, a);
    // A primary that needs this copy does not remove it from the document (min_copies), but its link has
    // ended for good: only a new copy can be linked.
    unlinked_since_ = std::min(unlinked_since_, MonotonicNow());
    if (MonotonicNow() - unlinked_since_ < options_.give_up) return;
    LogWarning(absl::StrCat("shard ", options_.shard, ": copy ", id,
                            " begins anew: its primary has had no "
                            "link to it for ",
                            absl::FormatDuration(options_.give_up)));
    p.OnCopyFailed(id, a);
  });
  After(kBetweenWatches, [id](Impl& impl) { impl.Watch(id); });
}

void Replica::Impl::CopyFailed(const std::string& id, const absl::Status& why) {
  if (id != protocol_->self().id) return;
  if (absl::IsFailedPrecondition(why)) {
    // Another attempt would end likewise: this server cannot hold the primary's tables.
    const absl::Status mismatch =
        Annotate(why, absl::StrCat("this process cannot hold a copy of shard ", options_.shard));
    return Handle([&](Protocol& p, Protocol::Actions* a) { p.OnMismatch(mismatch, a); });
  }
  const absl::Duration pause = std::min(kWait * (1 << std::min(failed_copies_++, 10)), kLongestWait);
  failed_copy_ = id;
  LogWarning(absl::StrCat("shard ", options_.shard, ": this copy is made anew in ",
                          absl::FormatDuration(pause), ": ", why.message()));
  After(pause,
        [id](Impl& impl) { impl.Handle([&](Protocol& p, Protocol::Actions* a) { p.OnCopyFailed(id, a); }); });
}

void Replica::Impl::Probe(const ShardPlacement& placement) {
  struct Answers {
    size_t missing = 0;
    bool alive = false;
    bool unclear = false;
  };
  std::vector<Copy> copies = placement.in_sync;
  copies.push_back(placement.primary);
  auto answers = std::make_shared<Answers>();  // of the loop's thread
  answers->missing = copies.size();
  const auto decide = [version = placement.version, answers](Impl& impl) {
    if (--answers->missing > 0) return;
    const absl::Time now = MonotonicNow();
    impl.nobody_since_ = answers->alive ? absl::InfiniteFuture() : std::min(impl.nobody_since_, now);
    // Without a document a primary that this copy does not know may be about to publish it again.
    const bool published = now - impl.no_placement_since_ < absl::ZeroDuration();
    const bool may_live = answers->alive ||
                          (answers->unclear && now - impl.nobody_since_ < impl.options_.give_up) ||
                          (!published && now - impl.no_placement_since_ < impl.options_.publish_time);
    impl.Handle([&](Protocol& p, Protocol::Actions* a) { p.OnProbed(version, may_live, a); });
  };
  for (const Copy& copy : copies) {
    const auto done = Posts<absl::StatusOr<v1::ReplicaStatus>>(
        [copy, answers, decide](Impl& impl, const absl::StatusOr<v1::ReplicaStatus>& status) {
          if (status.ok()) {
            // Another copy at that address means that this one is gone: a process has one copy at a time.
            answers->alive = answers->alive || status->self().id() == copy.id;
            return decide(impl);
          }
          impl.Forget(copy.address);
          const bool posted = impl.probes_.Post([weak = impl.weak_from_this(), copy, answers, decide] {
            const std::shared_ptr<Impl> self = weak.lock();
            if (self == nullptr || self->stopping_) return;
            const bool refused = self->Refuses(copy.address);
            // Another host's view may differ: this process may have no way to the copy.
            const bool lives = self->options_.board->IsAlive(copy.address, kBoardTimeout).value_or(true);
            self->Post([answers, decide, refused, lives](Impl& impl) {
              answers->unclear = answers->unclear || !refused;
              answers->alive = answers->alive || lives;
              decide(impl);
            });
          });
          (void)posted;  // refused only when the replica stops
        });
    absl::StatusOr<rpc::Channel*> channel = ChannelTo(copy.address);
    if (!channel.ok()) {
      done(channel.status());
      continue;
    }
    CallAsync<v1::ReplicaStatus>(**channel, kGetPlacement, v1::GetPlacementRequest(), kProbeTimeout, done);
  }
}

void Replica::Impl::ApplyReceived() {
  const std::string id = protocol_->self().id;
  path_.receiver().ApplyAll(Posts<const absl::Status&>([id](Impl& impl, const absl::Status& applied) {
    if (!applied.ok()) {
      LogWarning(absl::StrCat("shard ", impl.options_.shard, ": copy ", id,
                              " cannot take over: ", applied.message()));
    }
    impl.Handle([&](Protocol& p, Protocol::Actions* a) {
      applied.ok() ? p.OnApplied(id, a) : p.OnCopyFailed(id, a);
    });
  }));
}

// The primary.

LinkEvents Replica::Impl::Events() {
  const auto handle = [](auto event) {
    return [event](Impl& impl, const std::string& id) {
      impl.Handle([&](Protocol& p, Protocol::Actions* a) { (p.*event)(id, a); });
    };
  };
  return {
      .on_complete = Posts<const std::string&>(handle(&Protocol::OnComplete)),
      .on_caught_up = Posts<const std::string&>(handle(&Protocol::OnCaughtUp)),
      .on_heard = Posts<const std::string&, const ClockReading&>(
          [](Impl& impl, const std::string& id, const ClockReading& sent) {
            impl.detector_.FollowerHeard(id, sent);
            impl.UpdateLease();
          }),
      .on_higher_term =
          Posts<const std::string&, uint64_t>([](Impl& impl, const std::string&, uint64_t term) {
            impl.Handle([&](Protocol& p, Protocol::Actions* a) { p.OnHigherTerm(term, a); });
          }),
      .on_gone = Posts<const std::string&, const absl::Status&>(
          [](Impl& impl, const std::string& id, const absl::Status& why) {
            LogInfo(absl::StrCat("shard ", impl.options_.shard, ": the link to copy ", id,
                                 " has ended: ", why.message()));
            // The copy is told at once, also if the document has to name it still. Nothing that was heard of
            // it before revives the link.
            impl.linked_.erase(id);
            impl.detector_.TakeForDead(id, absl::InfiniteFuture());
            impl.Handle([&](Protocol& p, Protocol::Actions* a) { p.OnLinkEnded(id, a); });
          }),
  };
}

void Replica::Impl::Lead(const ShardPlacement& placement) {
  path_.receiver().Raise(placement.term);
  const absl::Status promoted = path_.Promote({.term = placement.term,
                                               .id = placement.primary.id,
                                               .min_copies = options_.min_copies,
                                               .max_link_bytes = options_.max_link_bytes,
                                               .lease = options_.lease,
                                               .events = Events()});
  if (!promoted.ok()) {
    // The document names this process already; only its end lets others see that the shard is lost.
    return End(Annotate(promoted, absl::StrCat("shard ", options_.shard, " cannot be served")));
  }
  promoted_ = true;
  linked_.clear();
  if (placement.term > 1) takeover_ = MonotonicNow() - takeover_began_;
  const absl::Time asked_at = std::exchange(asked_at_, absl::InfinitePast());
  handover_pause_ = asked_at > absl::InfinitePast() ? MonotonicNow() - asked_at : absl::ZeroDuration();
  LogInfo(absl::StrCat(
      "shard ", options_.shard, ": copy ", placement.primary.id, " is the primary of term ", placement.term,
      placement.term == 1
          ? ""
          : absl::StrCat(", ", absl::FormatDuration(takeover_), " after the takeover began")));
}

void Replica::Impl::StepDown(const std::string& id) {
  LogInfo(absl::StrCat("shard ", options_.shard, ": ", refusal_, "; this process becomes a follower"));
  promoted_ = false;
  detector_.EndAllLinks();
  linked_.clear();
  probed_.clear();
  FailRemoval(refusal_);
  const auto stepped_down = [id](Impl& impl, const absl::Status& status) {
    impl.Handle([&](Protocol& p, Protocol::Actions* a) { p.OnSteppedDown(id, status, a); });
  };
  path_.StepDown(Posts<const absl::Status&>(stepped_down));
  After(kStepDownTimeout, [stepped_down](Impl& impl) {
    stepped_down(impl, absl::DeadlineExceededError(absl::StrCat("the calls under way have not ended within ",
                                                                absl::FormatDuration(kStepDownTimeout))));
  });
}

void Replica::Impl::StartLink(const Copy& copy, const Lineage& held) {
  detector_.StartLink(copy.id, {.monotonic = MonotonicNow(), .boot = path_.BootTime()});
  linked_.insert(copy.id);
  const auto connect = [&]() -> absl::Status {
    absl::StatusOr<std::unique_ptr<rpc::Channel>> channel =
        options_.connect ? options_.connect(copy.address)
                         : rpc::ConnectGrpc(copy.address, {.caller = options_.caller});
    if (!channel.ok()) return channel.status();
    return path_.StartLink(copy, *std::move(channel), held);
  };
  if (const absl::Status started = connect(); !started.ok()) {
    LogWarning(
        absl::StrCat("shard ", options_.shard, ": no link to copy ", copy.id, ": ", started.message()));
    Post([id = copy.id](Impl& impl) {
      impl.Handle([&](Protocol& p, Protocol::Actions* a) { p.OnLinkEnded(id, a); });
    });
  }
}

void Replica::Impl::EndLink(const std::string& id) {
  detector_.EndLink(id);
  linked_.erase(id);
  probed_.erase(id);
  if (promoted_) path_.log()->DropLink(id);
}

absl::Status Replica::Impl::RemoveFollowers(absl::Duration timeout) {
  auto done = std::make_shared<TimedNotification>();
  auto result = std::make_shared<absl::Status>();
  {
    absl::MutexLock lock(&removal_mutex_);
    if (stopping_) return absl::UnavailableError("the server is stopping");
    if (removed_) return absl::UnavailableError("followers are being removed already");
    removed_ = [done, result](const absl::Status& status) {
      *result = status;
      done->Notify();
    };
  }
  Post([](Impl& impl) {
    if (impl.end_.ok() && impl.protocol_.has_value() && impl.protocol_->role() == Protocol::Role::kPrimary) {
      return impl.Handle([](Protocol& p, Protocol::Actions* a) { p.OnRemoveFollowers(a); });
    }
    impl.FailRemoval("this copy is not the primary");
  });
  if (!done->WaitFor(timeout)) {
    absl::MutexLock lock(&removal_mutex_);
    if (removed_) {
      removed_ = nullptr;
      return absl::UnavailableError(absl::StrCat("shard ", options_.shard,
                                                 ": the followers could not be removed from the placement "
                                                 "document within ",
                                                 absl::FormatDuration(timeout),
                                                 ": the job's store does not answer"));
    }
  }
  done->Wait();
  return *result;
}

void Replica::Impl::FailRemoval(const std::string& why) {
  absl::MutexLock lock(&removal_mutex_);
  if (removed_) std::exchange(removed_, nullptr)(absl::UnavailableError(why));
}

void Replica::Impl::AllowFollowers() {
  Post([](Impl& impl) {
    if (impl.protocol_.has_value()) impl.protocol_->OnAllowFollowers();
  });
}

}  // namespace tandem::ps
