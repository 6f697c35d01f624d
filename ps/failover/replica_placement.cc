// SPDX-License-Identifier: Apache-2.0
// What a copy does while the job's store has no placement document of its shard.

#include "absl/strings/str_join.h"
#include "ps/failover/replica_impl.h"

namespace tandem::ps {
namespace {

constexpr absl::Duration kAskTimeout = absl::Milliseconds(500);
constexpr char kAskPlacement[] = "/tandem.v1.Failover/GetPlacement";

// Returns the process that the copy `id` is of.
absl::string_view LifeOf(absl::string_view id) { return id.substr(0, id.rfind('-')); }

// Returns why a process does not deny that it knows a larger term than `term`, or "".
std::string KnowsMore(const v1::ReplicaStatus& status, uint64_t term) {
  if (status.placement().term() > term) return absl::StrCat("knows term ", status.placement().term());
  const bool copies = status.role() == v1::REPLICA_ROLE_LEARNER || status.role() == v1::REPLICA_ROLE_FOLLOWER;
  return copies ? "" : "takes over, or ends";
}

}  // namespace

void Replica::Impl::BoardReset() {
  board_reset_ = true;
  Post([](Impl& impl) { impl.Handle([](Protocol& p, Protocol::Actions* a) { p.OnBoardReset(a); }); });
}

void Replica::Impl::AskCopies(const ShardPlacement& asked) {
  struct Answers {
    size_t missing = 0;
    std::vector<std::string> more;    // copies that do not deny, and why
    std::vector<std::string> silent;  // copies that do not answer, or are gone
  };
  auto answers = std::make_shared<Answers>();  // of the loop's thread
  answers->missing = asked.in_sync.size() + 1;
  const auto decide = [version = asked.version, answers](Impl& impl) {
    if (--answers->missing > 0) return;
    // A copy that is gone, or cannot be reached, has promised not to take over while the lease lasts. The
    // board had no document when it was read, before: nobody can take over any more.
    const Protocol& protocol = *impl.protocol_;
    const bool promised =
        !protocol.handing_over() && impl.detector_.HoldsLease(protocol.MayTakeOver(), impl.path_.BootTime());
    const bool deny = answers->more.empty() && (promised || answers->silent.empty());
    std::vector<std::string> reasons = answers->more;
    if (!promised) reasons.insert(reasons.end(), answers->silent.begin(), answers->silent.end());
    impl.waits_for_ = absl::StrJoin(reasons, "; ");
    if (!deny) {
      impl.board_error_ = absl::StrCat(
          "the job's store has lost the placement document, and this primary may not publish it "
          "again yet: ",
          impl.waits_for_);
    }
    impl.Handle([&](Protocol& p, Protocol::Actions* a) { p.OnCopiesAsked(version, deny, a); });
  };
  for (const Copy& copy : asked.in_sync) {
    const auto done = Posts<absl::StatusOr<v1::ReplicaStatus>>(
        [copy, term = asked.term, answers, decide](Impl& impl,
                                                   const absl::StatusOr<v1::ReplicaStatus>& status) {
          const std::string name = absl::StrCat("copy ", copy.id, " at ", copy.address, " ");
          if (!status.ok()) {
            impl.Forget(copy.address);
            answers->silent.push_back(name + "does not answer");
          } else if (LifeOf(status->self().id()) != LifeOf(copy.id)) {
            answers->silent.push_back(name + "is gone");
          } else if (const std::string more = KnowsMore(*status, term); !more.empty()) {
            answers->more.push_back(name + more);
          }
          decide(impl);
        });
    absl::StatusOr<rpc::Channel*> channel = ChannelTo(copy.address);
    if (!channel.ok()) {
      done(channel.status());
      continue;
    }
    CallAsync<v1::ReplicaStatus>(**channel, kAskPlacement, v1::GetPlacementRequest(), kAskTimeout, done);
  }
  // Also if there is nobody to ask.
  Post([decide](Impl& impl) { decide(impl); });
}

void Replica::Impl::NoticePlacement() {
  if (!protocol_->misses_placement()) {
    no_placement_since_ = absl::InfiniteFuture();
    return;
  }
  if (no_placement_since_ < absl::InfiniteFuture()) return;
  no_placement_since_ = MonotonicNow();
  const bool starting = protocol_->role() == Protocol::Role::kStarting;
  waits_for_ =
      absl::StrCat("no primary has published the placement of shard ", options_.shard, " in the job's store");
  if (starting) board_error_ = waits_for_;
  LogWarning(absl::StrCat(
      "shard ", options_.shard, ": ",
      starting ? absl::StrCat(waits_for_, ": this copy waits for it")
      : protocol_->role() == Protocol::Role::kPrimary
          ? "the job's store has lost the placement document; this primary publishes it again"
          : absl::StrCat(
                "the job's store has lost the placement document; this copy waits until its primary ",
                protocol_->placement().primary.id, " at ", protocol_->placement().primary.address,
                " publishes it again")));
}

void Replica::Impl::GiveUpPlacement(absl::Time now) {
  if (now - no_placement_since_ < options_.publish_time) return;
  Handle([&](Protocol& p, Protocol::Actions* a) {
    p.OnNoPlacement(absl::StrCat(waits_for_, ", for ", absl::FormatDuration(options_.publish_time)), a);
  });
}

}  // namespace tandem::ps
