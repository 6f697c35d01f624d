// SPDX-License-Identifier: Apache-2.0
#include "replay/client/sharded_sampler.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status.h"
#include "replay/client/may_repeat.h"

namespace tandem::replay {
namespace {

// A shard that was not chosen in this many samples is asked for its mass.
constexpr uint32_t kOldMass = 16;
// How long shards are asked for their masses, all together, and each of many at least.
constexpr absl::Duration kLookTime = absl::Seconds(1);
constexpr absl::Duration kShortestLook = absl::Milliseconds(100);
// A shard that has given nothing for so long, or for the time that it may need, is asked whether it is empty.
constexpr absl::Duration kShortestWait = absl::Milliseconds(200);

// Returns the time until which a shard may be asked for its state, if it has `time` for that. A call whose
// deadline has passed does not wait for items, but it asks.
absl::Time EndOfLook(absl::Time now, absl::Duration time, bool may_wait, absl::Time deadline) {
  return may_wait ? std::min(deadline, now + time) : now + time;
}

std::string ShardName(size_t shard) { return absl::StrCat("replay shard ", shard); }

template <typename T>
void AppendTo(std::vector<T>* to, const std::vector<T>& from) {
  to->insert(to->end(), from.begin(), from.end());
}

// Returns one column with the items of all parts.
absl::StatusOr<BatchColumn> JoinColumn(absl::Span<const Batch> parts, size_t c) {
  BatchColumn joined;
  joined.column = parts[0].columns[c].column;
  joined.steps = parts[0].columns[c].steps;
  for (const Batch& part : parts) {
    const BatchColumn& column = part.columns[c];
    if (column.column != joined.column) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the shards have other columns: ", joined.column.ToString(), " and ", column.column.ToString()));
    }
    if (column.steps != joined.steps) joined.steps = 0;
    joined.total_steps += column.total_steps;
    joined.bytes += column.bytes;
  }
  std::shared_ptr<char[]> memory = std::make_shared_for_overwrite<char[]>(joined.bytes);
  char* out = memory.get();
  for (const Batch& part : parts) {
    const BatchColumn& column = part.columns[c];
    std::memcpy(out, column.data.get(), column.bytes);
    out += column.bytes;
    if (joined.steps != 0) continue;
    if (column.lengths.empty()) {
      joined.lengths.insert(joined.lengths.end(), part.size(), column.steps);
    } else {
      AppendTo(&joined.lengths, column.lengths);
    }
  }
  const char* const data = memory.get();
  joined.data = std::shared_ptr<const char>(std::move(memory), data);
  return joined;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardedSampler>> ShardedSampler::Create(std::vector<Replay*> shards,
                                                                       ShardedSamplerOptions options) {
  if (shards.empty()) return absl::InvalidArgumentError("a sharded sampler needs at least one shard");
  std::unique_ptr<ShardedSampler> sampler(new ShardedSampler(std::move(options)));
  for (Replay* const replay : shards) sampler->shards_.push_back({.replay = replay, .wait = kShortestWait});
  for (size_t i = 0; i < shards.size(); ++i) TANDEM_RETURN_IF_ERROR(sampler->Look(i, absl::InfiniteFuture()));
  return sampler;
}

absl::Status ShardedSampler::Look(size_t i, absl::Time deadline) {
  Shard& shard = shards_[i];
  const absl::StatusOr<TableInfo> info = shard.replay->Info(options_.table, deadline);
  shard.silent = !info.ok();
  shard.age = 0;
  if (!info.ok()) return Annotate(info.status(), ShardName(i));
  const SelectorKind kind = info->options.sampler.kind;
  if ((kind != SelectorKind::kUniform && kind != SelectorKind::kPrioritized) ||
      info->options.max_times_sampled > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(ShardName(i), ", table '", options_.table, "': its sampler is ", Name(kind),
                     " and max_times_sampled ", info->options.max_times_sampled,
                     "; a table of several shards must be uniform or prioritized, with 0"));
  }
  shard.mass = info->mass;
  shard.items = info->items;
  return absl::OkStatus();
}

std::vector<double> ShardedSampler::Parts() const {
  double sum = 0;
  uint64_t items = 0;
  for (const Shard& shard : shards_) {
    sum += shard.mass;
    items += shard.items;
  }
  std::vector<double> parts;
  for (const Shard& shard : shards_) {
    // Items whose priorities are all 0 are drawn uniformly, as in one table.
    parts.push_back(sum > 0     ? shard.mass / sum
                    : items > 0 ? static_cast<double>(shard.items) / static_cast<double>(items)
                                : 1.0 / static_cast<double>(shards_.size()));
  }
  return parts;
}

absl::Status ShardedSampler::LookAtShards(bool all, absl::Time deadline) {
  std::vector<size_t> asked;
  for (size_t i = 0; i < shards_.size(); ++i) {
    const Shard& shard = shards_[i];
    // A shard without a mass is never chosen, so that only this tells when it has one.
    if (all || shard.age >= kOldMass || (shard.mass == 0 && !shard.silent)) asked.push_back(i);
  }
  std::stable_partition(asked.begin(), asked.end(), [this](size_t i) { return !shards_[i].silent; });
  const absl::Time start = MonotonicNow();
  const bool may_wait = start < deadline;
  for (size_t n = 0; n < asked.size(); ++n) {
    const absl::Time now = MonotonicNow();
    if (may_wait && now >= deadline) break;  // the next call asks the others
    // A shard that hangs leaves time for those behind it.
    const absl::Duration time =
        std::max((start + kLookTime - now) / static_cast<int64_t>(asked.size() - n), kShortestLook);
    const absl::Status status = Look(asked[n], EndOfLook(now, time, may_wait, deadline));
    if (!status.ok() && !MayRepeat(status)) return status;
  }
  return absl::OkStatus();
}

std::vector<uint32_t> ShardedSampler::Choose(uint32_t batch, absl::Span<const double> parts) {
  std::vector<uint32_t> counts(shards_.size(), 0);
  for (uint32_t n = 0; n < batch; ++n) {
    CounterRandom random(options_.seed, choices_++);
    double left = random.UniformDouble();
    size_t chosen = 0;
    // Rounding may leave a little behind the last shard; it must not choose one without a mass.
    for (size_t i = 0; i < parts.size() && left >= 0; ++i) {
      if (parts[i] == 0) continue;
      chosen = i;
      left -= parts[i];
    }
    ++counts[chosen];
  }
  return counts;
}

absl::StatusOr<Batch> ShardedSampler::SampleShard(size_t i, uint32_t count, absl::Time deadline) {
  Shard& shard = shards_[i];
  while (true) {
    const absl::Time now = MonotonicNow();
    const absl::Time end = deadline <= now ? deadline : std::min(deadline, now + shard.wait);
    absl::StatusOr<Batch> part = shard.replay->Sample(options_.table, {.batch = count}, end, options_.name);
    const absl::Time answered = MonotonicNow();
    if (part.ok()) {
      shard.mass = part->mass;
      shard.items = part->table_items;
      shard.age = 0;
      shard.wait = std::max(kShortestWait, 2 * (answered - now));
      return part;
    }
    if (!MayRepeat(part.status())) return Annotate(part.status(), ShardName(i));
    if (absl::IsDeadlineExceeded(part.status())) {
      const absl::Status looked =
          Look(i, EndOfLook(answered, kLookTime, /*may_wait=*/answered < deadline, deadline));
      if (!looked.ok() && !MayRepeat(looked)) return looked;
      if (end != deadline && !IsEmpty(i)) {
        // The next attempt has more time, because the transfer of a part counts as well.
        shard.wait *= 2;
        continue;
      }
      if (IsEmpty(i)) shard.wait = kShortestWait;
    }
    // The next request may be of another size, and is for other items.
    shard.replay->ForgetUnanswered(options_.table);
    return Annotate(part.status(), ShardName(i));
  }
}

absl::StatusOr<ShardedBatch> ShardedSampler::Sample(uint32_t batch, absl::Time deadline) {
  TANDEM_RETURN_IF_ERROR(LookAtShards(/*all=*/false, deadline));
  std::vector<double> parts = Parts();
  std::vector<uint32_t> counts = Choose(batch, parts);
  std::vector<std::vector<Batch>> given(shards_.size());
  for (size_t i = 0; i < shards_.size();) {
    if (counts[i] == 0) {
      ++i;
      continue;
    }
    absl::StatusOr<Batch> part = SampleShard(i, counts[i], deadline);
    if (part.ok()) {
      given[i].push_back(*std::move(part));
      counts[i] = 0;
      ++i;
      continue;
    }
    if (!absl::IsDeadlineExceeded(part.status()) || !IsEmpty(i)) return part.status();
    parts[i] = 0;
    double sum = 0;
    for (const double one : parts) sum += one;
    if (sum > 0 && given[i].empty()) {
      // The others are chosen in the place of the empty shard with the same odds among them, which then are
      // those of the whole batch.
      for (double& one : parts) one /= sum;
      const std::vector<uint32_t> more = Choose(std::exchange(counts[i], 0), parts);
      for (size_t s = 0; s < shards_.size(); ++s) counts[s] += more[s];
    } else {
      // No shard is left, or the empty one has given items, which could not have been drawn with these odds.
      // The whole batch is drawn anew.
      if (sum <= 0) TANDEM_RETURN_IF_ERROR(LookAtShards(/*all=*/true, deadline));
      const bool all_empty =
          std::all_of(shards_.begin(), shards_.end(), [](const Shard& s) { return s.items == 0; });
      if (all_empty && MonotonicNow() >= deadline) return part.status();
      for (std::vector<Batch>& one : given) one.clear();
      parts = Parts();
      counts = Choose(batch, parts);
    }
    i = 0;
  }
  ShardedBatch result;
  Batch& all = result.batch;
  std::vector<Batch> drawn;
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (given[i].empty()) ++shards_[i].age;
    for (Batch& one : given[i]) {
      Batch* const part = &one;
      AppendTo(&all.keys, part->keys);
      for (const double probability : part->probabilities)
        all.probabilities.push_back(parts[i] * probability);
      AppendTo(&all.priorities, part->priorities);
      AppendTo(&all.times_sampled, part->times_sampled);
      AppendTo(&all.min_versions, part->min_versions);
      AppendTo(&all.max_versions, part->max_versions);
      if (part->committed_version) {
        all.committed_version =
            std::max(*part->committed_version, all.committed_version.value_or(*part->committed_version));
      }
      result.shards.insert(result.shards.end(), part->size(), static_cast<uint32_t>(i));
      drawn.push_back(std::move(one));
    }
  }
  for (const Shard& shard : shards_) {
    all.table_items += shard.items;
    all.mass += shard.mass;
  }
  for (size_t c = 0; !drawn.empty() && c < drawn[0].columns.size(); ++c) {
    for (const Batch& part : drawn) {
      if (part.columns.size() != drawn[0].columns.size()) {
        return absl::InvalidArgumentError("the shards have other numbers of columns");
      }
    }
    TANDEM_ASSIGN_OR_RETURN(all.columns.emplace_back(), JoinColumn(drawn, c));
  }
  return result;
}

absl::StatusOr<uint64_t> ShardedSampler::UpdatePriorities(const ShardedBatch& batch,
                                                          absl::Span<const double> priorities) {
  if (priorities.size() != batch.batch.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(priorities.size(), " priorities for ", batch.batch.size(), " items"));
  }
  uint64_t changed = 0;
  for (size_t begin = 0; begin < priorities.size();) {
    const uint32_t shard = batch.shards[begin];
    size_t end = begin;
    while (end < priorities.size() && batch.shards[end] == shard) ++end;
    const absl::StatusOr<uint64_t> part = shards_[shard].replay->UpdatePriorities(
        options_.table, absl::MakeSpan(batch.batch.keys).subspan(begin, end - begin),
        priorities.subspan(begin, end - begin));
    if (!part.ok()) return Annotate(part.status(), ShardName(shard));
    changed += *part;
    begin = end;
  }
  return changed;
}

}  // namespace tandem::replay
