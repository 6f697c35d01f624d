// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_CLI_COMMANDS_FAILOVER_EVENTS_H_
#define TANDEM_TESTS_CLI_COMMANDS_FAILOVER_EVENTS_H_

// What can happen to the processes of a job whose servers have followers.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/random.h"
#include "ps/client/client.h"
#include "tests/cli/commands/pushing_process.h"
#include "tests/cli/commands/shard_copies.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {

enum class Event {
  kKillPrimary,
  kKillFollower,
  kKillWorker,
  kStopPrimary,            // until another one has taken over
  kStopPrimaryForAMoment,  // shorter than the lease
  kStopFollower,           // until the primary goes on without it
  kHandOver,
  kHandOverAndKill,   // the next primary, when the earlier one is in sync
  kTerminatePrimary,  // with SIGTERM, as systemd does
  kFollowerLeaves,
  kAddCopy,                // which becomes the primary, and is drained
  kIsolatePrimary,         // until another one has taken over
  kIsolateFollower,        // until the primary goes on without it
  kCutCopiesApart,         // the primary and its follower, which both reach the store and the workers
  kCutPrimaryFromJob,      // from the store and its follower, not from the workers
  kCutPrimaryFromStore,    // for a moment
  kCutPrimaryFromWorkers,  // for a moment
  kCutAnswersOfPrimary,    // for a moment; it hears and is not heard
  // Inside another event.
  kKillLearner,           // while it copies the shard
  kIsolateLearner,        // while it copies the shard, for a moment
  kKillAddedCopy,         // while it copies the shard
  kStopStore,             // while a primary dies
  kKillWorkerInFailover,  // when the primary has just been killed
  kKillPrimaryInHandOver,
  kKillFollowerInHandOver,
  kKillPrimaryInCheckpoint,
};
inline constexpr Event kFirstInside = Event::kKillLearner;
inline constexpr int kEvents = static_cast<int>(Event::kKillPrimaryInCheckpoint) + 1;
const char* NameOf(Event event);

// Not thread-safe.
class FailoverEvents {
 public:
  // `worker`: null if no worker may die. `checkpoints`: writes checkpoints. `loaded` is called right before
  // an event; it waits until the processes are loaded, and returns false if they will not be.
  FailoverEvents(ShardCopies& copies, PushingProcess* worker, ps::Client& checkpoints, CounterRandom random,
                 std::function<bool()> loaded)
      : copies_(copies),
        worker_(worker),
        checkpoints_(checkpoints),
        random_(random),
        loaded_(std::move(loaded)) {}

  // Makes the event happen to a shard whose followers are in sync. Returns false after a failure, which it
  // has reported.
  bool Happen(Event event, uint32_t shard);
  // Returns how often events happened, and how many of them fell into a copy, a checkpoint, a failover or a
  // hand-over that had not ended.
  std::string Summary() const;
  const std::map<Event, int>& counts() const { return counts_; }
  int inside() const { return inside_; }

 private:
  bool Execute(Event event, uint32_t shard, uint32_t primary, uint32_t follower, uint64_t term);
  bool KillPrimaryInHandOver(uint32_t shard, uint32_t primary, uint32_t follower, uint64_t term);
  bool KillFollowerInHandOver(uint32_t shard, uint32_t primary, uint32_t follower, uint64_t term);
  bool KillPrimaryInCheckpoint(uint32_t shard, uint32_t primary, uint64_t term);
  bool AddCopy(uint32_t shard);
  bool RestartWorker();
  // Lets some time pass, at most `longest`, so that what follows meets another phase each time.
  void Spin(absl::Duration longest);
  // The follower was stopped while it may have been about to take over. The primary goes on, and the follower
  // is killed; or the follower has taken over, and goes on.
  bool ResolveStoppedTakeover(uint32_t shard, uint32_t primary, uint32_t follower);
  bool Restart(uint32_t shard, uint32_t copy);
  bool Replaced(uint32_t shard, uint64_t term);
  // Waits until the earlier primary follows its successor.
  bool Stays(uint32_t shard, uint32_t primary);
  // Waits until the placement changes, or until a moment has passed that is shorter than the lease.
  void AwaitChangeForAMoment(uint32_t shard, uint32_t copy);
  // Waits until the primary goes on without its follower.
  bool LeftOut(uint32_t shard, uint32_t primary);
  // Waits until the primary has a link to a copy. Counts an event inside another one if the copy is not
  // complete.
  bool AwaitCopying(uint32_t shard, uint32_t primary, uint32_t copy);

  ShardCopies& copies_;
  PushingProcess* const worker_;
  ps::Client& checkpoints_;
  CounterRandom random_;
  const std::function<bool()> loaded_;
  testing::TempDir directory_;
  std::map<Event, int> counts_;
  int inside_ = 0, checkpoints_written_ = 0;
};

}  // namespace tandem::cli

#endif  // TANDEM_TESTS_CLI_COMMANDS_FAILOVER_EVENTS_H_
