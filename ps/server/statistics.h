#ifndef TANDEM_PS_SERVER_STATISTICS_H_
#define TANDEM_PS_SERVER_STATISTICS_H_

#include <array>
#include <atomic>
#include <cstdint>

#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// What one table has done. Thread-safe: relaxed atomics, so that reading them disturbs no push; a snapshot
// may be torn between counters, never within one.
class TableCounters {
 public:
  static constexpr size_t kStalenessBins = 64;

  void AddPulledRows(uint64_t rows) { pulled_rows_.fetch_add(rows, std::memory_order_relaxed); }
  void AddRefusedPush() { refused_pushes_.fetch_add(1, std::memory_order_relaxed); }
  void AddPush(uint64_t rows, uint64_t missing, uint64_t staleness) {
    pushed_rows_.fetch_add(rows, std::memory_order_relaxed);
    missing_rows_.fetch_add(missing, std::memory_order_relaxed);
    pushes_.fetch_add(1, std::memory_order_relaxed);
    staleness_sum_.fetch_add(staleness, std::memory_order_relaxed);
    histogram_[staleness < kStalenessBins ? staleness : kStalenessBins - 1].fetch_add(
        1, std::memory_order_relaxed);
    uint64_t max = staleness_max_.load(std::memory_order_relaxed);
    while (staleness > max &&
           !staleness_max_.compare_exchange_weak(max, staleness, std::memory_order_relaxed)) {
    }
  }
  // Fills in everything but rows, bytes and version.
  void Export(v1::TableStatistics* out) const {
    out->set_pulled_rows(pulled_rows_.load(std::memory_order_relaxed));
    out->set_pushed_rows(pushed_rows_.load(std::memory_order_relaxed));
    out->set_missing_rows(missing_rows_.load(std::memory_order_relaxed));
    out->set_refused_pushes(refused_pushes_.load(std::memory_order_relaxed));
    for (const std::atomic<uint64_t>& bin : histogram_) {
      out->add_staleness_histogram(bin.load(std::memory_order_relaxed));
    }
    out->set_staleness_max(staleness_max_.load(std::memory_order_relaxed));
    const uint64_t pushes = pushes_.load(std::memory_order_relaxed);
    const double sum = static_cast<double>(staleness_sum_.load(std::memory_order_relaxed));
    out->set_staleness_mean(pushes == 0 ? 0.0 : sum / static_cast<double>(pushes));
  }

 private:
  std::atomic<uint64_t> pulled_rows_{0};
  std::atomic<uint64_t> pushed_rows_{0};
  std::atomic<uint64_t> missing_rows_{0};
  std::atomic<uint64_t> refused_pushes_{0};
  std::atomic<uint64_t> pushes_{0};
  std::atomic<uint64_t> staleness_sum_{0};
  std::atomic<uint64_t> staleness_max_{0};
  std::array<std::atomic<uint64_t>, kStalenessBins> histogram_{};
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_STATISTICS_H_
