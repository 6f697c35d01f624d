// SPDX-License-Identifier: Apache-2.0
#include "replay/client/sharded_sampler.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "replay/client/may_repeat.h"
#include "replay/limiter/rate_limiter.h"

namespace tandem::replay {
namespace {

// A shard that was not chosen in this many samples is asked for its mass.
constexpr uint32_t kOldMass = 16;
// How long shards are asked for their masses.
constexpr absl::Duration kLookTime = absl::Seconds(1);
// A call that ends at its deadline may take so much longer to say so.
constexpr absl::Duration kMoment = absl::Milliseconds(500);
// The time of the first attempt to draw a batch ahead. An attempt that ends without one doubles it, so that
// batches may take long.
constexpr absl::Duration kFirstAttempt = absl::Seconds(5);
constexpr absl::Duration kLongestAttempt = absl::Minutes(2);
constexpr absl::Duration kPause = absl::Milliseconds(50);
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
  if (options.batch > 0 && options.prefetch == 0)
    return absl::InvalidArgumentError("a sharded sampler's prefetch is 0; it must be at least 1");
  std::unique_ptr<ShardedSampler> sampler(new ShardedSampler(std::move(options)));
  sampler->replays_ = shards;
  for (size_t i = 0; i < shards.size(); ++i) {
    sampler->shards_.push_back({.index = i, .replay = shards[i], .wait = kShortestWait});
    sampler->callers_.push_back(std::make_unique<Callers>());
  }
  TANDEM_RETURN_IF_ERROR(sampler->LookAtShards(/*all=*/true, absl::InfiniteFuture(), absl::InfiniteFuture(),
                                               /*must_answer=*/true));
  if (sampler->options_.batch > 0) sampler->ahead_ = std::thread([s = sampler.get()] { s->DrawAhead(); });
  return sampler;
}

ShardedSampler::~ShardedSampler() {
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }
  if (ahead_.joinable()) ahead_.join();
  ends_.request_stop();
}

absl::Status ShardedSampler::Look(const std::string& table, Shard* shard, absl::Time deadline) {
  const absl::StatusOr<TableInfo> info = shard->replay->Info(table, deadline);
  shard->silent = !info.ok();
  shard->age = 0;
  if (!info.ok()) return Annotate(info.status(), ShardName(shard->index));
  const SelectorKind kind = info->options.sampler.kind;
  if ((kind != SelectorKind::kUniform && kind != SelectorKind::kPrioritized) ||
      info->options.max_times_sampled > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(ShardName(shard->index), ", table '", table, "': its sampler is ", Name(kind),
                     " and max_times_sampled ", info->options.max_times_sampled,
                     "; a table of several shards must be uniform or prioritized, with 0"));
  }
  shard->mass = info->mass;
  shard->items = info->items;
  shard->largest = static_cast<uint32_t>(
      std::min<uint64_t>(LargestBatch(info->options.limit), std::numeric_limits<uint32_t>::max()));
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

absl::Status ShardedSampler::LookAtShards(bool all, absl::Time deadline, absl::Time end, bool must_answer) {
  const absl::Time now = MonotonicNow();
  const absl::Time until =
      must_answer ? deadline
                  : std::min(end, EndOfLook(now, kLookTime, /*may_wait=*/now < deadline, deadline));
  std::vector<std::shared_ptr<CallResult<Looked>>> calls(shards_.size());
  std::vector<size_t> asked;
  for (size_t i = 0; i < shards_.size(); ++i) {
    const Shard& shard = shards_[i];
    // A shard without a mass is never chosen, so that only this tells when it has one.
    if (!all && shard.age < kOldMass && (shard.mass != 0 || shard.silent)) continue;
    asked.push_back(i);
    const auto look = [table = options_.table, seen = Shard(shard), until]() mutable {
      const absl::Status status = Look(table, &seen, until);
      return Looked{status, seen};
    };
    calls[i] = callers_[i]->drawing.Start<Looked>(look, now);
  }
  absl::Status first;
  for (const size_t i : asked) {
    if (calls[i] == nullptr || !calls[i]->over.WaitUntil(std::min(end, until + kMoment))) {
      // The shard's thread is in a call that has not ended.
      shards_[i].silent = true;
      shards_[i].age = 0;
      continue;
    }
    shards_[i] = calls[i]->value.shard;
    const absl::Status& status = calls[i]->value.status;
    if (!status.ok() && (must_answer || !MayRepeat(status))) first.Update(status);
  }
  return first;
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

ShardedSampler::Drawn ShardedSampler::DrawFrom(const std::string& table, const std::string& name, Shard shard,
                                               uint32_t count, absl::Time deadline, std::stop_token stop) {
  Drawn drawn;
  // The items of a sample that was given up without an answer are not for this one.
  if (std::exchange(shard.forget, false)) shard.replay->ForgetUnanswered(table);
  while (count > 0 && drawn.status.ok()) {
    if (stop.stop_requested()) {
      drawn.status = absl::CancelledError(absl::StrCat(ShardName(shard.index), ": the draw was given up"));
      break;
    }
    const absl::Time now = MonotonicNow();
    const absl::Time end = deadline <= now ? deadline : std::min(deadline, now + shard.wait);
    const SampleSize size = {.batch = count, .min_batch = count > shard.largest ? shard.largest : 0};
    absl::StatusOr<Batch> part = shard.replay->Sample(table, size, end, name);
    const absl::Time answered = MonotonicNow();
    if (part.ok()) {
      shard.mass = part->mass;
      shard.items = part->table_items;
      shard.age = 0;
      shard.wait = std::max(kShortestWait, 2 * (answered - now));
      count -= std::min<uint32_t>(count, static_cast<uint32_t>(part->size()));
      drawn.batches.push_back(*std::move(part));
      continue;
    }
    absl::Status status = Annotate(part.status(), ShardName(shard.index));
    if (absl::IsInvalidArgument(status)) {
      // The limit may have become narrower meanwhile.
      const absl::Status looked =
          Look(table, &shard, EndOfLook(answered, kLookTime, /*may_wait=*/answered < deadline, deadline));
      if (looked.ok() && shard.largest < size.least()) continue;
    } else if (absl::IsDeadlineExceeded(status)) {
      const absl::Status looked =
          Look(table, &shard, EndOfLook(answered, kLookTime, /*may_wait=*/answered < deadline, deadline));
      if (!looked.ok() && !MayRepeat(looked)) {
        status = looked;
      } else if (shard.items == 0) {
        shard.wait = kShortestWait;
        shard.replay->ForgetUnanswered(table);  // the others give this part
      } else if (end != deadline) {
        // The next attempt has more time, because the transfer of a part counts as well.
        shard.wait *= 2;
        continue;
      }
    }
    drawn.status = std::move(status);
  }
  drawn.shard = shard;
  return drawn;
}

absl::Status ShardedSampler::Stopped(const std::stop_token& stop) {
  if (stop.stop_requested()) return absl::CancelledError("the sample was cancelled");
  absl::MutexLock lock(&mutex_);
  return stopped_ ? absl::CancelledError("the sampler ends") : absl::OkStatus();
}

void ShardedSampler::StartDraws(absl::Time deadline, absl::Time end, const std::stop_token& stop) {
  Unfinished& whole = *unfinished_;
  const auto start = [&](size_t i, absl::Time until) {
    whole.draws[i] = {.call = callers_[i]->drawing.Start<Drawn>(
                          [table = options_.table, name = options_.name, shard = shards_[i],
                           count = whole.counts[i], deadline, ends = ends_.get_token()] {
                            return DrawFrom(table, name, shard, count, deadline, ends);
                          },
                          until),
                      .deadline = deadline};
    return whole.draws[i].call != nullptr;
  };
  const auto missing = [&](size_t i) { return whole.counts[i] > 0 && whole.draws[i].call == nullptr; };
  // First the shards whose threads are idle, then those whose earlier call took too long and goes on.
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (missing(i)) start(i, absl::InfinitePast());
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    while (missing(i) && !start(i, std::min(end, MonotonicNow() + kShortestWait))) {
      if (MonotonicNow() >= end || !Stopped(stop).ok()) return;
    }
  }
}

void ShardedSampler::AwaitDraws(absl::Time deadline, absl::Time end, const std::stop_token& stop) {
  const std::vector<Draw>& draws = unfinished_->draws;
  const auto ended_for_good = [](const Draw& draw) {
    return draw.call != nullptr && draw.call->over.HasBeenNotified() && !draw.call->value.status.ok() &&
           !MayRepeat(draw.call->value.status);
  };
  for (const Draw& draw : draws) {
    if (draw.call == nullptr) continue;
    const absl::Time until = draw.deadline > deadline ? std::min(end, deadline) : end;
    while (!draw.call->over.WaitUntil(std::min(until, MonotonicNow() + kShortestWait))) {
      if (!Stopped(stop).ok() || std::any_of(draws.begin(), draws.end(), ended_for_good)) return;
      if (MonotonicNow() >= until) break;
    }
  }
}

absl::StatusOr<std::vector<size_t>> ShardedSampler::DrawFromShards(absl::Time deadline, absl::Time end,
                                                                   const std::stop_token& stop,
                                                                   absl::Status* emptiness) {
  Unfinished& whole = *unfinished_;
  while (true) {
    StartDraws(deadline, end, stop);
    AwaitDraws(deadline, end, stop);
    absl::Status refusal, late;
    bool again = false;
    std::vector<size_t> empty;
    for (size_t i = 0; i < shards_.size(); ++i) {
      if (whole.counts[i] == 0) continue;
      Draw& draw = whole.draws[i];
      if (draw.call == nullptr || !draw.call->over.HasBeenNotified()) {
        late.Update(absl::DeadlineExceededError(absl::StrCat(
            ShardName(i), " at table '", options_.table,
            "': it has not answered, and its call goes on; is its server alive and reachable?")));
        continue;
      }
      Drawn drawn = std::move(draw.call->value);
      draw.call = nullptr;
      shards_[i] = drawn.shard;
      for (Batch& batch : drawn.batches) {
        whole.counts[i] -= std::min<uint32_t>(whole.counts[i], static_cast<uint32_t>(batch.size()));
        whole.given[i].push_back(std::move(batch));
      }
      if (drawn.status.ok()) continue;
      if (!MayRepeat(drawn.status)) {
        refusal.Update(drawn.status);
      } else if (absl::IsDeadlineExceeded(drawn.status) && shards_[i].items == 0) {
        empty.push_back(i);
        *emptiness = drawn.status;
      } else if (draw.earlier) {
        again = true;  // with the time of this sample
      } else {
        late.Update(drawn.status);
      }
    }
    if (!refusal.ok()) return refusal;
    TANDEM_RETURN_IF_ERROR(Stopped(stop));
    if (!late.ok()) return late;
    if (!again) return empty;
  }
}

absl::StatusOr<ShardedBatch> ShardedSampler::Sample(uint32_t batch, absl::Time deadline,
                                                    std::stop_token stop) {
  const absl::Time end = std::max(deadline, MonotonicNow()) + options_.answer_time;
  if (!unfinished_ || unfinished_->size != batch) {
    Drop();
    TANDEM_RETURN_IF_ERROR(LookAtShards(/*all=*/false, deadline, end));
    const size_t shards = shards_.size();
    unfinished_.emplace(Unfinished{.size = batch, .parts = Parts()});
    unfinished_->counts = Choose(batch, unfinished_->parts);
    unfinished_->given.resize(shards);
    unfinished_->draws.resize(shards);
  }
  for (Draw& draw : unfinished_->draws) draw.earlier = draw.call != nullptr;
  absl::StatusOr<ShardedBatch> drawn = Complete(deadline, end, stop);
  if (!drawn.ok() && stop.stop_requested()) EndDraws();
  if (!drawn.ok() && !MayRepeat(drawn.status())) Drop();
  return drawn;
}

void ShardedSampler::EndDraws() {
  ends_.request_stop();
  ends_ = std::stop_source();
}

void ShardedSampler::Drop() {
  if (!unfinished_) return;
  EndDraws();
  for (Shard& shard : shards_) shard.forget = true;
  unfinished_.reset();
}

absl::StatusOr<ShardedBatch> ShardedSampler::Complete(absl::Time deadline, absl::Time end,
                                                      const std::stop_token& stop) {
  Unfinished& whole = *unfinished_;
  while (true) {
    TANDEM_RETURN_IF_ERROR(Stopped(stop));
    absl::Status emptiness;
    TANDEM_ASSIGN_OR_RETURN(const std::vector<size_t> empty, DrawFromShards(deadline, end, stop, &emptiness));
    if (empty.empty()) {
      Unfinished complete = *std::move(unfinished_);
      unfinished_.reset();
      return Join(std::move(complete));
    }
    bool may_complete = true;
    uint32_t missing = 0;
    for (const size_t i : empty) {
      whole.parts[i] = 0;
      missing += std::exchange(whole.counts[i], 0);
      may_complete = may_complete && whole.given[i].empty();
    }
    double sum = 0;
    for (const double one : whole.parts) sum += one;
    if (sum > 0 && may_complete) {
      // The others are chosen in the place of the empty shards with the same odds among them, which then are
      // those of the whole batch.
      for (double& one : whole.parts) one /= sum;
      whole.counts = Choose(missing, whole.parts);
      continue;
    }
    // No shard is left, or an empty one has given items, which could not have been drawn with these odds. The
    // whole batch is drawn anew.
    if (sum <= 0) TANDEM_RETURN_IF_ERROR(LookAtShards(/*all=*/true, deadline, end));
    for (std::vector<Batch>& one : whole.given) one.clear();
    whole.parts = Parts();
    whole.counts = Choose(whole.size, whole.parts);
    const bool all_empty =
        std::all_of(shards_.begin(), shards_.end(), [](const Shard& s) { return s.items == 0; });
    const absl::Time now = MonotonicNow();
    if ((all_empty && now >= deadline) || now >= end) return emptiness;
  }
}

absl::StatusOr<ShardedBatch> ShardedSampler::Join(Unfinished whole) {
  ShardedBatch result;
  Batch& all = result.batch;
  std::vector<Batch> drawn;
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (whole.given[i].empty()) ++shards_[i].age;
    for (Batch& one : whole.given[i]) {
      Batch* const part = &one;
      AppendTo(&all.keys, part->keys);
      for (const double probability : part->probabilities)
        all.probabilities.push_back(whole.parts[i] * probability);
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
  if (batch.shards.size() != batch.batch.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the batch says the shard of ", batch.shards.size(),
                                                   " of its ", batch.batch.size(), " items"));
  }
  for (const uint32_t shard : batch.shards) {
    if (shard < replays_.size()) continue;
    return absl::InvalidArgumentError(absl::StrCat("the batch has an item of shard ", shard,
                                                   ", and this sampler has ", replays_.size(),
                                                   " shards; it must be the one that has drawn the batch"));
  }
  std::vector<std::pair<uint32_t, std::shared_ptr<CallResult<absl::StatusOr<uint64_t>>>>> calls;
  for (size_t begin = 0; begin < priorities.size();) {
    const uint32_t shard = batch.shards[begin];
    size_t end = begin;
    while (end < priorities.size() && batch.shards[end] == shard) ++end;
    const absl::Span<const uint64_t> keys = absl::MakeConstSpan(batch.batch.keys).subspan(begin, end - begin);
    const absl::Span<const double> values = priorities.subspan(begin, end - begin);
    const auto update = [this, shard, keys, values]() -> absl::StatusOr<uint64_t> {
      return replays_[shard]->UpdatePriorities(options_.table, keys, values);
    };
    calls.emplace_back(
        shard, callers_[shard]->updating.Start<absl::StatusOr<uint64_t>>(update, absl::InfiniteFuture()));
    begin = end;
  }
  uint64_t changed = 0;
  absl::Status first;
  for (const auto& [shard, call] : calls) {  // all of them: they use the caller's memory
    call->over.Wait();
    if (call->value.ok()) changed += *call->value;
    first.Update(Annotate(call->value.status(), ShardName(shard)));
  }
  if (!first.ok()) return first;
  return changed;
}

bool ShardedSampler::MayDrawAhead() const {
  if (stopped_) return true;
  const size_t wanted =
      batch_bytes_ == 0 ? options_.prefetch
                        : std::clamp<size_t>(options_.prefetch_bytes / batch_bytes_, 1, options_.prefetch);
  return ready_.size() < wanted;
}

void ShardedSampler::DrawAhead() {
  absl::Duration attempt = kFirstAttempt;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &ShardedSampler::MayDrawAhead));
      if (stopped_) return;
    }
    const absl::Time begin = MonotonicNow();
    absl::StatusOr<ShardedBatch> batch = Sample(options_.batch, begin + attempt);
    absl::MutexLock lock(&mutex_);
    if (batch.ok()) {
      attempt = kFirstAttempt;
      batch_bytes_ = 0;
      for (const BatchColumn& column : batch->batch.columns) batch_bytes_ += column.bytes;
      ready_.push_back(*std::move(batch));
      continue;
    }
    reason_ = batch.status();
    if (!MayRepeat(reason_)) {
      failure_ = reason_;
      return;
    }
    if (absl::IsDeadlineExceeded(reason_)) attempt = std::min(2 * attempt, kLongestAttempt);
    // A call that fails at once, because a server is away, is not repeated in a hurry.
    AwaitUntil(&mutex_, absl::Condition(&stopped_), begin + kPause);
  }
}

absl::StatusOr<ShardedBatch> ShardedSampler::Next(absl::Time deadline) {
  if (options_.batch == 0)
    return absl::InvalidArgumentError("Next needs ShardedSamplerOptions::batch, which is 0");
  absl::MutexLock lock(&mutex_);
  const auto there = +[](ShardedSampler* s)
                          ABSL_NO_THREAD_SAFETY_ANALYSIS { return !s->ready_.empty() || !s->failure_.ok(); };
  if (!AwaitUntil(&mutex_, absl::Condition(there, this), deadline)) {
    return absl::DeadlineExceededError(
        absl::StrCat("sampler '", options_.name, "', table '", options_.table, "': no batch has arrived",
                     reason_.ok() ? "" : absl::StrCat("; the last draw ended with: ", reason_.message())));
  }
  if (ready_.empty()) return failure_;
  ShardedBatch batch = std::move(ready_.front());
  ready_.pop_front();
  return batch;
}

}  // namespace tandem::replay
