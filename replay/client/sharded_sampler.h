// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_CLIENT_SHARDED_SAMPLER_H_
#define TANDEM_REPLAY_CLIENT_SHARDED_SAMPLER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "replay/client/replay.h"
#include "replay/table/batch.h"

namespace tandem::replay {

struct ShardedSamplerOptions {
  std::string table;  // on each shard
  std::string name;   // in reports of the shards
  uint64_t seed = 0;  // choice i of a shard is a function of (seed, i) and of the masses
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
// Not thread-safe.
class ShardedSampler {
 public:
  // The shards must outlive the sampler. Asks each shard for the state of its table, which blocks as
  // Replay::Info does. Errors: InvalidArgument (no shard; a table whose sampler is not random, or whose items
  // leave by samples; tables with other columns), and those of Replay::Info, which name the shard's index.
  static absl::StatusOr<std::unique_ptr<ShardedSampler>> Create(std::vector<Replay*> shards,
                                                                ShardedSamplerOptions options);

  // Draws `batch` items. Blocks until all shards that were chosen have given theirs or were found to be
  // empty, or `deadline`. Shards are asked one after the other. If no shard has items, waits for one that
  // has.
  //
  // A chosen shard that gives nothing is asked whether it is empty: after 200 ms, or after twice the time
  // that its last part took. It then has twice as long, and so on. So a part may take as long as the deadline
  // permits.
  //
  // Asking for masses takes a second at most, or 100 ms for each of more than 10 shards. A shard that does
  // not answer in its share of that is taken to have its old mass, and is asked again after 16 samples.
  //
  // Errors: those of Replay::Sample and Replay::Info, which name the shard's index. Another call draws again.
  absl::StatusOr<ShardedBatch> Sample(uint32_t batch, absl::Time deadline = absl::InfiniteFuture());
  // Changes the priorities of the items of `batch`. Returns the number of items changed; the others have left
  // their table. Errors: InvalidArgument (not one priority for each item), and those of
  // Replay::UpdatePriorities; then the priorities of some shards have changed.
  absl::StatusOr<uint64_t> UpdatePriorities(const ShardedBatch& batch, absl::Span<const double> priorities);

  size_t shards() const { return shards_.size(); }

 private:
  // A shard as it was seen last.
  struct Shard {
    Replay* replay = nullptr;
    double mass = 0;
    uint64_t items = 0;
    uint32_t age = 0;     // the number of samples since, or since it was asked in vain
    bool silent = false;  // it was asked last in vain
    absl::Duration wait;  // after giving nothing for so long it is asked whether it is empty
  };

  explicit ShardedSampler(ShardedSamplerOptions options) : options_(std::move(options)) {}
  // Asks the shard for its mass. One that does not answer keeps its old one.
  absl::Status Look(size_t shard, absl::Time deadline);
  // Does the same for all shards, or for those whose mass is old. Each has its share of the time, and those
  // that were silent before are asked last. OK also if some do not answer.
  absl::Status LookAtShards(bool all, absl::Time deadline);
  // Returns a number of items for each shard, `batch` together, drawn by `parts`.
  std::vector<uint32_t> Choose(uint32_t batch, absl::Span<const double> parts);
  // Draws from shard `i`, in calls of growing length, until it has given `count` items, or `deadline`, or it
  // is found to be empty.
  absl::StatusOr<Batch> SampleShard(size_t i, uint32_t count, absl::Time deadline);
  bool IsEmpty(size_t i) const { return shards_[i].items == 0; }
  // Returns the probability with which each shard is chosen. They are equal if no shard has a mass.
  std::vector<double> Parts() const;

  const ShardedSamplerOptions options_;
  std::vector<Shard> shards_;
  uint64_t choices_ = 0;
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_CLIENT_SHARDED_SAMPLER_H_
