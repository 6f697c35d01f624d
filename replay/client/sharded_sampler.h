// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_CLIENT_SHARDED_SAMPLER_H_
#define TANDEM_REPLAY_CLIENT_SHARDED_SAMPLER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "replay/client/call_thread.h"
#include "replay/client/replay.h"
#include "replay/table/batch.h"

namespace tandem::replay {

struct ShardedSamplerOptions {
  std::string table;  // on each shard
  std::string name;   // in reports of the shards
  uint64_t seed = 0;  // choice i of a shard is a function of (seed, i) and of the masses
  // The items of the batches that Next returns. 0: Next is not called.
  uint32_t batch = 0;
  // How many batches Next draws ahead of their use, at least 1, and how many bytes these may have together.
  // One batch is drawn in any case. They were drawn before the priorities changed meanwhile.
  uint32_t prefetch = 2;
  size_t prefetch_bytes = size_t{64} << 20;
  // The time that a shard has to answer beyond the deadline.
  absl::Duration answer_time = absl::Seconds(5);
};

// A batch of several shards.
struct ShardedBatch {
  // The items, shard after shard. `probabilities` are those of the draws among the items of all shards,
  // `table_items` and `mass` are sums. `committed_version` is the largest of the shards.
  Batch batch;
  std::vector<uint32_t> shards;  // of each item
};

// Samples a table that is divided among several replay servers: each has a table of the same name with other
// items. A writer writes an episode to one of them. The sampler of the tables must be random, and items must
// not leave by samples: queues are not divided, because the order of their items would be lost.
//
// Each draw first chooses a shard with probability mass / sum of masses, by the masses that the sampler has
// seen last, and then an item of the shard. Masses have changed since, but the probability of the draw is
// known: the chosen shard's part of the masses that were seen, times the probability that the shard returns.
// Importance weights computed from it (ImportanceWeights with beta 1) are unbiased however old the masses
// are, except for items of a shard whose mass was 0 when it was seen last. Masses of shards that were not
// chosen for a while are asked for. A chosen shard that turns out to be empty is left out of the batch, and
// the others give its part. If it has given items of the batch before, these are dropped with all others, and
// the batch is drawn anew.
//
// A shard's part of a batch may be larger than what its rate limiter gives at once (LargestBatch). It is then
// drawn in several samples. The limits of the shards are independent: a shard with most of the mass and few
// inserts delays all batches, while the inserts of the others wait at their max_diff.
//
// Shards are asked at once, each by a thread of its own. Not thread-safe, except that UpdatePriorities may be
// called by another thread than Sample or Next. A sampler is used by Sample or by Next, not by both.
class ShardedSampler {
 public:
  // The shards must outlive the sampler. Asks each shard for the state of its table, which blocks as
  // Replay::Info does. Errors: InvalidArgument (no shard; a table whose sampler is not random, or whose items
  // leave by samples), and those of Replay::Info, which name the shard's index.
  static absl::StatusOr<std::unique_ptr<ShardedSampler>> Create(std::vector<Replay*> shards,
                                                                ShardedSamplerOptions options);
  // Waits for the calls under way to the shards.
  ~ShardedSampler();

  // Draws `batch` items. Blocks until all shards that were chosen have given theirs or were found to be
  // empty, or `deadline`. If no shard has items, waits for one that has. Returns at most
  // options.answer_time after `deadline`, or after the begin of the call if it had passed then, also if a
  // shard hangs. Returns Cancelled soon after `stop` is requested.
  //
  // An error that MayRepeat (may_repeat.h) loses nothing: the next call for as many items keeps what the
  // shards have given, and waits for the others. A call for another number drops it. Another error of a shard
  // ends the call at once, also if other shards hang.
  //
  // A chosen shard that gives nothing is asked whether it is empty: after 200 ms, or after twice the time
  // that its last part took. It then has twice as long, and so on. So a part may take as long as the deadline
  // permits.
  //
  // Asking for masses takes a second at most. A shard that does not answer in that time is taken to have its
  // old mass, and is asked again after 16 samples.
  //
  // Errors: those of Replay::Sample and Replay::Info, which name the shard's index; InvalidArgument if the
  // shards' items have different columns.
  absl::StatusOr<ShardedBatch> Sample(uint32_t batch, absl::Time deadline = DefaultDeadline(),
                                      std::stop_token stop = {});
  // Returns the next batch of options.batch items, which a thread draws ahead by Sample. Blocks until there
  // is one, or `deadline`. Errors: DeadlineExceeded, with the last error of a shard that may pass; those of
  // Sample that do not, which later calls return as well; InvalidArgument if options.batch is 0.
  absl::StatusOr<ShardedBatch> Next(absl::Time deadline = DefaultDeadline());
  // Changes the priorities of the items of `batch`, in all shards at once. Returns the number of items
  // changed; the others have left their table. Errors: InvalidArgument (not one priority and one shard for
  // each item, or a shard that this sampler does not have; nothing has changed then), and those of
  // Replay::UpdatePriorities; then the priorities of some shards have changed.
  absl::StatusOr<uint64_t> UpdatePriorities(const ShardedBatch& batch, absl::Span<const double> priorities);

  size_t shards() const { return replays_.size(); }

 private:
  // A shard as it was seen last.
  struct Shard {
    size_t index = 0;
    Replay* replay = nullptr;
    double mass = 0;
    uint64_t items = 0;
    uint32_t largest = 1;  // the largest batch that its limiter gives at once
    uint32_t age = 0;      // the number of samples since, or since it was asked in vain
    bool silent = false;   // it was asked last in vain
    bool forget = false;   // its next sample is for other items than the last one
    absl::Duration wait;   // after giving nothing for so long it is asked whether it is empty
  };
  // The threads that call a shard.
  struct Callers {
    CallThread drawing, updating;
  };
  // How the call of a shard has ended, and the shard as it was then.
  struct Looked {
    absl::Status status;
    Shard shard;
  };
  struct Drawn {
    absl::Status status;
    std::vector<Batch> batches;  // also after an error
    Shard shard;
  };
  // A call that draws from a shard.
  struct Draw {
    std::shared_ptr<CallResult<Drawn>> call;  // null: there is none
    absl::Time deadline;
    bool earlier = false;  // an earlier Sample has begun it
  };
  // The batch that is being drawn. It outlives a call of Sample that ends before it is complete.
  struct Unfinished {
    uint32_t size = 0;
    std::vector<double> parts;              // the probability of each shard
    std::vector<uint32_t> counts;           // the items that each shard has still to give
    std::vector<std::vector<Batch>> given;  // by each shard
    std::vector<Draw> draws;                // under way
  };

  explicit ShardedSampler(ShardedSamplerOptions options) : options_(std::move(options)) {}
  // Asks a shard for its mass. One that does not answer keeps its old one.
  static absl::Status Look(const std::string& table, Shard* shard, absl::Time deadline);
  // Draws from a shard, in calls of growing length, until it has given `count` items, or `deadline`, or it is
  // found to be empty. Ends after a call during which `stop` was requested.
  static Drawn DrawFrom(const std::string& table, const std::string& name, Shard shard, uint32_t count,
                        absl::Time deadline, std::stop_token stop);
  // Asks all shards for their masses, or those whose mass is old. OK also if some do not answer, unless
  // `must_answer`. Returns at `end` in any case.
  absl::Status LookAtShards(bool all, absl::Time deadline, absl::Time end, bool must_answer = false);
  // Draws what is missing of unfinished_, and joins it.
  absl::StatusOr<ShardedBatch> Complete(absl::Time deadline, absl::Time end, const std::stop_token& stop);
  // Draws from each shard that has still to give items, all at once. Returns the shards that are empty, or
  // the first error of another one. `end`: when this returns in any case.
  absl::StatusOr<std::vector<size_t>> DrawFromShards(absl::Time deadline, absl::Time end,
                                                     const std::stop_token& stop, absl::Status* emptiness);
  // Starts the draws that are missing. Waits until `end` for shards that are still in earlier calls.
  void StartDraws(absl::Time deadline, absl::Time end, const std::stop_token& stop);
  // Waits for the draws under way: until all have ended, or one for good, or `end`. A draw with a later
  // deadline than `deadline` is awaited until that.
  void AwaitDraws(absl::Time deadline, absl::Time end, const std::stop_token& stop);
  // Gives up the unfinished batch.
  void Drop();
  // Has the draws under way end with their present calls.
  void EndDraws();
  // Returns a number of items for each shard, `batch` together, drawn by `parts`.
  std::vector<uint32_t> Choose(uint32_t batch, absl::Span<const double> parts);
  // Joins what the shards have given.
  absl::StatusOr<ShardedBatch> Join(Unfinished whole);
  // Returns the probability with which each shard is chosen. They are equal if no shard has a mass.
  std::vector<double> Parts() const;
  // Returns Cancelled if `stop` is requested or the sampler ends.
  absl::Status Stopped(const std::stop_token& stop);
  // The thread that draws ahead.
  void DrawAhead();
  bool MayDrawAhead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const ShardedSamplerOptions options_;
  std::vector<Replay*> replays_;
  std::vector<Shard> shards_;
  std::vector<std::unique_ptr<Callers>> callers_;  // of each shard
  uint64_t choices_ = 0;
  std::optional<Unfinished> unfinished_;
  std::stop_source ends_;  // of the draws under way

  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<ShardedBatch> ready_ ABSL_GUARDED_BY(mutex_);
  size_t batch_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of the last batch
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);     // why the last draw ended without a batch
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);    // ends all drawing
  std::thread ahead_;
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_CLIENT_SHARDED_SAMPLER_H_
