// SPDX-License-Identifier: Apache-2.0
// What a node does about the other nodes of its round, and about the round's store.

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cluster/store/etcd/etcd_channel.h"
#include "launcher/lost_shards.h"
#include "launcher/node_agent.h"
#include "launcher/node_text.h"
#include "launcher/round_work.h"

namespace tandem::launcher {

using cluster::Round;

namespace {

// When to look again for copies of a shard if the store has not told the members.
constexpr absl::Duration kLookAgain = absl::Seconds(1);

}  // namespace

void NodeAgent::OnNodes(const AgentEvent& event) {
  if (!round_.has_value() || event.epoch != round_->epoch) return;
  round_ = event.event.round;
  round_->nodes[0].store = StoreOf(*round_);
  if (phase_ != Phase::kRunning && phase_ != Phase::kSettling) return;
  for (const cluster::NodeChange& change : event.event.changes) {
    processes_->console().Say(ChangeText(change, round_->nodes[static_cast<size_t>(change.index)]));
  }
  SayWhatIsMissing();
  NoteReported();  // this node may have become the first that is not absent
  LookForCopies();
}

bool NodeAgent::InEtcd() const {
  return round_.has_value() && cluster::IsEtcdAddress(round_->nodes[0].store);
}

std::string NodeAgent::StoreOf(const Round& round) const {
  return cluster::RoundStore(round.nodes[0].store, rendezvous_->address(), round.job, round.epoch);
}

void NodeAgent::SayWhatIsMissing() {
  const std::string absent = finish_told_ ? AbsentNodesWithWork(*round_) : "";
  if (absent.empty()) return;
  processes_->console().Say(
      absl::StrCat("the processes of this node have finished; the job waits for those of ", absent,
                   ", which is absent: start its launcher again with the same command, or stop the job"));
}

void NodeAgent::NoteReported() {
  if (!reported_.has_value() || round_->group_rank != round_->Leader()) return;
  if (phase_ != Phase::kRunning && phase_ != Phase::kSettling) return;
  NoteReport(*std::exchange(reported_, std::nullopt));
}

void NodeAgent::LookForCopies() {
  look_for_copies_at_ = absl::InfiniteFuture();
  if (round_->group_rank != round_->Leader() || phase_ != Phase::kRunning || round_->absent.empty()) return;
  if (services_.membership() != nullptr) monitor_->Look(services_.membership(), round_->epoch);
}

void NodeAgent::OnMembers(const AgentEvent& event) {
  if (!round_.has_value() || event.epoch != round_->epoch || phase_ != Phase::kRunning) return;
  if (!event.status.ok()) {
    look_for_copies_at_ = MonotonicNow() + kLookAgain;
    return;
  }
  const LostShards lost = FindLostShards(*round_, event.members);
  look_for_copies_at_ = MonotonicNow() + lost.look_again;
  if (lost.failure.empty()) return;
  job_failure_ = lost.failure;
  NoteFailure(absl::ZeroDuration());
}

}  // namespace tandem::launcher
