// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/replica_impl.h"

namespace tandem::ps {
namespace {

// Calls wait for at most the sum of these two, a call to the board and its answer.
constexpr absl::Duration kStoreTimeout = absl::Milliseconds(300);  // until the follower has stored everything
constexpr absl::Duration kTakeOverTimeout = absl::Milliseconds(500);  // until it has applied that and serves
constexpr absl::Duration kLookAgain = absl::Milliseconds(5);
// The follower may be this number of records behind when calls begin to wait for it. The limit doubles each
// kPatience, so that a follower that is always behind is chosen in the end.
constexpr uint64_t kFirstLag = 16;
constexpr absl::Duration kPatience = absl::Milliseconds(500);
constexpr absl::Duration kDetachTimeout = absl::Seconds(5);
constexpr char kTakeOver[] = "/tandem.v1.Failover/TakeOver";
constexpr char kDetach[] = "/tandem.v1.Failover/Detach";

// The result of a call that another thread waits for.
struct Result {
  TimedNotification done;
  absl::Status status;
};

}  // namespace

absl::Status Replica::Impl::HandOver(const std::string& to, absl::Duration timeout) {
  if (stopping_) return absl::UnavailableError("the server is stopping");
  auto result = std::make_shared<Result>();
  const auto done = [result](const absl::StatusOr<v1::HandOverResponse>& response) {
    result->status = response.status();
    result->done.Notify();
  };
  Post([to, deadline = MonotonicNow() + timeout, done](Impl& impl) {
    impl.StartHandOver(to, /*stays=*/true, deadline, NeverGone, done);
  });
  // The hand-over ends by itself soon after its deadline, unless the replica is being stopped.
  const absl::Duration longest = timeout + kStoreTimeout + kTakeOverTimeout + kBoardTimeout;
  if (!result->done.WaitFor(longest)) return absl::UnavailableError("the server is stopping");
  return result->status;
}

void Replica::Impl::HandleHandOver(const std::shared_ptr<rpc::ServerCall>& call,
                                   const v1::HandOverRequest& request,
                                   rpc::Reply<v1::HandOverResponse> reply) {
  if (stopping_) return reply(absl::UnavailableError("the server is stopping"));
  // Leaves time for the hand-over itself.
  const absl::Time deadline = call->deadline() - kStoreTimeout - kTakeOverTimeout;
  Post([to = request.to(), deadline, call, reply = std::move(reply)](Impl& impl) {
    impl.StartHandOver(to, /*stays=*/true, deadline, GoneOf(call), reply);
  });
}

void Replica::Impl::StartHandOver(const std::string& to, bool stays, absl::Time deadline, Gone caller_gone,
                                  std::function<void(absl::StatusOr<v1::HandOverResponse>)> done) {
  if (!protocol_.has_value()) return done(absl::UnavailableError("the server is starting"));
  if (!end_.ok()) return done(absl::FailedPreconditionError(end_.message()));
  if (hand_over_.has_value()) {
    return done(absl::UnavailableError(absl::StrCat(
        "shard ", options_.shard, ": a hand-over to ",
        hand_over_->to.empty() ? "the follower that is least behind" : hand_over_->to, " is under way")));
  }
  hand_over_ = PendingHandOver{.number = ++hand_overs_,
                               .to = to,
                               .began = MonotonicNow(),
                               .deadline = deadline,
                               .stays = stays,
                               .caller_gone = std::move(caller_gone),
                               .done = std::move(done)};
  ChooseFollower();
}

std::optional<LinkState> Replica::Impl::FollowerFor(const std::string& to) const {
  std::optional<LinkState> best;
  for (LinkState& link : path_.log()->links()) {
    if (!protocol_->placement().IsInSync(link.copy.id)) continue;
    if (!to.empty() && to != link.copy.id && to != link.copy.address) continue;
    if (!best.has_value() || link.applied_position > best->applied_position) best = std::move(link);
  }
  return best;
}

void Replica::Impl::ChooseFollower() {
  const absl::Time now = MonotonicNow();
  if (EndAbandoned()) return;
  if (protocol_->role() != Protocol::Role::kPrimary || !promoted_) {
    return EndHandOver(absl::FailedPreconditionError(
        absl::StrCat("shard ", options_.shard, ": the copy at ", protocol_->self().address,
                     " is not the primary; that is the one at ", protocol_->placement().primary.address)));
  }
  absl::Status why;
  if (const std::optional<LinkState> follower = FollowerFor(hand_over_->to); !follower.has_value()) {
    why = absl::FailedPreconditionError(
        absl::StrCat("shard ", options_.shard, ": ",
                     hand_over_->to.empty() ? "no follower" : absl::StrCat("no follower ", hand_over_->to),
                     " is in sync; `tandem ps status` shows the copies"));
  } else {
    const auto doublings = static_cast<int>((now - hand_over_->began) / kPatience);
    const uint64_t most = kFirstLag << std::min(doublings, 20);
    const uint64_t lag = path_.log()->last_position() - follower->applied_position;
    if (lag > most) {
      why = absl::UnavailableError(absl::StrCat("shard ", options_.shard, ": the follower at ",
                                                follower->copy.address, " is ", lag, " records behind"));
    } else {
      Handle([&](Protocol& p, Protocol::Actions* a) {
        why = p.OnHandOver(follower->copy.id, hand_over_->stays, a);
      });
      if (why.ok()) return AwaitStored(follower->copy);
    }
  }
  if (now >= hand_over_->deadline) return EndHandOver(std::move(why));
  After(kLookAgain, [number = hand_over_->number](Impl& impl) {
    if (impl.hand_over_.has_value() && impl.hand_over_->number == number) impl.ChooseFollower();
  });
}

void Replica::Impl::AwaitStored(const Copy& follower) {
  const uint64_t number = hand_over_->number;
  hand_over_->held_since = MonotonicNow();
  LogInfo(absl::StrCat("shard ", options_.shard, ": hands over to ", follower.id, " at ", follower.address));
  const auto same = [number](Impl& impl) {
    return impl.hand_over_.has_value() && impl.hand_over_->number == number && !impl.hand_over_->told;
  };
  path_.log()->WhenDurable(Posts<const absl::Status&>([same](Impl& impl, const absl::Status& durable) {
    if (!same(impl) || !durable.ok() || impl.EndAbandoned()) return;
    impl.Handle([](Protocol& p, Protocol::Actions* a) { p.OnAllStored(a); });
  }));
  After(kStoreTimeout, [same, follower](Impl& impl) {
    if (!same(impl)) return;
    impl.HandOverFailed(absl::UnavailableError(absl::StrCat("the follower at ", follower.address,
                                                            " did not store what it lacked within ",
                                                            absl::FormatDuration(kStoreTimeout))));
  });
}

bool Replica::Impl::EndAbandoned() {
  if (hand_over_->told || !hand_over_->caller_gone()) return false;
  HandOverFailed(absl::CancelledError("its caller is gone, and the follower was not asked yet"));
  return true;
}

void Replica::Impl::TellTakeOver(const Copy& follower, const ShardPlacement& placement) {
  if (!hand_over_.has_value()) return;
  const uint64_t number = hand_over_->number;
  hand_over_->told = true;
  v1::TakeOverRequest request;
  *request.mutable_me() = ps::ToProto(follower);
  *request.mutable_placement() = ps::ToProto(placement);
  request.set_position(path_.log()->durable_position());
  request.set_held_ms(
      static_cast<uint32_t>(absl::ToInt64Milliseconds(MonotonicNow() - hand_over_->held_since)));
  const auto answered = Posts<absl::StatusOr<v1::TakeOverResponse>>(
      [number, follower](Impl& impl, const absl::StatusOr<v1::TakeOverResponse>& response) {
        if (!impl.hand_over_.has_value() || impl.hand_over_->number != number) return;
        if (!response.ok()) {
          return impl.HandOverFailed(absl::UnavailableError(absl::StrCat(
              "the follower at ", follower.address, " did not take over: ", response.status().message())));
        }
        v1::HandOverResponse done;
        *done.mutable_placement() = response->placement();
        done.set_pause_ms(response->pause_ms());
        impl.EndHandOver(std::move(done));
        impl.Handle(
            [&](Protocol& p, Protocol::Actions* a) { p.OnHandedOver(FromProto(response->placement()), a); });
      });
  absl::StatusOr<rpc::Channel*> channel = ChannelTo(follower.address);
  if (!channel.ok()) return answered(channel.status());
  CallAsync<v1::TakeOverResponse>(**channel, kTakeOver, request, kTakeOverTimeout, answered);
}

void Replica::Impl::HandOverFailed(absl::Status why) {
  const std::string address = protocol_->hand_over_to().address;
  const bool told = hand_over_.has_value() && hand_over_->told;
  Forget(address);
  LogWarning(absl::StrCat("shard ", options_.shard, ": no hand-over: ", why.message()));
  Handle([](Protocol& p, Protocol::Actions* a) { p.OnHandOverFailed(a); });
  EndHandOver(
      Annotate(std::move(why),
               told ? absl::StrCat("shard ", options_.shard, ": the follower at ", address,
                                   " may have taken over all the same; `tandem ps status` shows the primary")
                    : absl::StrCat("shard ", options_.shard, ": its primary at ", protocol_->self().address,
                                   " goes on")));
}

void Replica::Impl::EndHandOver(absl::StatusOr<v1::HandOverResponse> result) {
  if (!hand_over_.has_value()) return;
  const auto done = std::move(hand_over_->done);
  hand_over_.reset();
  done(std::move(result));
}

// Leaving.

absl::Status Replica::Impl::Leave(absl::Duration timeout) {
  if (stopping_) return absl::UnavailableError("the server is stopping");
  auto result = std::make_shared<Result>();
  Post([deadline = MonotonicNow() + timeout, result](Impl& impl) {
    impl.StartLeave("", deadline, NeverGone, [result](const absl::StatusOr<v1::LeaveResponse>& response) {
      result->status = response.status();
      result->done.Notify();
    });
  });
  const absl::Duration longest =
      timeout + std::max(kDetachTimeout, kStoreTimeout + kTakeOverTimeout + kBoardTimeout);
  if (!result->done.WaitFor(longest)) return absl::UnavailableError("the server is stopping");
  return result->status;
}

void Replica::Impl::HandleLeave(const std::shared_ptr<rpc::ServerCall>& call, const v1::LeaveRequest& request,
                                rpc::Reply<v1::LeaveResponse> reply) {
  if (stopping_) return reply(absl::UnavailableError("the server is stopping"));
  const absl::Time deadline = call->deadline() - kStoreTimeout - kTakeOverTimeout;
  Post([to = request.to(), deadline, call, reply = std::move(reply)](Impl& impl) {
    impl.StartLeave(to, deadline, GoneOf(call), reply);
  });
}

void Replica::Impl::StartLeave(const std::string& to, absl::Time deadline, Gone caller_gone,
                               std::function<void(absl::StatusOr<v1::LeaveResponse>)> done) {
  if (!protocol_.has_value() || !end_.ok()) return done(absl::UnavailableError("this process is no copy"));
  const auto left = [done](Impl& impl, const v1::ShardPlacement& placement) {
    impl.left_ = true;
    v1::LeaveResponse response;
    *response.mutable_placement() = placement;
    done(std::move(response));
  };
  const Protocol::Role role = protocol_->role();
  if (role == Protocol::Role::kPrimary) {
    const size_t followers = protocol_->placement().in_sync.size();
    if (followers == 0 || followers < static_cast<size_t>(options_.min_copies)) {
      return done(absl::FailedPreconditionError(
          absl::StrCat("shard ", options_.shard, ": ", followers, " followers of the primary at ",
                       protocol_->self().address, " are in sync, and ", std::max(1, options_.min_copies),
                       " are needed for it to leave: start another copy (tandem ps --index ", options_.shard,
                       " --copy K), and wait until `tandem ps status` shows it in sync")));
    }
    return StartHandOver(to, /*stays=*/false, deadline, std::move(caller_gone),
                         [this, done, left](const absl::StatusOr<v1::HandOverResponse>& handed) {
                           if (handed.ok()) return left(*this, handed->placement());
                           // The follower was asked, and may have taken over: the document will tell.
                           if (protocol_->handing_over()) leave_asked_ = MonotonicNow();
                           done(handed.status());
                         });
  }
  if (role != Protocol::Role::kLearner && role != Protocol::Role::kFollower) {
    return done(absl::UnavailableError(
        "this copy is about to take over, has just handed over, or is starting: try again soon"));
  }
  const auto detached = Posts<absl::StatusOr<v1::DetachResponse>>(
      [done, left](Impl& impl, const absl::StatusOr<v1::DetachResponse>& response) {
        impl.detaching_ = false;
        if (impl.protocol_->role() == Protocol::Role::kPrimary ||
            impl.protocol_->role() == Protocol::Role::kTakingOver) {
          return done(absl::UnavailableError("this copy has taken over meanwhile: try again soon"));
        }
        if (absl::IsFailedPrecondition(response.status())) return done(response.status());
        // If the primary is dead, this copy has to take over, and may be the only one.
        if (!response.ok() && impl.protocol_->role() == Protocol::Role::kFollower) {
          return done(absl::UnavailableError(
              absl::StrCat("the primary has not taken this copy out of the placement document: ",
                           response.status().message(), ": try again soon")));
        }
        // A primary that does not answer notices the end of this learner.
        left(impl, response.ok() ? response->placement() : ps::ToProto(impl.protocol_->placement()));
        impl.End(absl::CancelledError("this copy has left its shard, as asked"));
      });
  detaching_ = true;
  v1::DetachRequest request;
  request.set_me(protocol_->self().id);
  absl::StatusOr<rpc::Channel*> channel = ChannelTo(protocol_->placement().primary.address);
  if (!channel.ok()) return detached(channel.status());
  CallAsync<v1::DetachResponse>(**channel, kDetach, request, kDetachTimeout, detached);
}

void Replica::Impl::HandleDetach(const v1::DetachRequest& request, rpc::Reply<v1::DetachResponse> reply) {
  if (stopping_) return reply(absl::UnavailableError("the server is stopping"));
  Post([id = request.me(), reply = std::move(reply)](Impl& impl) {
    if (!impl.protocol_.has_value() || impl.protocol_->role() != Protocol::Role::kPrimary) {
      return reply(absl::UnavailableError("this process is not the primary"));
    }
    const ShardPlacement& placement = impl.protocol_->placement();
    const auto least = static_cast<size_t>(impl.options_.min_copies);
    if (placement.IsInSync(id) && placement.in_sync.size() < least) {
      return reply(absl::FailedPreconditionError(absl::StrCat(
          "shard ", impl.options_.shard, ": pushes need ", least,
          " copies (--min-copies), and the primary at ", impl.protocol_->self().address, " has only ",
          placement.in_sync.size(), " followers in sync: start another copy first")));
    }
    impl.Handle([&](Protocol& p, Protocol::Actions* a) { p.OnLinkEnded(id, a); });
    impl.AwaitDetached(id, MonotonicNow() + kDetachTimeout, reply);
  });
}

void Replica::Impl::AwaitDetached(const std::string& id, absl::Time deadline,
                                  const rpc::Reply<v1::DetachResponse>& reply) {
  const std::vector<std::string> may = protocol_->MayTakeOver();
  if (std::find(may.begin(), may.end(), id) == may.end()) {
    v1::DetachResponse response;
    *response.mutable_placement() = ps::ToProto(protocol_->placement());
    return reply(std::move(response));
  }
  if (MonotonicNow() >= deadline) {
    return reply(absl::UnavailableError("the placement document could not be changed"));
  }
  After(kLookAgain, [id, deadline, reply](Impl& impl) { impl.AwaitDetached(id, deadline, reply); });
}

void Replica::Impl::HandleTakeOver(const v1::TakeOverRequest& request,
                                   rpc::Reply<v1::TakeOverResponse> reply) {
  if (stopping_) return reply(absl::UnavailableError("the server is stopping"));
  Post([request, reply = std::move(reply)](Impl& impl) {
    if (!impl.protocol_.has_value() || !impl.end_.ok()) {
      return reply(absl::FailedPreconditionError("this process is no follower"));
    }
    const uint64_t stored = impl.path_.receiver().state().stored_position;
    if (!impl.promoted_ && stored < request.position()) {
      return reply(absl::FailedPreconditionError(absl::StrCat(
          "this copy has record ", stored, ", and record ", request.position(), " is acknowledged")));
    }
    absl::Status begun;
    const absl::Duration held = absl::Milliseconds(request.held_ms());
    impl.Handle([&](Protocol& p, Protocol::Actions* a) {
      begun = p.OnTakeOver(request.me().id(), FromProto(request.placement()), a);
    });
    if (!begun.ok()) return reply(std::move(begun));
    if (!impl.promoted_) impl.asked_at_ = MonotonicNow() - held;
    impl.take_over_replies_.push_back(reply);
    impl.AnswerTakeOver();
  });
}

void Replica::Impl::AnswerTakeOver() {
  if (take_over_replies_.empty() || protocol_->role() == Protocol::Role::kTakingOver) return;
  std::vector<rpc::Reply<v1::TakeOverResponse>> replies;
  replies.swap(take_over_replies_);
  for (const auto& reply : replies) {
    if (protocol_->role() != Protocol::Role::kPrimary || !promoted_ || !end_.ok()) {
      reply(absl::AbortedError("another version of the placement document is in force"));
      continue;
    }
    v1::TakeOverResponse response;
    *response.mutable_placement() = ps::ToProto(protocol_->placement());
    response.set_pause_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(handover_pause_)));
    reply(std::move(response));
  }
}

}  // namespace tandem::ps
