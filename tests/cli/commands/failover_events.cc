// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/commands/failover_events.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using testing::kTestTimeout;

constexpr absl::Duration kMoment = absl::Milliseconds(300);  // half of a lease

// About what these take on an idle machine.
constexpr absl::Duration kHandOverTime = absl::Milliseconds(5);
constexpr absl::Duration kCheckpointTime = absl::Milliseconds(30);

constexpr const char* kNames[] = {"primary killed",
                                  "follower killed",
                                  "worker killed and started again",
                                  "primary stopped until it was replaced",
                                  "primary stopped for a moment",
                                  "follower stopped until it was left out",
                                  "primary handed over",
                                  "primary handed over, and the next one killed",
                                  "primary terminated",
                                  "follower drained",
                                  "copy added, made primary and drained",
                                  "primary isolated until it was replaced",
                                  "follower isolated until it was left out",
                                  "primary and follower cut apart",
                                  "primary cut from store and follower",
                                  "primary cut from the store for a moment",
                                  "primary cut from the workers for a moment",
                                  "answers of the primary held for a moment",
                                  "learner killed",
                                  "learner isolated for a moment",
                                  "added copy killed while it copied",
                                  "primary killed while the store was away",
                                  "worker killed while its primary died",
                                  "primary killed while it handed over",
                                  "follower killed while the primary handed over",
                                  "primary killed while a checkpoint was written"};
static_assert(std::size(kNames) == kEvents);

}  // namespace

const char* NameOf(Event event) { return kNames[static_cast<size_t>(event)]; }

std::string FailoverEvents::Summary() const {
  std::string text;
  int events = 0;
  for (const auto& [event, count] : counts_) {
    absl::StrAppend(&text, "; ", count, " x ", NameOf(event));
    events += count;
  }
  return absl::StrCat(events, " events, ", inside_, " inside another one", text);
}

bool FailoverEvents::Happen(Event event, uint32_t shard) {
  const int found = copies_.AwaitRedundant(shard);
  if (found < 0) {
    ADD_FAILURE() << copies_.Describe();
    return false;
  }
  const auto primary = static_cast<uint32_t>(found);
  const absl::StatusOr<v1::ReplicaStatus> before = copies_.Status(shard, primary);
  if (!before.ok()) {
    ADD_FAILURE() << before.status();
    return false;
  }
  if (!loaded_()) return false;
  ++counts_[event];
  return Execute(event, shard, primary, (primary + 1) % copies_.copies(), before->placement().term());
}

bool FailoverEvents::Execute(Event event, uint32_t shard, uint32_t primary, uint32_t follower,
                             uint64_t term) {
  switch (event) {
    case Event::kKillPrimary:
      copies_.Kill(shard, primary);
      return Replaced(shard, term) && Restart(shard, primary);
    case Event::kKillFollower:
      copies_.Kill(shard, follower);
      return Restart(shard, follower);
    case Event::kKillWorker:
      EXPECT_TRUE(worker_->Kill()) << "the worker process had ended by itself";
      return RestartWorker();
    case Event::kStopPrimary:
      ShardCopies::Stop(copies_.process(shard, primary));
      if (!Replaced(shard, term)) return false;
      copies_.process(shard, primary).Signal(SIGCONT);
      return copies_.AwaitEnd(shard, primary, "deposed") && Restart(shard, primary);
    case Event::kStopPrimaryForAMoment:
      ShardCopies::Stop(copies_.process(shard, primary));
      // A question without an answer takes a second, which is less than the lease. On a loaded machine it
      // may take more; then the primary is deposed, and ShardCopies starts it again.
      EXPECT_FALSE(copies_.Status(shard, primary).ok());
      copies_.process(shard, primary).Signal(SIGCONT);
      return true;
    case Event::kStopFollower: {
      ShardCopies::Stop(copies_.process(shard, follower));
      const bool left_out = LeftOut(shard, primary);
      copies_.process(shard, follower).Signal(SIGCONT);
      return left_out;
    }
    case Event::kHandOver:
      TANDEM_EXPECT_OK(copies_.HandOver(shard, primary, follower));
      return Replaced(shard, term) && Stays(shard, primary);
    case Event::kHandOverAndKill: {
      TANDEM_EXPECT_OK(copies_.HandOver(shard, primary, follower));
      // The earlier primary takes over again as soon as it is in sync.
      if (!Replaced(shard, term) || !Stays(shard, primary)) return false;
      copies_.Kill(shard, follower);
      return Replaced(shard, term + 1) && Restart(shard, follower);
    }
    case Event::kTerminatePrimary:
      copies_.process(shard, primary).Signal(SIGTERM);
      EXPECT_EQ(copies_.AwaitExit(shard, primary), kLeft) << copies_.process(shard, primary).err();
      return Replaced(shard, term) && Restart(shard, primary);
    case Event::kFollowerLeaves:
      TANDEM_EXPECT_OK(copies_.Leave(shard, follower));
      EXPECT_EQ(copies_.AwaitExit(shard, follower), kLeft) << copies_.process(shard, follower).err();
      return Restart(shard, follower);
    case Event::kAddCopy:
      return AddCopy(shard);
    case Event::kIsolatePrimary:
      copies_.Isolate(shard, primary);
      if (!Replaced(shard, term)) return false;
      copies_.Heal(shard);
      return copies_.AwaitEnd(shard, primary, "deposed") && Restart(shard, primary);
    case Event::kIsolateFollower: {
      copies_.Isolate(shard, follower);
      const bool left_out = LeftOut(shard, primary);
      copies_.Heal(shard);
      return left_out;
    }
    case Event::kCutCopiesApart: {
      // Either of them may win. The other one comes back after the network has healed.
      const absl::StatusOr<v1::ReplicaStatus> before = copies_.Status(shard, primary);
      copies_.CutFromCopies(shard, primary);
      const bool changed = before.ok() && copies_.AwaitPlacementAfter(shard, before->placement().version());
      copies_.Heal(shard);
      EXPECT_TRUE(changed) << copies_.Describe();
      return changed;
    }
    case Event::kCutPrimaryFromJob:
      copies_.CutFromStore(shard, primary);
      copies_.CutFromCopies(shard, primary);
      if (!Replaced(shard, term)) return false;
      copies_.Heal(shard);
      return copies_.AwaitEnd(shard, primary, "deposed") && Restart(shard, primary);
    case Event::kCutPrimaryFromStore:
      copies_.CutFromStore(shard, primary);
      AwaitChangeForAMoment(shard, primary);
      copies_.Heal(shard);
      return true;
    case Event::kCutPrimaryFromWorkers:
      copies_.CutFromCaller(shard, primary, ::getpid());
      if (worker_ != nullptr) copies_.CutFromCaller(shard, primary, worker_->pid());
      AwaitChangeForAMoment(shard, primary);
      copies_.Heal(shard);
      return true;
    case Event::kCutAnswersOfPrimary:
      copies_.CutAnswers(shard, primary);
      AwaitChangeForAMoment(shard, primary);
      copies_.Heal(shard);
      return true;
    case Event::kKillLearner:
      copies_.Kill(shard, follower);
      Restart(shard, follower);
      if (!AwaitCopying(shard, primary, follower)) return false;
      copies_.Kill(shard, follower);
      return Restart(shard, follower);
    case Event::kIsolateLearner:
      copies_.Kill(shard, follower);
      Restart(shard, follower);
      if (!AwaitCopying(shard, primary, follower)) return false;
      copies_.Isolate(shard, follower);
      AwaitChangeForAMoment(shard, primary);
      copies_.Heal(shard);
      return true;
    case Event::kKillAddedCopy: {
      const uint32_t added = copies_.Add(shard);
      if (!AwaitCopying(shard, primary, added)) return false;
      copies_.Kill(shard, added);
      copies_.Remove(shard);
      return true;
    }
    case Event::kStopStore:
      ShardCopies::Stop(copies_.store());
      copies_.Kill(shard, primary);
      ++inside_;
      // The follower cannot take over, and says why.
      EXPECT_TRUE(copies_.AwaitStatus(shard, follower, [](const v1::ReplicaStatus& status) {
        return absl::StrContains(status.failure(), "the placement document cannot be read");
      })) << copies_.Describe();
      copies_.store().Signal(SIGCONT);
      return Replaced(shard, term) && Restart(shard, primary);
    case Event::kKillWorkerInFailover: {
      copies_.Kill(shard, primary);
      EXPECT_TRUE(worker_->Kill()) << "the worker process had ended by itself";
      const absl::StatusOr<v1::ReplicaStatus> now = copies_.Status(shard, follower);
      if (!now.ok() || now->placement().term() == term) ++inside_;
      return RestartWorker() && Replaced(shard, term) && Restart(shard, primary);
    }
    case Event::kKillPrimaryInHandOver:
      return KillPrimaryInHandOver(shard, primary, follower, term);
    case Event::kKillFollowerInHandOver:
      return KillFollowerInHandOver(shard, primary, follower, term);
    case Event::kKillPrimaryInCheckpoint:
      return KillPrimaryInCheckpoint(shard, primary, term);
  }
  return false;
}

bool FailoverEvents::AddCopy(uint32_t shard) {
  const uint32_t added = copies_.Add(shard);
  int primary = copies_.AwaitRedundant(shard);
  if (primary >= 0 && static_cast<uint32_t>(primary) != added) {
    const auto old = static_cast<uint32_t>(primary);
    TANDEM_EXPECT_OK(copies_.HandOver(shard, old, added));
    if (!Stays(shard, old)) return false;
    primary = copies_.AwaitRedundant(shard);
  }
  if (primary < 0) {
    ADD_FAILURE() << copies_.Describe();
    return false;
  }
  TANDEM_EXPECT_OK(copies_.Leave(shard, added));
  EXPECT_EQ(copies_.AwaitExit(shard, added), kLeft) << copies_.process(shard, added).err();
  copies_.Remove(shard);
  return true;
}

bool FailoverEvents::KillPrimaryInHandOver(uint32_t shard, uint32_t primary, uint32_t follower,
                                           uint64_t term) {
  std::atomic<bool> answered = false;
  std::thread asks([&] {
    copies_.TryHandOver(shard, primary, follower, kTestTimeout).IgnoreError();
    answered = true;
  });
  Spin(kHandOverTime);
  if (!answered) ++inside_;
  copies_.process(shard, primary).Signal(SIGKILL);
  asks.join();
  // It may have handed over before.
  const int code = copies_.AwaitExit(shard, primary);
  EXPECT_TRUE(code == 128 + SIGKILL || code == kComesBack) << code;
  return Replaced(shard, term) && Restart(shard, primary);
}

bool FailoverEvents::KillFollowerInHandOver(uint32_t shard, uint32_t primary, uint32_t follower,
                                            uint64_t term) {
  std::atomic<bool> answered = false;
  absl::Status handed;
  std::thread asks([&] {
    handed = copies_.TryHandOver(shard, primary, follower, absl::Seconds(5)).status();
    answered = true;
  });
  Spin(kHandOverTime);
  if (!answered) ++inside_;
  // A follower that is the only copy must not die.
  ShardCopies::Stop(copies_.process(shard, follower));
  asks.join();
  if (handed.ok()) {
    copies_.process(shard, follower).Signal(SIGCONT);
    return Replaced(shard, term);
  }
  return ResolveStoppedTakeover(shard, primary, follower);
}

bool FailoverEvents::KillPrimaryInCheckpoint(uint32_t shard, uint32_t primary, uint64_t term) {
  const std::string directory = absl::StrCat(directory_.path(), "/", ++checkpoints_written_);
  std::filesystem::create_directory(directory);
  std::atomic<bool> written = false;
  absl::Status saved;
  std::thread writes([&] {
    saved = checkpoints_.BeginCheckpoint(directory, {});
    if (saved.ok()) saved = checkpoints_.SaveCheckpoint(directory, {.begun = true}).status();
    written = true;
  });
  Spin(kCheckpointTime);
  if (!written) ++inside_;
  copies_.Kill(shard, primary);
  const bool replaced = Replaced(shard, term);
  writes.join();
  // It may have been complete before. Else the job asks for the next one: the call was under way when the
  // primary died, or the next primary knows nothing of it.
  EXPECT_TRUE(saved.ok() || absl::IsUnavailable(saved) ||
              absl::StrContains(saved.message(), "not begun here"))
      << saved;
  return replaced && Restart(shard, primary);
}

bool FailoverEvents::RestartWorker() {
  const bool pushes = worker_->Start(copies_.Addresses());
  EXPECT_TRUE(pushes) << "the worker process ended, or no push of it was acknowledged\n"
                      << copies_.Describe();
  return pushes;
}

void FailoverEvents::Spin(absl::Duration longest) {
  const auto most = static_cast<uint64_t>(absl::ToInt64Microseconds(longest));
  const absl::Time until = MonotonicNow() + absl::Microseconds(random_.Below(most));
  while (MonotonicNow() < until) std::this_thread::yield();
}

bool FailoverEvents::ResolveStoppedTakeover(uint32_t shard, uint32_t primary, uint32_t follower) {
  const absl::Time deadline = MonotonicNow() + kTestTimeout;
  while (!copies_.HasEnded(shard, primary)) {
    const absl::StatusOr<v1::ReplicaStatus> status =
        copies_.Status(shard, primary, 0, absl::Milliseconds(50));
    if (status.ok() && status->serving() && status->placement().in_sync_size() == 0) {
      copies_.Kill(shard, follower);
      return Restart(shard, follower);
    }
    // It has handed over before the follower was stopped, which others take for dead meanwhile.
    if (status.ok() && status->role() != v1::REPLICA_ROLE_PRIMARY) {
      copies_.process(shard, follower).Signal(SIGCONT);
      return true;
    }
    if (MonotonicNow() > deadline) {
      ADD_FAILURE() << copies_.Describe();
      return false;
    }
  }
  copies_.process(shard, follower).Signal(SIGCONT);
  EXPECT_EQ(copies_.AwaitExit(shard, primary), kComesBack) << copies_.process(shard, primary).err();
  return Restart(shard, primary);
}

bool FailoverEvents::Restart(uint32_t shard, uint32_t copy) {
  copies_.Start(shard, copy);
  return true;
}

bool FailoverEvents::Replaced(uint32_t shard, uint64_t term) {
  const bool replaced = copies_.AwaitTermAbove(shard, term) >= 0;
  EXPECT_TRUE(replaced) << copies_.Describe();
  return replaced;
}

bool FailoverEvents::Stays(uint32_t shard, uint32_t primary) {
  const bool stays = copies_.AwaitHandedOver(shard, primary);
  EXPECT_TRUE(stays) << copies_.Describe();
  return stays;
}

void FailoverEvents::AwaitChangeForAMoment(uint32_t shard, uint32_t copy) {
  const absl::StatusOr<v1::ReplicaStatus> now = copies_.Status(shard, copy);
  if (now.ok()) copies_.Status(shard, copy, now->placement().version(), kMoment).IgnoreError();
}

bool FailoverEvents::LeftOut(uint32_t shard, uint32_t primary) {
  const bool left_out = copies_.AwaitStatus(
      shard, primary, [](const v1::ReplicaStatus& status) { return status.placement().in_sync_size() == 0; });
  EXPECT_TRUE(left_out) << copies_.Describe();
  return left_out;
}

bool FailoverEvents::AwaitCopying(uint32_t shard, uint32_t primary, uint32_t copy) {
  const absl::Time deadline = MonotonicNow() + kTestTimeout;
  while (MonotonicNow() < deadline) {
    const absl::StatusOr<v1::ReplicaStatus> status = copies_.Status(shard, primary);
    if (!status.ok()) continue;
    for (const auto& link : status->links()) {
      if (link.replica().address() != copies_.address(shard, copy)) continue;
      if (!link.complete()) ++inside_;
      return true;
    }
  }
  ADD_FAILURE() << "the copy has not joined\n" << copies_.Describe();
  return false;
}

}  // namespace tandem::cli
