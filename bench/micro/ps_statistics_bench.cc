// SPDX-License-Identifier: Apache-2.0
// Measures what a table's statistics cost per pull and push. A row takes tens of nanoseconds.
//
//   ps_statistics_bench --benchmark_counters_tabular=true

#include <atomic>
#include <cstdint>
#include <random>
#include <vector>

#include "benchmark/benchmark.h"
#include "ps/server/table/hot_keys.h"
#include "ps/server/table/row_staleness_meter.h"
#include "ps/server/table/statistics.h"

namespace tandem::ps {
namespace {

// Returns the ids of a pull. If `skewed`, half of them are among the 1000 hottest, as after deduplication of
// a Zipf batch.
std::vector<std::vector<uint64_t>> Batches(size_t ids, bool skewed) {
  std::mt19937_64 random(1);
  std::vector<std::vector<uint64_t>> batches(64, std::vector<uint64_t>(ids));
  for (std::vector<uint64_t>& batch : batches) {
    for (uint64_t& id : batch) id = skewed && random() % 2 == 0 ? random() % 1000 : random();
  }
  return batches;
}

void BM_HotKeys(benchmark::State& state) {
  const auto batches = Batches(static_cast<size_t>(state.range(0)), state.range(1) != 0);
  HotKeys hottest;
  for (uint64_t seen = 0; seen < 2 * HotKeys::kEager; seen += batches[0].size()) hottest.Add(batches[0]);
  size_t i = 0;
  for (auto _ : state) hottest.Add(batches[i++ % batches.size()]);
  state.counters["ns_per_row"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * static_cast<double>(state.range(0)) * 1e-9,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_HotKeys)->ArgsProduct({{1, 256, 16384}, {0, 1}})->ArgNames({"ids", "skewed"});

// An update of one push, based on rows of eight updates ago. `measured`: every update is measured; otherwise
// a part of them, as in a running table.
void BM_RowStaleness(benchmark::State& state) {
  const auto batches = Batches(static_cast<size_t>(state.range(0)), state.range(1) != 0);
  const bool measured = state.range(2) != 0;
  RowStalenessMeter meter;
  std::atomic<uint64_t> version{0};
  std::vector<RowStalenessMeter::Segments> segments;
  size_t i = 0;
  const auto update = [&] {
    TablePush push;
    push.ids = batches[i++ % batches.size()];
    push.segment_ends = {static_cast<uint32_t>(push.ids.size() / 2), static_cast<uint32_t>(push.ids.size())};
    push.pulled_version = version < 8 ? 0 : version - 8;
    const TablePush* const pointer = &push;
    segments.clear();
    meter.CountUpdate({&pointer, 1}, &version, &segments);
  };
  for (uint64_t u = 0; u < 8 * RowStalenessMeter::kFirstPeriod; ++u) update();
  for (auto _ : state) {
    if (measured && i % RowStalenessMeter::kPeriod == 0) meter.Restart();
    update();
  }
  state.counters["ns_per_row"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * static_cast<double>(state.range(0)) * 1e-9,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_RowStaleness)
    ->ArgsProduct({{256, 4096}, {0, 1}, {0, 1}})
    ->ArgNames({"ids", "skewed", "measured"});

void BM_CountPull(benchmark::State& state) {
  TableCounters counters;
  for (auto _ : state) {
    const TableCounters::Clock::time_point arrived = TableCounters::Clock::now();
    counters.AddPull(arrived, 4096);
  }
}
BENCHMARK(BM_CountPull)->ThreadRange(1, 2);

void BM_CountPush(benchmark::State& state) {
  TableCounters counters;
  for (auto _ : state) {
    const TableCounters::Clock::time_point arrived = TableCounters::Clock::now();
    counters.AddPushCall(arrived, 4096);
    counters.AddAppliedPush(256, 0, 3);
  }
}
BENCHMARK(BM_CountPush);

}  // namespace
}  // namespace tandem::ps

BENCHMARK_MAIN();
