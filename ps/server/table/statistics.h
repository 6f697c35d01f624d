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

// How long calls took. Thread-safe; adding one costs a few nanoseconds.
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

// What one table has done. Thread-safe: relaxed atomics, so that reading them disturbs nobody; a snapshot may
// be torn between counters, never within one. A call costs some tens of nanoseconds, a row nothing (but see
// HotKeys).
class TableCounters {
 public:
  static constexpr size_t kStalenessBins = 64;
  using Clock = std::chrono::steady_clock;

  // A part of a pull that reads this table. Rows of evaluation leave no trace.
  void AddPulledIds(absl::Span<const uint64_t> ids) {
    pulled_rows_.fetch_add(ids.size(), std::memory_order_relaxed);
    hottest_.Add(ids);
  }
  void AddPulledRows(uint64_t rows) { pulled_rows_.fetch_add(rows, std::memory_order_relaxed); }
  // Rows that a conditional pull did not send, because the caller's copies served.
  void AddUnchangedRows(uint64_t rows) { unchanged_rows_.fetch_add(rows, std::memory_order_relaxed); }
  // Rows that callers' copies served without a word to this server until now.
  void AddLocallyServedRows(uint64_t rows) {
    if (rows > 0) locally_served_rows_.fetch_add(rows, std::memory_order_relaxed);
  }
  // Once for a pull, when its answer is ready; `bytes` of it are this table's.
  void AddPull(Clock::time_point arrived, uint64_t bytes) {
    pulls_.fetch_add(1, std::memory_order_relaxed);
    pull_response_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    pull_latency_.Add(Clock::now() - arrived);
  }
  // Once for a push, when the table has taken it; `bytes` of the request are this table's.
  void AddPushCall(Clock::time_point arrived, uint64_t bytes) {
    pushes_.fetch_add(1, std::memory_order_relaxed);
    push_request_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    push_latency_.Add(Clock::now() - arrived);
  }
  void AddRefusedPush() { refused_pushes_.fetch_add(1, std::memory_order_relaxed); }
  // A push whose turn has come, `staleness` updates after its pull.
  void AddAppliedPush(uint64_t rows, uint64_t missing, uint64_t staleness) {
    pushed_rows_.fetch_add(rows, std::memory_order_relaxed);
    missing_rows_.fetch_add(missing, std::memory_order_relaxed);
    AddStaleness(staleness);
  }
  // The same for one that is left out for its staleness.
  void AddStalePush(uint64_t staleness) {
    stale_pushes_.fetch_add(1, std::memory_order_relaxed);
    AddStaleness(staleness);
  }

  // Fills in everything that is counted here; names the `hottest` most pulled ids.
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

  // What pulls write and what pushes write lie apart, since other threads do.
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

// What the operating system knows of this process: cpu_s, rss_bytes and open_sockets.
void ExportProcess(v1::ServerStatistics* out);

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_TABLE_STATISTICS_H_
