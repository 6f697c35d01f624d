// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/shm/exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "collectives/backends/shm/copy.h"
#include "collectives/ranks.h"

namespace tandem::collectives::shm {
namespace {

constexpr uint64_t kSequenceMask = 0xffff;

// Returns a number that differs if fingerprints differ (except with probability 2^-48), combined with the
// sequence.
uint64_t WordOf(const Fingerprint& fingerprint, uint64_t sequence) {
  uint64_t parts[4];
  static_assert(sizeof(parts) == sizeof(fingerprint));
  std::memcpy(parts, &fingerprint, sizeof(parts));
  uint64_t hash = parts[0] * 0x9e3779b97f4a7c15u + parts[1] * 0xc2b2ae3d27d4eb4fu +
                  parts[2] * 0x165667b19e3779f9u + parts[3] * 0xd6e8feb86659fd93u;
  hash = (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93u;
  hash ^= hash >> 32;
  return (hash & ~kSequenceMask) | (sequence & kSequenceMask);
}

bool PairsAgreeAlone(const Operation& op) {
  return !op.even &&
         (op.kind == OpKind::kGather || op.kind == OpKind::kScatter || op.kind == OpKind::kAllToAll);
}

// Below this size, reading all inputs on all ranks costs less than a second synchronisation.
size_t OneShotBytes(int world_size) { return world_size == 2 ? 8 * 1024 : 4 * 1024; }

}  // namespace

Exchange::Exchange(std::shared_ptr<Segment> segment, SharedFailureState* failures, int rank,
                   std::string group)
    : segment_(std::move(segment)),
      failures_(failures),
      rank_(rank),
      world_size_(segment_->geometry().world_size),
      group_(std::move(group)),
      spin_policy_(SpinPolicyFor(world_size_, UsableProcessors())),
      part_used_(segment_->geometry().stage_bytes) {}

absl::Status Exchange::Run(const Operation& op) {
  if (failures_->word().load(std::memory_order_acquire) != 0) return failures_->status();
  const size_t largest = LargestPart(op, world_size_);
  Running run(op, spin_policy_, *failures_, step_);
  if (world_size_ == 1) {
    run.factors[0] = op.factor;
    const Plan plan = InlinePlan(op, largest, 1);
    Unpack(op, place(run), plan, 0, {});
    return absl::OkStatus();
  }
  ++sequence_;
  if (!PairsAgreeAlone(op)) {
    const Plan plan = InlinePlan(op, largest, world_size_);
    if (plan.slot_bytes <= kInlineBytes) return RunSmall(run, plan);
    const bool halves = op.kind == OpKind::kAllReduce || (op.kind == OpKind::kReduce && world_size_ > 2);
    if (halves && largest > OneShotBytes(world_size_)) return RunTwoPhases(run);
  }
  return RunOnePhase(run, StagedPlan(op, largest, world_size_, segment_->geometry().block_bytes));
}

PartLocation Exchange::place(const Running& run) const {
  const bool factors = run.operation.reduce == ReduceOp::kPremulSum;
  return {rank_, world_size_, absl::MakeConstSpan(run.factors, factors ? world_size_ : 0)};
}

absl::Status Exchange::RunSmall(Running& run, const Plan& plan) {
  const int parity = sequence_ & 1;
  Pack(run.operation, place(run), plan, 0, segment_->area(rank_).posts[parity].Payload(plan.slot_bytes),
       nullptr);
  Announce(run);
  TANDEM_RETURN_IF_ERROR(AwaitPosts(run, 0));
  const char* slots[kMaxRanks];
  for (int s = 0; s < world_size_; ++s) {
    slots[s] = segment_->area(s).posts[parity].Payload(plan.slot_bytes);
  }
  Unpack(run.operation, place(run), plan, 0, absl::MakeConstSpan(slots, world_size_));
  return absl::OkStatus();
}

absl::Status Exchange::RunOnePhase(Running& run, Plan plan) {
  const Operation& op = run.operation;
  const bool pairs = PairsAgreeAlone(op);
  if (pairs) {  // no rank knows the sizes of all: every block is a full one
    const size_t lanes = plan.lane_per_reader ? world_size_ : 1;
    plan.chunk = plan.stride = segment_->geometry().block_bytes / lanes / kLine * kLine;
    plan.slot_bytes = plan.stride * lanes;
    plan.blocks = 0;
    PairCounts& counts = segment_->area(rank_).counts[sequence_ & 1];
    for (int s = 0; s < world_size_; ++s) {
      counts.to[s] = CountTo(op, rank_, s);
      counts.from[s] = CountFrom(op, rank_, s);
    }
  }
  const auto packed = [&](size_t k) { return run.first_step + 2 * k + 1; };
  const auto unpacked = [&](size_t k) { return run.first_step + 2 * k + 4; };
  size_t offset = 0, previous = 0;
  for (size_t k = 0; k <= plan.blocks; ++k) {
    // Uneven operations reserve their first block before they know whether it is needed.
    if (k < plan.blocks || k == 0) {
      TANDEM_RETURN_IF_ERROR(Reserve(run, plan.slot_bytes, unpacked(k), &offset));
      Pack(op, place(run), plan, k, segment_->stage(rank_) + offset, &writer_);
      if (k > 0) Advance(packed(k));
    }
    if (k == 0) {
      Announce(run);
      TANDEM_RETURN_IF_ERROR(AwaitPosts(run, packed(0)));
      if (pairs) {
        size_t largest = 0;
        TANDEM_RETURN_IF_ERROR(ComparePairs(run, &largest));
        plan.blocks = (largest + plan.chunk - 1) / plan.chunk;
      }
    } else {
      TANDEM_RETURN_IF_ERROR(AwaitStepOfAll(run, packed(k - 1)));
      const char* slots[kMaxRanks];
      for (int s = 0; s < world_size_; ++s) slots[s] = segment_->stage(s) + previous;
      Unpack(op, place(run), plan, k - 1, absl::MakeConstSpan(slots, world_size_));
      Advance(unpacked(k - 1));
    }
    previous = offset;
  }
  step_ = run.first_step + 2 * (plan.blocks + 1);
  if (plan.hint == WriteHint::kStream) StreamFence();
  return absl::OkStatus();
}

absl::Status Exchange::RunTwoPhases(Running& run) {
  const Operation& op = run.operation;
  const size_t element = SizeOf(op.dtype);
  const size_t total = op.in.count * element;
  const size_t most = segment_->geometry().block_bytes;
  const size_t blocks = (total + most - 1) / most;
  const size_t block = ((total + blocks - 1) / blocks + kLine * world_size_ - 1) / (kLine * world_size_) *
                       (kLine * world_size_);
  const size_t stride = block / world_size_;
  const WriteHint hint = total > kStreamBytes ? WriteHint::kStream : WriteHint::kCache;
  const char* const in = static_cast<const char*>(op.in.data);
  const bool has_result = op.kind == OpKind::kAllReduce || rank_ == op.root;
  char* const out = has_result ? static_cast<char*>(op.out.data) : nullptr;
  const PartLocation here = place(run);

  // The slice of block k that rank s reduces: bytes [begin, end) of the array.
  const auto slice = [&](size_t k, int s) {
    const size_t begin = std::min(total, k * block), bytes = std::min(block, total - begin);
    const size_t each = ((bytes + world_size_ - 1) / world_size_ + kLine - 1) / kLine * kLine;
    return std::pair<size_t, size_t>(begin + std::min(bytes, s * each),
                                     begin + std::min(bytes, (s + 1) * each));
  };
  const auto taken = [&](size_t k) { return run.first_step + 3 * (k + 2) + 1; };
  const auto given = [&](size_t k) { return run.first_step + 3 * k + 2; };
  const auto reduced = [&](size_t k) { return run.first_step + 3 * (k + 1) + 3; };
  size_t offsets[4];  // of block k, at k % 4

  for (size_t k = 0; k < blocks + 2; ++k) {
    if (k >= 2) {  // the results of block k - 2
      for (int i = 1; i < world_size_; ++i) {
        const int s = (rank_ + i) % world_size_;
        const auto [begin, end] = slice(k - 2, s);
        if (out == nullptr || begin == end) continue;
        TANDEM_RETURN_IF_ERROR(AwaitStep(run, s, reduced(k - 2)));
        Copy(out + begin, segment_->stage(s) + offsets[(k - 2) % 4] + s * stride, end - begin, hint);
      }
      Advance(taken(k - 2));
    }
    if (k < blocks) {  // give block k
      TANDEM_RETURN_IF_ERROR(Reserve(run, block, taken(k), &offsets[k % 4]));
      for (int i = 1; i < world_size_; ++i) {
        const int s = (rank_ + i) % world_size_;
        const auto [begin, end] = slice(k, s);
        writer_.Write(segment_->stage(rank_) + offsets[k % 4] + s * stride, in + begin, end - begin);
      }
      if (k == 0) {
        Announce(run);
        TANDEM_RETURN_IF_ERROR(AwaitPosts(run, given(0)));
      } else {
        Advance(given(k));
      }
    }
    if (k >= 1 && k <= blocks) {  // reduce this rank's slice of block k - 1
      const size_t lane = offsets[(k - 1) % 4] + rank_ * stride;
      TANDEM_RETURN_IF_ERROR(AwaitStepOfAll(run, given(k - 1)));
      // The chunks stay in the first-level cache: a result goes to two places, and the second is written
      // from the first. If one of them bypasses the caches, it must be the second.
      constexpr size_t kChunk = 8192;
      alignas(kLine) char scratch[kChunk];
      const bool stream_lane = writer_.hint() == WriteHint::kStream;
      const auto [begin, end] = slice(k - 1, rank_);
      for (size_t at = begin; at < end; at += kChunk) {
        const size_t bytes = std::min(kChunk, end - at);
        const void* sources[kMaxRanks];
        for (int s = 0; s < world_size_; ++s) {
          sources[s] = s == rank_ ? in + at : segment_->stage(s) + lane + (at - begin);
        }
        char* const shared = segment_->stage(rank_) + lane + (at - begin);
        const bool first_out = stream_lane && out != nullptr && hint == WriteHint::kCache;
        char* const result = !stream_lane ? shared : first_out ? out + at : scratch;
        ReduceInRankOrder(op.reduce, op.dtype, absl::MakeConstSpan(sources, world_size_), here.factors,
                          world_size_, bytes / element, result, WriteHint::kCache);
        if (stream_lane) Copy(shared, result, bytes, WriteHint::kStream);
        if (out != nullptr && !first_out) Copy(out + at, result, bytes, hint);
      }
      Advance(reduced(k - 1));
    }
  }
  step_ = run.first_step + 3 * (blocks + 2);
  if (hint == WriteHint::kStream) StreamFence();
  return absl::OkStatus();
}

void Exchange::PublishWord(std::atomic<uint64_t>& word, uint64_t value) {
  writer_.Fence();
  Publish(word, value, segment_->area(rank_).wakeup, /*fenced=*/spin_policy_.sleeps_often());
}

void Exchange::Announce(Running& run) {
  RankArea& area = segment_->area(rank_);
  const int parity = sequence_ & 1;
  area.announcements[parity] = {FingerprintOf(run.operation), run.operation.factor};
  run.word = WordOf(area.announcements[parity].fingerprint, sequence_);
  PublishWord(area.posts[parity].word, run.word);
}

absl::Status Exchange::AwaitPosts(Running& run, uint64_t step) {
  const int parity = sequence_ & 1;
  for (int s = 0; s < world_size_; ++s) {
    if (s == rank_) continue;
    RankArea& area = segment_->area(s);
    uint64_t word;
    const Outcome outcome = run.waiter.Await(
        area.wakeup,
        [&] {
          word = area.posts[parity].word.load(std::memory_order_acquire);
          return ((word ^ run.word) & kSequenceMask) == 0;
        },
        [&] { return area.state.load(std::memory_order_acquire) == kLeft; });
    if (outcome != Outcome::kReady) return Ended(run, outcome, s, 0);
    if (word != run.word) return Disagree(run, s);
    seen_[s] = std::max(seen_[s], step);
  }
  if (run.operation.reduce == ReduceOp::kPremulSum) {
    for (int s = 0; s < world_size_; ++s) run.factors[s] = segment_->area(s).announcements[parity].factor;
  }
  return absl::OkStatus();
}

absl::Status Exchange::ComparePairs(Running& run, size_t* largest_part) {
  constexpr uint64_t kMost = uint64_t{1} << 48;  // more than any memory
  const int parity = sequence_ & 1;
  // Every rank checks all pairs, so that all find the same error.
  for (int s = 0; s < world_size_; ++s) {
    for (int r = 0; r < world_size_; ++r) {
      const uint64_t sent = segment_->area(s).counts[parity].to[r];
      const uint64_t expected = segment_->area(r).counts[parity].from[s];
      if (sent == expected && sent < kMost) {
        // Includes the part that a rank keeps, which is copied block by block like the others.
        *largest_part = std::max<size_t>(*largest_part, sent * SizeOf(run.operation.dtype));
        continue;
      }
      return failures_->Report(absl::InvalidArgumentError(absl::StrCat(
          "ranks of group '", group_, "' disagree in ", Describe(run.operation), ": rank ", s, " gives rank ",
          r, " ", sent, " elements, but rank ", r, " expects ", expected, " from it")));
    }
  }
  return absl::OkStatus();
}

absl::Status Exchange::AwaitStep(Running& run, int rank, uint64_t step) {
  if (seen_[rank] >= step) return absl::OkStatus();
  RankArea& area = segment_->area(rank);
  const Outcome outcome = run.waiter.Await(
      area.wakeup,
      [&] {
        seen_[rank] = area.progress.load(std::memory_order_acquire);
        return seen_[rank] >= step;
      },
      [&] { return area.state.load(std::memory_order_acquire) == kLeft; });
  return outcome == Outcome::kReady ? absl::OkStatus() : Ended(run, outcome, rank, step);
}

absl::Status Exchange::AwaitStepOfAll(Running& run, uint64_t step) {
  for (int s = 0; s < world_size_; ++s) {
    if (s != rank_) TANDEM_RETURN_IF_ERROR(AwaitStep(run, s, step));
  }
  return absl::OkStatus();
}

void Exchange::Advance(uint64_t step) { PublishWord(segment_->area(rank_).progress, step); }

absl::Status Exchange::Reserve(Running& run, size_t bytes, uint64_t free_at, size_t* offset) {
  const size_t part_bytes = segment_->geometry().stage_bytes / kStageParts;
  if (part_used_ + bytes > part_bytes) {
    part_ = (part_ + 1) % kStageParts;
    part_used_ = 0;
    TANDEM_RETURN_IF_ERROR(AwaitStepOfAll(run, part_free_at_[part_]));
  }
  *offset = part_ * part_bytes + part_used_;
  part_used_ += bytes;
  part_free_at_[part_] = free_at;
  return absl::OkStatus();
}

absl::Status Exchange::Disagree(const Running& run, int rank) {
  const Fingerprint theirs = segment_->area(rank).announcements[sequence_ & 1].fingerprint;
  return failures_->Report(
      absl::InvalidArgumentError(Disagreement(group_, rank_, FingerprintOf(run.operation), rank, theirs)));
}

absl::Status Exchange::Ended(const Running& run, Outcome outcome, int rank, uint64_t step) {
  if (outcome == Outcome::kFailed) return failures_->status();
  const std::string what = absl::StrCat(Describe(run.operation), " of group '", group_, "'");
  if (outcome == Outcome::kLeft) {
    return failures_->Report(absl::UnavailableError(
        absl::StrCat("rank ", rank, " has left the group, and will not take part in ", what)));
  }
  std::vector<int> absent, stuck;
  for (int s = 0; s < world_size_; ++s) {
    if (s == rank_) continue;
    const uint64_t word = segment_->area(s).posts[sequence_ & 1].word.load(std::memory_order_acquire);
    if (((word ^ sequence_) & kSequenceMask) != 0) absent.push_back(s);
    if (segment_->area(s).progress.load(std::memory_order_acquire) < step) stuck.push_back(s);
  }
  const std::string who = !absent.empty()  ? absl::StrCat(NameRanks(absent), " did not come")
                          : !stuck.empty() ? absl::StrCat(NameRanks(stuck), " stopped in the middle of it")
                                           : absl::StrCat("rank ", rank, " came too late");
  return failures_->Report(absl::DeadlineExceededError(
      absl::StrCat(what, " timed out after ", absl::FormatDuration(run.operation.timeout), ": ", who)));
}

}  // namespace tandem::collectives::shm
