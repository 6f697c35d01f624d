// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_TABLE_STATISTICS_H_
#define TANDEM_PS_SERVER_TABLE_STATISTICS_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "absl/types/span.h"
#include "base/latency_bins.h"
#include "ps/server/table/hot_keys.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// A histogram of call durations. Thread-safe. Add costs a few nanoseconds.
class LatencyCounter {
 public:
  void Add(std::chrono::nanoseconds duration) {
    const uint64_t ns = duration.count() < 0 ? 0 : static_cast<uint64_t>(duration.count());
    counts_[LatencyBin(ns)].fetch_add(1, std::memory_order_relaxed);
    sum_ns_.fetch_add(ns, std::memory_order_relaxed);
  }
  void Export(v1::LatencyHistogram* out) const;

 private:
  std::array<std::atomic<uint64_t>, kLatencyBins> counts_{};
  std::atomic<uint64_t> sum_ns_{0};
};

// The counters of one table. Thread-safe: they are relaxed atomics, so that reading them delays no call. A
// snapshot may be inconsistent between counters, never within one. Counting a call costs some tens of
// nanoseconds; rows cost nothing, except for the sample of HotKeys.
class TableCounters {
 public:
  static constexpr size_t kStalenessBins = 64;
  using Clock = std::chrono::steady_clock;

  // Counts the ids of one slice of a pull. Not called for read-only pulls, which are not counted.
  void AddPulledIds(absl::Span<const uint64_t> ids) {
    pulled_rows_.fetch_add(ids.size(), std::memory_order_relaxed);
    hottest_.Add(ids);
  }
  void AddPulledRows(uint64_t rows) { pulled_rows_.fetch_add(rows, std::memory_order_relaxed); }
  // Counts rows that a conditional pull did not send because the caller's copies were new enough.
  void AddUnchangedRows(uint64_t rows) { unchanged_rows_.fetch_add(rows, std::memory_order_relaxed); }
  // Counts rows that callers' copies served without a request to this server.
  void AddLocallyServedRows(uint64_t rows) {
    if (rows > 0) locally_served_rows_.fetch_add(rows, std::memory_order_relaxed);
  }
  // Counts a pull, once its response is written. `bytes` of the response are this table's.
  void AddPull(Clock::time_point arrived, uint64_t bytes) {
    pulls_.fetch_add(1, std::memory_order_relaxed);
    pull_response_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    pull_latency_.Add(Clock::now() - arrived);
  }
  // Counts a push, once the table has applied or queued it. `bytes` of the request are this table's.
  void AddPushCall(Clock::time_point arrived, uint64_t bytes) {
    pushes_.fetch_add(1, std::memory_order_relaxed);
    push_request_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    push_latency_.Add(Clock::now() - arrived);
  }
  void AddRefusedPush() { refused_pushes_.fetch_add(1, std::memory_order_relaxed); }
  // Counts an applied push. `staleness` is the number of updates between its pull and its update.
  void AddAppliedPush(uint64_t rows, uint64_t missing, uint64_t staleness) {
    pushed_rows_.fetch_add(rows, std::memory_order_relaxed);
    missing_rows_.fetch_add(missing, std::memory_order_relaxed);
    AddStaleness(staleness);
  }
  // Counts a push that is left out of its update because of its staleness.
  void AddStalePush(uint64_t staleness) {
    stale_pushes_.fetch_add(1, std::memory_order_relaxed);
    AddStaleness(staleness);
  }

  // Fills in all counters and the `hottest` most frequently pulled ids.
  void Export(size_t hottest, v1::TableStatistics* out) const;

 private:
  void AddStaleness(uint64_t staleness) {
    settled_pushes_.fetch_add(1, std::memory_order_relaxed);
    staleness_sum_.fetch_add(staleness, std::memory_order_relaxed);
    histogram_[staleness < kStalenessBins ? staleness : kStalenessBins - 1].fetch_add(
        1, std::memory_order_relaxed);
    uint64_t max = staleness_max_.load(std::memory_order_relaxed);
    while (staleness > max &&
           !staleness_max_.compare_exchange_weak(max, staleness, std::memory_order_relaxed)) {
    }
  }

  // The counters of pulls and those of pushes lie on different cache lines, since different threads write
  // them.
  alignas(64) std::atomic<uint64_t> pulled_rows_{0};
  std::atomic<uint64_t> unchanged_rows_{0};
  std::atomic<uint64_t> locally_served_rows_{0};
  std::atomic<uint64_t> pulls_{0};
  std::atomic<uint64_t> pull_response_bytes_{0};
  LatencyCounter pull_latency_;
  HotKeys hottest_;
  alignas(64) std::atomic<uint64_t> pushed_rows_{0};
  std::atomic<uint64_t> missing_rows_{0};
  std::atomic<uint64_t> refused_pushes_{0};
  std::atomic<uint64_t> pushes_{0};
  std::atomic<uint64_t> push_request_bytes_{0};
  std::atomic<uint64_t> stale_pushes_{0};
  std::atomic<uint64_t> settled_pushes_{0};
  std::atomic<uint64_t> staleness_sum_{0};
  std::atomic<uint64_t> staleness_max_{0};
  LatencyCounter push_latency_;
  std::array<std::atomic<uint64_t>, kStalenessBins> histogram_{};
};

// Fills in what the operating system reports for this process: cpu_s, rss_bytes and open_sockets.
void ExportProcess(v1::ServerStatistics* out);

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_TABLE_STATISTICS_H_
