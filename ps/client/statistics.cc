// SPDX-License-Identifier: Apache-2.0
#include "ps/client/statistics.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/latency_bins.h"
#include "ps/row_staleness.h"

namespace tandem::ps {
namespace {

template <typename Repeated>
double Sum(const Repeated& values) {
  double sum = 0;
  for (const uint64_t value : values) sum += static_cast<double>(value);
  return sum;
}

void AddCounts(const google::protobuf::RepeatedField<uint64_t>& from,
               google::protobuf::RepeatedField<uint64_t>* to) {
  while (to->size() < from.size()) to->Add(0);
  for (int i = 0; i < from.size(); ++i) to->Set(i, to->Get(i) + from.Get(i));
}

void AddLatency(const v1::LatencyHistogram& from, v1::LatencyHistogram* to) {
  AddCounts(from.counts(), to->mutable_counts());
  to->set_sum_us(to->sum_us() + from.sum_us());
}

void AddStatistics(const v1::TableStatistics& from, v1::TableStatistics* to) {
  const double ours = Sum(to->staleness_histogram()), theirs = Sum(from.staleness_histogram());
  if (ours + theirs > 0) {
    to->set_staleness_mean((to->staleness_mean() * ours + from.staleness_mean() * theirs) / (ours + theirs));
  }
  AddCounts(from.staleness_histogram(), to->mutable_staleness_histogram());
  AddLatency(from.pull_latency(), to->mutable_pull_latency());
  AddLatency(from.push_latency(), to->mutable_push_latency());
  to->set_staleness_max(std::max(to->staleness_max(), from.staleness_max()));
  to->set_version(std::max(to->version(), from.version()));
  to->set_longest_pause_us(std::max(to->longest_pause_us(), from.longest_pause_us()));
  to->set_rows(to->rows() + from.rows());
  to->set_bytes(to->bytes() + from.bytes());
  to->set_bytes_per_row(to->rows() == 0 ? 0.0
                                        : static_cast<double>(to->bytes()) / static_cast<double>(to->rows()));
  to->set_pulled_rows(to->pulled_rows() + from.pulled_rows());
  to->set_pushed_rows(to->pushed_rows() + from.pushed_rows());
  to->set_missing_rows(to->missing_rows() + from.missing_rows());
  to->set_refused_pushes(to->refused_pushes() + from.refused_pushes());
  to->set_admitted_rows(to->admitted_rows() + from.admitted_rows());
  to->set_refused_rows(to->refused_rows() + from.refused_rows());
  to->set_evicted_rows(to->evicted_rows() + from.evicted_rows());
  to->set_spilled_rows(to->spilled_rows() + from.spilled_rows());
  to->set_spilled_bytes(to->spilled_bytes() + from.spilled_bytes());
  to->set_spill_reads(to->spill_reads() + from.spill_reads());
  to->set_spill_writes(to->spill_writes() + from.spill_writes());
  to->set_pulls(to->pulls() + from.pulls());
  to->set_pushes(to->pushes() + from.pushes());
  to->set_unchanged_rows(to->unchanged_rows() + from.unchanged_rows());
  to->set_unasked_rows(to->unasked_rows() + from.unasked_rows());
  to->set_pull_answer_bytes(to->pull_answer_bytes() + from.pull_answer_bytes());
  to->set_push_request_bytes(to->push_request_bytes() + from.push_request_bytes());
  to->set_stale_pushes(to->stale_pushes() + from.stale_pushes());
  to->set_kept_pushes(to->kept_pushes() + from.kept_pushes());
  to->set_kept_bytes(to->kept_bytes() + from.kept_bytes());
  RowStalenessCounts row_staleness = RowStalenessCounts::FromProto(to->row_staleness());
  row_staleness.Add(RowStalenessCounts::FromProto(from.row_staleness()));
  row_staleness.ToProto(to->mutable_row_staleness());
  to->mutable_hottest()->MergeFrom(from.hottest());
}

void KeepHottest(size_t count, v1::TableStatistics* statistics) {
  auto* hottest = statistics->mutable_hottest();
  std::sort(hottest->begin(), hottest->end(), [](const v1::HotId& a, const v1::HotId& b) {
    return a.pulls() != b.pulls() ? a.pulls() > b.pulls() : a.id() < b.id();
  });
  while (static_cast<size_t>(hottest->size()) > count) hottest->RemoveLast();
}

}  // namespace

std::vector<v1::TableInfo> SumTables(absl::Span<const std::vector<v1::TableInfo>> servers, size_t hottest) {
  std::vector<v1::TableInfo> sums;
  for (const std::vector<v1::TableInfo>& server : servers) {
    for (const v1::TableInfo& info : server) {
      const auto sum = std::find_if(sums.begin(), sums.end(), [&](const v1::TableInfo& seen) {
        return seen.config().name() == info.config().name();
      });
      if (sum == sums.end()) {
        sums.push_back(info);
      } else {
        AddStatistics(info.statistics(), sum->mutable_statistics());
      }
    }
  }
  for (v1::TableInfo& sum : sums) KeepHottest(hottest, sum.mutable_statistics());
  return sums;
}

uint64_t CountOf(const v1::LatencyHistogram& histogram) {
  uint64_t count = 0;
  for (const uint64_t bin : histogram.counts()) count += bin;
  return count;
}

double QuantileUs(const v1::LatencyHistogram& histogram, double quantile) {
  const double wanted = quantile * static_cast<double>(CountOf(histogram));
  double below = 0;
  for (int i = 0; i < histogram.counts_size(); ++i) {
    const double here = static_cast<double>(histogram.counts(i));
    below += here;
    if (here > 0 && below >= wanted) return (LatencyBinStartUs(i) + LatencyBinStartUs(i + 1)) / 2;
  }
  return 0;
}

v1::LatencyHistogram Since(const v1::LatencyHistogram& now, const v1::LatencyHistogram& before) {
  v1::LatencyHistogram since = now;
  for (int i = 0; i < before.counts_size(); ++i) {
    if (i >= now.counts_size() || now.counts(i) < before.counts(i)) return now;  // a server was restarted
    since.set_counts(i, now.counts(i) - before.counts(i));
  }
  since.set_sum_us(std::max(0.0, now.sum_us() - before.sum_us()));
  return since;
}

}  // namespace tandem::ps
