// SPDX-License-Identifier: Apache-2.0
#include "cluster/rendezvous/store_rendezvous.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/logging.h"
#include "base/status.h"

namespace tandem::cluster {
namespace {

constexpr char kRoot[] = "rdzv/";
constexpr char kStateKey[] = "state";
constexpr int64_t kHintsKept = 8;  // keys changed/<v>

std::string ChangedKey(int64_t version) { return absl::StrCat("changed/", version); }
std::string BeatKey(absl::string_view id) { return absl::StrCat("beat/", id); }

uint64_t RandomWord() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device() | 1;  // never 0
}

std::string Seconds(absl::Duration duration) {
  return absl::FormatDuration(
      absl::Trunc(duration, absl::Milliseconds(duration < absl::Seconds(1) ? 1 : 100)));
}

// Returns whether a round runs in which the node `id` takes no part any more: it has counted as dead, and
// another one may have its place. It must not end the round or the job of the others. `id` is empty if it has
// not joined, or has left.
bool IsOutside(absl::string_view id, const RendezvousState& state) {
  if (id.empty() || state.phase() != RendezvousState::RUNNING) return false;
  const tandem::v1::RendezvousMember* const member = FindMember(state, id);
  return member == nullptr || !member->in_round() || member->absent();
}

}  // namespace

StoreRendezvous::StoreRendezvous(Store* store, const RendezvousOptions& options, Clock* clock)
    : options_(options), clock_(clock), store_(store, absl::StrCat(kRoot, options.run_id)) {
  thread_ = std::thread([this] { Run(); });
}

StoreRendezvous::~StoreRendezvous() {
  if (const absl::Status left = Leave(); !left.ok()) LogDebug(left.message());
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

std::string StoreRendezvous::id() const {
  absl::MutexLock lock(&mutex_);
  return id_;
}

absl::StatusOr<RendezvousState> StoreRendezvous::Parse(const std::string& text) {
  RendezvousState state;
  if (!text.empty() && !state.ParseFromString(text)) {
    return absl::FailedPreconditionError(absl::StrCat("what the store holds for the job '", options_.run_id,
                                                      "' is no rendezvous of this version"));
  }
  absl::MutexLock lock(&mutex_);
  if (incarnation_ != 0 && state.incarnation() != incarnation_) {
    return absl::FailedPreconditionError(
        absl::StrCat("the store has lost the state of the job '", options_.run_id, "' (last seen at epoch ",
                     state_.epoch(), text.empty() ? ")" : "), and another job has begun there under its name",
                     ": was the store restarted?"));
  }
  return state;
}

void StoreRendezvous::Publish(const RendezvousState& state) {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  if (incarnation_ == 0) incarnation_ = state.incarnation();
  if (state.version() <= state_.version()) return;
  const bool gathers = state.phase() == RendezvousState::GATHERING;
  if (gathers && (state_.phase() != RendezvousState::GATHERING || state_.epoch() != state.epoch())) {
    gathering_since_ = now;
    enough_since_ = absl::InfiniteFuture();
  }
  state_ = state;
  if (!HasEnough(state)) {
    enough_since_ = absl::InfiniteFuture();
  } else if (enough_since_ == absl::InfiniteFuture()) {
    enough_since_ = now;
  }
}

absl::StatusOr<RendezvousState> StoreRendezvous::Read() {
  absl::StatusOr<std::string> text = store_.Get(kStateKey, absl::ZeroDuration());
  if (!text.ok() && !absl::IsDeadlineExceeded(text.status())) return text.status();
  TANDEM_ASSIGN_OR_RETURN(RendezvousState state, Parse(text.ok() ? *text : ""));
  if (text.ok()) Publish(state);
  return state;
}

absl::StatusOr<RendezvousState> StoreRendezvous::Update(
    bool create, const std::function<absl::Status(RendezvousState*)>& change) {
  absl::StatusOr<std::string> text = store_.Get(kStateKey, absl::ZeroDuration());
  if (!text.ok() && !absl::IsDeadlineExceeded(text.status())) return text.status();
  std::string held = text.ok() ? *std::move(text) : "";
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const RendezvousState before, Parse(held));
    RendezvousState after = before;
    if (held.empty()) {
      if (!create) return before;
      after = NewState(options_);
      after.set_incarnation(RandomWord());
    }
    TANDEM_RETURN_IF_ERROR(change(&after));
    if (!held.empty() && after.SerializeAsString() == before.SerializeAsString()) {
      Publish(before);
      return before;
    }
    after.set_version(before.version() + 1);
    after.set_writer(RandomWord());
    const std::string desired = after.SerializeAsString();
    TANDEM_ASSIGN_OR_RETURN(std::string holds, store_.CompareSet(kStateKey, held, desired));
    if (holds == desired) {
      Publish(after);
      // Only a hint: the document is authoritative whether or not the hint arrives.
      (void)store_.Set(ChangedKey(after.version()), "");
      if (after.version() > kHintsKept) (void)store_.Delete(ChangedKey(after.version() - kHintsKept));
      return after;
    }
    held = std::move(holds);
  }
}

absl::StatusOr<Round> StoreRendezvous::Join(const Node& node) {
  TANDEM_RETURN_IF_ERROR(CheckNode(node, options_));
  absl::MutexLock one(&join_mutex_);
  const std::string context =
      absl::StrCat("node ", node.id, " (", node.host, ") cannot join the job '", options_.run_id, "'");
  if (const std::string old = id(); !old.empty() && old != node.id) TANDEM_RETURN_IF_ERROR(Leave());
  int64_t leaves;
  {
    absl::MutexLock lock(&mutex_);
    leaves = leaves_;
  }
  TANDEM_RETURN_IF_ERROR(Annotate(AwaitRank(node, leaves), context));
  const absl::Time sent = clock_->Now();
  if (const absl::Status beat = store_.Beat(BeatKey(node.id), options_.lease); !beat.ok()) {
    if (absl::IsResourceExhausted(beat)) return Annotate(beat, context);
    return absl::UnavailableError(absl::StrCat(context, ": its store cannot be reached: ", beat.message()));
  }
  absl::StatusOr<RendezvousState> added =
      Update(/*create=*/true, [&](RendezvousState* state) { return AddNode(node, options_, state); });
  if (!added.ok()) {
    (void)store_.Delete(BeatKey(node.id));
    return Annotate(added.status(), context);
  }
  {
    absl::MutexLock lock(&mutex_);
    id_ = node.id;
    contact_ = read_at_ = sent;
    store_error_ = absl::OkStatus();
    if (gathering_since_ < sent) gathering_since_ = sent;
  }
  absl::StatusOr<Round> round = AwaitRound(node, leaves);
  if (round.ok()) return round;
  if (!absl::IsUnavailable(round.status())) (void)Leave();
  return Annotate(round.status(), context);
}

absl::StatusOr<std::string> StoreRendezvous::HeartbeatOf(absl::string_view id) {
  absl::StatusOr<std::string> beat = store_.Get(BeatKey(id), absl::ZeroDuration());
  if (!beat.ok() && !absl::IsDeadlineExceeded(beat.status())) return beat.status();
  return beat.value_or("");
}

absl::Status StoreRendezvous::AwaitRank(const Node& node, int64_t leaves) {
  if (node.node_rank < 0) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(RendezvousState state, Read());
  std::string holder = RankHolder(state, node);
  if (holder.empty() || state.phase() == RendezvousState::CLOSED) return absl::OkStatus();
  const bool expire = store_.BeatsExpire(options_.lease);
  absl::Time since = clock_->Now();
  TANDEM_ASSIGN_OR_RETURN(std::string first_beat, HeartbeatOf(holder));
  while (!holder.empty()) {
    {
      absl::MutexLock lock(&mutex_);
      const auto left = [&, this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return leaves_ != leaves; };
      if (clock_->AwaitUntil(&mutex_, absl::Condition(&left), clock_->Now() + options_.lease / 10)) {
        return absl::CancelledError("it has left while it waited");
      }
    }
    const absl::Time looked = clock_->Now();
    TANDEM_ASSIGN_OR_RETURN(const std::string beat, HeartbeatOf(holder));
    // A heartbeat of the holder's last moments may exist for a lease, and etcd looks at its leases at
    // intervals.
    const bool lives = expire ? looked - since > 2 * options_.lease : beat != first_beat;
    if (lives && !beat.empty()) {
      return absl::AlreadyExistsError(absl::StrCat("node rank ", node.node_rank, " is taken by node ", holder,
                                                   ", which lives: two launchers have the same --node-rank"));
    }
    if (expire ? beat.empty() : looked - since > options_.lease) {
      TANDEM_RETURN_IF_ERROR(Update(/*create=*/false, [&](RendezvousState* s) {
                               ExpireNode(holder,
                                          absl::StrCat("has been silent for ", Seconds(looked - since),
                                                       " (lease ", Seconds(options_.lease),
                                                       ") while its successor waited for its node rank"),
                                          s);
                               return absl::OkStatus();
                             }).status());
      (void)store_.Delete(BeatKey(holder));
    }
    TANDEM_ASSIGN_OR_RETURN(state, Read());
    const std::string now_holds = RankHolder(state, node);
    if (now_holds != holder) {
      since = clock_->Now();
      TANDEM_ASSIGN_OR_RETURN(first_beat, HeartbeatOf(now_holds.empty() ? holder : now_holds));
    }
    holder = now_holds;
    if (state.phase() == RendezvousState::CLOSED) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<Round> StoreRendezvous::AwaitRound(const Node& node, int64_t leaves) {
  while (true) {
    absl::Time deadline;
    {
      absl::MutexLock lock(&mutex_);
      const tandem::v1::RendezvousMember* me = FindMember(state_, node.id);
      const auto ready = [&, this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        me = FindMember(state_, node.id);
        // This node no longer counts as waiting: its round began and ended before this thread looked.
        const bool missed = me != nullptr &&
                            ((state_.phase() == RendezvousState::GATHERING && !me->joined()) || me->absent());
        const bool newer = state_.epoch() > joined_epoch_ || joined_id_ != node.id;
        return leaves_ != leaves || absl::IsFailedPrecondition(store_error_) || me == nullptr || missed ||
               state_.phase() == RendezvousState::CLOSED ||
               (state_.phase() == RendezvousState::RUNNING && newer && me->in_round());
      };
      // A spare waits as long as a round runs.
      const bool gathers = state_.phase() == RendezvousState::GATHERING;
      deadline = gathers ? gathering_since_ + options_.join_timeout : absl::InfiniteFuture();
      const absl::Time look = std::min(deadline, clock_->Now() + options_.lease / 4);
      clock_->AwaitUntil(&mutex_, absl::Condition(&ready), look);
      const absl::Time now = clock_->Now();
      if (ready()) {
        if (leaves_ != leaves) return absl::CancelledError("it has left while it waited");
        if (state_.phase() == RendezvousState::CLOSED) {
          return absl::FailedPreconditionError(absl::StrCat("the job is over: ", state_.reason()));
        }
        if (absl::IsFailedPrecondition(store_error_)) return store_error_;
        if (me != nullptr && !me->absent() && state_.phase() == RendezvousState::RUNNING) {
          joined_epoch_ = state_.epoch();
          joined_id_ = node.id;
          told_ = state_;
          TellLease(contact_ + options_.lease);
          return RoundOf(state_, node.id);
        }
      } else {
        if (absl::Status lost = StoreLost(now); !lost.ok()) return lost;
        if (gathers && state_.phase() == RendezvousState::GATHERING && now >= deadline &&
            now >= gathering_since_ + options_.join_timeout) {
          return absl::DeadlineExceededError(absl::StrCat(DescribeArrivals(state_), " within ",
                                                          absl::FormatDuration(options_.join_timeout)));
        }
        continue;
      }
    }
    // This node was considered dead because it was silent for too long while it waited, or its round is over
    // already: add it again.
    TANDEM_RETURN_IF_ERROR(
        Update(/*create=*/false, [&](RendezvousState* s) { return AddNode(node, options_, s); }).status());
  }
}

absl::Status StoreRendezvous::StoreLost(absl::Time now) const {
  if (id_.empty() || now - contact_ <= options_.lease) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("node ", id_, " has not reached the job's store", store_.address().empty() ? "" : " at ",
                   store_.address(), " for ", Seconds(now - contact_), " (lease ", Seconds(options_.lease),
                   "): the others take it for dead",
                   store_error_.ok() ? "" : absl::StrCat(" (", store_error_.message(), ")")));
}

absl::StatusOr<RendezvousEvent> StoreRendezvous::WaitForEvent(int64_t epoch, absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  while (true) {
    const auto replaced = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      const tandem::v1::RendezvousMember* const me = FindMember(state_, id_);
      return me == nullptr || !me->in_round() || me->absent();
    };
    const auto over = [&, this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopping_ || id_.empty() || absl::IsFailedPrecondition(store_error_) ||
             state_.phase() != RendezvousState::RUNNING || state_.epoch() > epoch || replaced();
    };
    const auto changed = [&, this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return over() || (told_.epoch() == epoch && told_.version() < state_.version());
    };
    clock_->AwaitUntil(&mutex_, absl::Condition(&changed),
                       std::min(deadline, contact_ + options_.lease + absl::Milliseconds(1)));
    const absl::Time now = clock_->Now();
    if (over()) {
      if (state_.phase() == RendezvousState::CLOSED) return EndEvent(state_, epoch);
      if (absl::IsFailedPrecondition(store_error_)) return store_error_;
      if (stopping_ || id_.empty()) return absl::CancelledError("this node has left the job");
      if (state_.phase() == RendezvousState::RUNNING && state_.epoch() == epoch) {
        const tandem::v1::RendezvousMember* const me = FindMember(state_, id_);
        return absl::UnavailableError(absl::StrCat(
            "the others have gone on without node ", id_,
            me == nullptr ? ", and another one has its place" : absl::StrCat(", which ", me->absence())));
      }
      if (FindMember(state_, id_) != nullptr) return EndEvent(state_, epoch);
      return absl::UnavailableError(absl::StrCat("the others have gone on without this node after epoch ",
                                                 epoch, ": ", EndEvent(state_, epoch).reason));
    }
    TANDEM_RETURN_IF_ERROR(StoreLost(now));
    if (changed()) {
      RendezvousEvent event{.kind = RendezvousEvent::Kind::kNodes, .changes = ChangesBetween(told_, state_)};
      told_ = state_;
      if (!event.changes.empty()) {
        event.round = RoundOf(state_, id_);
        return event;
      }
    }
    if (now >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("epoch ", epoch, " goes on"));
    }
  }
}

absl::Status StoreRendezvous::RequestRestart(int64_t epoch, absl::string_view reason, int exit_code) {
  bool runs = false;
  const std::string me = id();
  TANDEM_ASSIGN_OR_RETURN(const RendezvousState state, Update(/*create=*/false, [&](RendezvousState* s) {
                            if (IsOutside(me, *s)) return absl::OkStatus();
                            runs = s->phase() == RendezvousState::RUNNING && s->epoch() == epoch;
                            RestartRound(epoch, reason, exit_code, s);
                            return absl::OkStatus();
                          }));
  // This request has closed the job because no restart is left. If others have closed it, WaitForEvent
  // reports that.
  if (runs && state.phase() == RendezvousState::CLOSED) {
    return absl::FailedPreconditionError(absl::StrCat("the job is over: ", state.reason()));
  }
  return absl::OkStatus();
}

absl::Status StoreRendezvous::Finish(int64_t epoch) {
  const std::string me = id();
  return Update(/*create=*/false,
                [&](RendezvousState* s) {
                  FinishNode(me, epoch, s);
                  return absl::OkStatus();
                })
      .status();
}

void StoreRendezvous::OnLease(std::function<void(absl::Time until)> on_lease) {
  absl::MutexLock lock(&lease_mutex_);
  on_lease_ = std::move(on_lease);
}

void StoreRendezvous::TellLease(absl::Time until) {
  absl::MutexLock lock(&lease_mutex_);
  if (on_lease_ != nullptr && !lease_over_) on_lease_(until);
  lease_over_ = lease_over_ || until == absl::InfiniteFuture();
}

bool StoreRendezvous::MayStart(int64_t epoch, int restarts) {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  const tandem::v1::RendezvousMember* const me = FindMember(state_, id_);
  return me != nullptr && me->in_round() && !me->absent() && state_.phase() == RendezvousState::RUNNING &&
         state_.epoch() == epoch && me->process_restarts() >= restarts &&
         now - std::min(read_at_, contact_) <= options_.lease;
}

absl::Status StoreRendezvous::RecordRestarts(int64_t epoch, int restarts) {
  const std::string me = id();
  return Update(/*create=*/false,
                [&](RendezvousState* s) {
                  cluster::RecordRestarts(me, epoch, restarts, s);
                  return absl::OkStatus();
                })
      .status();
}

absl::Status StoreRendezvous::Close(bool failed, absl::string_view reason, int exit_code) {
  const std::string me = id();
  return Update(/*create=*/false,
                [&](RendezvousState* s) {
                  if (IsOutside(me, *s)) return absl::OkStatus();
                  CloseState(failed, reason, exit_code, s);
                  return absl::OkStatus();
                })
      .status();
}

absl::Status StoreRendezvous::Stop(absl::string_view reason, int exit_code) {
  const std::string me = id();
  return Update(/*create=*/false,
                [&](RendezvousState* s) {
                  if (IsOutside(me, *s)) return absl::OkStatus();
                  CloseState(/*failed=*/true, reason, exit_code, s, /*stopped=*/true);
                  return absl::OkStatus();
                })
      .status();
}

absl::Status StoreRendezvous::Leave() {
  std::string me;
  {
    absl::MutexLock lock(&mutex_);
    me = std::exchange(id_, "");
    ++leaves_;
  }
  if (me.empty()) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(Update(/*create=*/false, [&](RendezvousState* s) {
                           RemoveNode(me, s);
                           // Changes the document even if the others have removed this node before: the
                           // change wakes the thread, which may be waiting for one.
                           if (s->phase() != RendezvousState::CLOSED) s->clear_writer();
                           return absl::OkStatus();
                         }).status());
  return store_.Delete(BeatKey(me)).status();
}

void StoreRendezvous::Run() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      const auto wanted = [this]()
                              ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !id_.empty(); };
      mutex_.Await(absl::Condition(&wanted));
      if (stopping_) return;
    }
    const absl::Status status = Step();
    {
      absl::MutexLock lock(&mutex_);
      // Once the state is lost, it stays lost.
      if (!absl::IsFailedPrecondition(store_error_)) store_error_ = status;
      if (!status.ok() &&
          clock_->AwaitUntil(&mutex_, absl::Condition(&stopping_), clock_->Now() + options_.lease / 20)) {
        return;
      }
    }
    if (status.ok()) AwaitChange();
  }
}

absl::Status StoreRendezvous::Step() {
  TANDEM_RETURN_IF_ERROR(SendHeartbeat());
  const absl::Time looked = clock_->Now();
  TANDEM_ASSIGN_OR_RETURN(const RendezvousState state, Read());
  {
    absl::MutexLock lock(&mutex_);
    read_at_ = looked;
  }
  acted_on_ = state.version();
  TANDEM_RETURN_IF_ERROR(Observe(state));
  return Act(state);
}

absl::Status StoreRendezvous::SendHeartbeat() {
  const absl::Time sent = clock_->Now();
  if (sent < next_heartbeat_) return absl::OkStatus();
  const std::string me = id();
  if (me.empty()) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(store_.Beat(BeatKey(me), options_.lease));
  next_heartbeat_ = sent + options_.lease / 5;
  TellLease(sent + options_.lease);
  absl::MutexLock lock(&mutex_);
  // Others see this heartbeat later than it was sent, so this node considers itself dead before they do.
  contact_ = std::max(contact_, sent);
  return absl::OkStatus();
}

absl::Status StoreRendezvous::Observe(const RendezvousState& state) {
  const std::string me = id();
  std::vector<std::string> ids, keys;
  for (const tandem::v1::RendezvousMember& member : state.members()) {
    // An absent node has no counter. A successor has another id.
    if (member.node().id() == me || member.absent()) continue;
    ids.push_back(member.node().id());
    keys.push_back(BeatKey(ids.back()));
  }
  // Read the clock first: if this process is stopped in between, the silence that it measures ends here.
  const absl::Time looked = clock_->Now();
  std::vector<std::string> beats;
  absl::StatusOr<std::vector<std::string>> all = store_.MultiGet(keys, absl::ZeroDuration());
  if (all.ok()) {
    beats = *std::move(all);
  } else {
    if (!absl::IsDeadlineExceeded(all.status())) return all.status();
    for (const std::string& id : ids) {  // some node has no counter yet, or was removed
      TANDEM_ASSIGN_OR_RETURN(beats.emplace_back(), HeartbeatOf(id));
    }
  }
  absl::MutexLock lock(&mutex_);
  // Time in which this node could not read the counters is not counted as silence of the others. After this
  // process was stopped, or the store did not respond, they are about to increment their counters again.
  const absl::Duration blind = looked - counters_read_at_ - options_.lease / 4;
  const bool expire = store_.BeatsExpire(options_.lease);
  std::map<std::string, Observed> observed;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto known = observed_.find(ids[i]);
    Observed now{beats[i], looked};
    if (known != observed_.end() && known->second.beat == beats[i]) {
      now.since = known->second.since;
      if (blind > absl::ZeroDuration()) now.since += blind;
    }
    if (expire && !beats[i].empty()) now.since = looked;
    if (expire && beats[i].empty()) {  // the store has waited for a lease
      now.since = looked - options_.lease - absl::Milliseconds(1);
      if (known != observed_.end()) now.since = std::min(now.since, known->second.since);
    }
    observed[ids[i]] = std::move(now);
  }
  observed_ = std::move(observed);
  counters_read_at_ = looked;
  return absl::OkStatus();
}

absl::Status StoreRendezvous::Act(const RendezvousState& state) {
  if (state.phase() == RendezvousState::CLOSED) return absl::OkStatus();
  std::vector<std::pair<std::string, absl::Duration>> silent;
  bool last_call_over;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, observed] : observed_) {
      if (counters_read_at_ - observed.since > options_.lease)
        silent.emplace_back(id, counters_read_at_ - observed.since);
    }
    last_call_over = clock_->Now() - enough_since_ >= options_.last_call;
  }
  for (const auto& [id, silence] : silent) {
    const tandem::v1::RendezvousMember* member = FindMember(state, id);
    if (member == nullptr || !IsWatched(*member, state)) continue;
    TANDEM_RETURN_IF_ERROR(Update(/*create=*/false, [&, id = id, silence = silence](RendezvousState* s) {
                             ExpireNode(id,
                                        absl::StrCat("has been silent for ", Seconds(silence), " (lease ",
                                                     Seconds(options_.lease), "): killed, or cut off?"),
                                        s);
                             return absl::OkStatus();
                           }).status());
    (void)store_.Delete(BeatKey(id));
  }
  if (!HasEnough(state) || !(last_call_over || HasAll(state))) return absl::OkStatus();
  return Update(/*create=*/false,
                [&](RendezvousState* s) {
                  if (s->epoch() == state.epoch() && (HasAll(*s) || (last_call_over && HasEnough(*s))))
                    BeginRound(s);
                  return absl::OkStatus();
                })
      .status();
}

void StoreRendezvous::AwaitChange() {
  absl::Time until = next_heartbeat_;
  {
    absl::MutexLock lock(&mutex_);
    if (state_.phase() == RendezvousState::CLOSED) {
      // The job is closed: nothing will change any more, and this node's silence has no effect.
      TellLease(absl::InfiniteFuture());
      const auto left = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || id_.empty(); };
      mutex_.Await(absl::Condition(&left));
      return;
    }
    // This process itself may have changed the document since, or has left: its writing the key wakes this
    // wait.
    if (state_.version() > acted_on_ || stopping_ || id_.empty()) return;
    until = std::min(until, enough_since_ + options_.last_call);
    // A counter that does not change until then belongs to a dead node, which has no effect if it has
    // finished.
    for (const auto& [id, observed] : observed_) {
      const tandem::v1::RendezvousMember* member = FindMember(state_, id);
      if (member == nullptr || !IsWatched(*member, state_)) continue;
      until = std::min(until, observed.since + options_.lease + absl::Milliseconds(1));
    }
  }
  const absl::Duration wait = std::clamp(until - clock_->Now(), absl::Milliseconds(1), options_.lease / 5);
  (void)store_.Get(ChangedKey(acted_on_ + 1), wait);
}

absl::StatusOr<std::vector<std::string>> ListRendezvous(Store* store) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> keys, store->List(kRoot));
  std::vector<std::string> runs;
  for (absl::string_view key : keys) {
    if (absl::ConsumePrefix(&key, kRoot) && absl::ConsumeSuffix(&key, absl::StrCat("/", kStateKey)))
      runs.emplace_back(key);
  }
  std::sort(runs.begin(), runs.end());
  return runs;
}

absl::StatusOr<RendezvousState> ReadRendezvous(Store* store, const std::string& run_id) {
  absl::StatusOr<std::string> text =
      store->Get(absl::StrCat(kRoot, run_id, "/", kStateKey), absl::ZeroDuration());
  RendezvousState state;
  if (absl::IsDeadlineExceeded(text.status()) || (text.ok() && text->empty())) {
    return absl::NotFoundError(
        absl::StrCat("no launcher has joined a job '", run_id, "' there, or it is over and forgotten"));
  }
  TANDEM_RETURN_IF_ERROR(text.status());
  if (state.ParseFromString(*text)) return state;
  return absl::FailedPreconditionError(
      absl::StrCat("what the store holds for the job '", run_id, "' is no rendezvous of this version"));
}

}  // namespace tandem::cluster
