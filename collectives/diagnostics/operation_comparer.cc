// SPDX-License-Identifier: Apache-2.0
#include "collectives/diagnostics/operation_comparer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"

namespace tandem::collectives {
namespace {

// Returns true for kinds whose uneven counts differ by pair, so that no fingerprint contains them.
bool HasPairs(const Operation& o) {
  return !o.even && (o.kind == OpKind::kAllToAll || o.kind == OpKind::kGather || o.kind == OpKind::kScatter);
}

}  // namespace

OperationComparer::OperationComparer(std::string group, int rank, int world_size, Backend* control)
    : group_(std::move(group)), rank_(rank), world_size_(world_size), control_(control) {}

absl::Status OperationComparer::Compare(const Operation& operation) {
  const absl::Time deadline = MonotonicNow() + operation.timeout;
  TANDEM_RETURN_IF_ERROR(CompareFingerprints(operation));
  if (!HasPairs(operation)) return absl::OkStatus();
  return ComparePairs(operation, std::max(deadline - MonotonicNow(), absl::Milliseconds(1)));
}

absl::Status OperationComparer::CompareFingerprints(const Operation& operation) {
  const Fingerprint mine = FingerprintOf(operation);
  std::vector<char> bytes;
  TANDEM_RETURN_IF_ERROR(
      Exchange(operation, operation.timeout, {reinterpret_cast<const char*>(&mine), sizeof(mine)}, &bytes));
  std::vector<Fingerprint> all(world_size_);
  std::memcpy(all.data(), bytes.data(), bytes.size());
  // The reference is what most ranks call, so that the deviating rank is named; of equally many, what the
  // lowest rank calls.
  int reference = 0, most = 0;
  for (int rank = 0; rank < world_size_; ++rank) {
    const int agreeing = static_cast<int>(
        std::count_if(all.begin(), all.end(), [&](const Fingerprint& f) { return Agree(all[rank], f); }));
    if (agreeing == world_size_) return absl::OkStatus();
    if (agreeing > most) {
      most = agreeing;
      reference = rank;
    }
  }
  for (int rank = 0; rank < world_size_; ++rank) {
    if (!Agree(all[reference], all[rank])) {
      return absl::InvalidArgumentError(Disagreement(group_, reference, all[reference], rank, all[rank]));
    }
  }
  return absl::OkStatus();
}

absl::Status OperationComparer::ComparePairs(const Operation& operation, absl::Duration timeout) {
  // The counts that this rank sends to each rank, then those that it expects from each.
  const size_t p = world_size_;
  std::vector<uint64_t> mine(2 * p);
  for (size_t other = 0; other < p; ++other) {
    mine[other] = CountTo(operation, rank_, static_cast<int>(other));
    mine[p + other] = CountFrom(operation, rank_, static_cast<int>(other));
  }
  std::vector<char> bytes;
  TANDEM_RETURN_IF_ERROR(
      Exchange(operation, timeout,
               {reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(uint64_t)}, &bytes));
  std::vector<uint64_t> all(2 * p * p);
  std::memcpy(all.data(), bytes.data(), bytes.size());
  for (size_t from = 0; from < p; ++from) {
    for (size_t to = 0; to < p; ++to) {
      const uint64_t sent = all[2 * p * from + to], expected = all[2 * p * to + p + from];
      if (sent == expected) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "ranks of group '", group_, "' disagree about ", Describe(operation), ": rank ", from, " sends ",
          sent, " elements to rank ", to, ", which expects ", expected, "; both must give the same count"));
    }
  }
  return absl::OkStatus();
}

absl::Status OperationComparer::Exchange(const Operation& operation, absl::Duration timeout,
                                         absl::Span<const char> mine, std::vector<char>* all) {
  all->resize(mine.size() * world_size_);
  std::vector<Part> outs(world_size_);
  for (int rank = 0; rank < world_size_; ++rank) outs[rank] = {all->data() + rank * mine.size(), mine.size()};
  Operation exchange;
  exchange.kind = OpKind::kAllGather;
  exchange.dtype = DType::kU8;
  exchange.sequence = exchanges_++;
  exchange.in = {mine.data(), mine.size()};
  exchange.outs = outs;
  exchange.timeout = timeout;
  const absl::Status status = control_->Run(exchange);
  if (status.ok()) return status;
  // Users know the operation, not the exchange before it.
  const std::string here = absl::StrCat(" on group '", group_, "': ");
  absl::string_view cause = status.message();
  if (absl::ConsumePrefix(&cause, absl::StrCat(Describe(exchange), here))) {
    return absl::Status(status.code(), absl::StrCat(Describe(operation), here, cause));
  }
  return Annotate(status, absl::StrCat("comparing what the ranks of group '", group_, "' call, before ",
                                       Describe(operation)));
}

}  // namespace tandem::collectives
