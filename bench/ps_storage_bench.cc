// How near the parameter server's tables come to the speed of the memory: batched reads and updates of random
// rows of one table, beside a plain prefetched gather of rows of the same size (no index, no locks) as the
// control.
//
//   bench/ps_storage_bench --benchmark_filter=dim:64
//
// items_per_second counts rows.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/random.h"
#include "base/status.h"
#include "benchmark/benchmark.h"
#include "ps/partition/shard_map.h"
#include "ps/storage/arena.h"
#include "ps/storage/table_storage.h"
#include "ps/table.h"

namespace tandem::ps {
namespace {

constexpr uint64_t kRows = 1 << 20;
constexpr size_t kBatches = 64;  // batches of ids made before the clock starts, used in turn

std::vector<std::vector<uint64_t>> RandomBatches(size_t ids) {
  CounterRandom random(/*seed=*/1, ids);
  std::vector<std::vector<uint64_t>> batches(kBatches);
  for (auto& batch : batches) {
    batch.resize(ids);
    for (uint64_t& id : batch) id = random.Below(kRows);
  }
  return batches;
}

std::unique_ptr<TableStorage> FilledTable(uint32_t dim, const v1::OptimizerConfig& optimizer) {
  auto table = TableStorage::Create(EmbeddingTable("t", dim, optimizer, Uniform(-1, 1)), kDefaultBuckets,
                                    [](uint32_t bucket) { return true; });
  std::vector<uint64_t> ids(4096);
  std::vector<float> rows(ids.size() * dim);
  for (uint64_t first = 0; first < kRows; first += ids.size()) {
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = first + i;
    TANDEM_CHECK(table->Gather(ids, /*create=*/true, rows.data()).ok());
  }
  return table;
}

void Report(benchmark::State& state, const TableStorage& table, uint32_t dim, size_t ids) {
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * ids));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * ids * dim * sizeof(float)));
  const StorageStatistics statistics = table.Statistics();
  state.counters["bytes_per_row"] =
      static_cast<double>(statistics.bytes) / static_cast<double>(statistics.rows);
  state.counters["longest_pause_us"] = statistics.longest_pause_us;
}

// The control: rows of an array, each asked for some rows ahead.
class PlainRows {
 public:
  explicit PlainRows(size_t dim) : dim_(dim), memory_(arena_.AllocateZeroed(kRows * dim * sizeof(float))) {
    std::fill_n(rows(), kRows * dim, 1.0f);
  }
  // kLocality: of __builtin_prefetch. 3 asks for lines in the first-level cache, 2 in the second, where more
  // may be on their way at once.
  template <int kLocality>
  void Gather(const std::vector<uint64_t>& ids, float* out) const {
    constexpr size_t kAhead = 16;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i + kAhead < ids.size()) {
        const char* ahead = reinterpret_cast<const char*>(rows() + ids[i + kAhead] * dim_);
        for (size_t at = 0; at < dim_ * sizeof(float); at += 64) __builtin_prefetch(ahead + at, 0, kLocality);
      }
      std::memcpy(out + i * dim_, rows() + ids[i] * dim_, dim_ * sizeof(float));
    }
  }

 private:
  float* rows() const { return reinterpret_cast<float*>(memory_.data()); }
  const size_t dim_;
  Arena arena_;
  const Arena::Block memory_;
};

void PlainGather(benchmark::State& state) {
  const size_t dim = state.range(0), ids = state.range(1);
  const PlainRows rows(dim);
  const auto batches = RandomBatches(ids);
  std::vector<float> out(ids * dim);
  size_t next = 0;
  for (auto _ : state) {
    rows.Gather<3>(batches[next++ % kBatches], out.data());
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * ids));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * ids * dim * sizeof(float)));
}

// Both in turn, batch by batch, so that they share whatever else the machine does. table_to_plain is the
// ratio of the medians of their rates.
void TableBesidePlainGather(benchmark::State& state) {
  const auto dim = static_cast<uint32_t>(state.range(0));
  const size_t ids = state.range(1);
  const PlainRows rows(dim);
  const auto table = FilledTable(dim, Sgd(0.1f));
  const auto batches = RandomBatches(ids);
  std::vector<float> out(ids * dim);
  std::vector<double> plain, plain_l2, tabled;
  const auto seconds = [](const auto& call) {
    const auto start = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  size_t next = 0;
  for (auto _ : state) {
    const std::vector<uint64_t>& batch = batches[next++ % kBatches];
    const std::vector<uint64_t>& other = batches[(next + kBatches / 2) % kBatches];
    const std::vector<uint64_t>& third = batches[(next + kBatches / 4) % kBatches];
    plain.push_back(seconds([&] { rows.Gather<3>(batch, out.data()); }));
    plain_l2.push_back(seconds([&] { rows.Gather<2>(third, out.data()); }));
    tabled.push_back(seconds([&] { TANDEM_CHECK(table->Gather(other, /*create=*/true, out.data()).ok()); }));
  }
  const auto median = [](std::vector<double>& times) {
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
  };
  state.counters["plain_rows_per_s"] = static_cast<double>(ids) / median(plain);
  state.counters["table_rows_per_s"] = static_cast<double>(ids) / median(tabled);
  state.counters["plain_l2_rows_per_s"] = static_cast<double>(ids) / median(plain_l2);
  state.counters["table_to_plain"] = median(plain) / median(tabled);
  state.counters["table_to_plain_l2"] = median(plain_l2) / median(tabled);
}

void TableGather(benchmark::State& state) {
  const auto dim = static_cast<uint32_t>(state.range(0));
  const size_t ids = state.range(1);
  const auto table = FilledTable(dim, Sgd(0.1f));
  const auto batches = RandomBatches(ids);
  std::vector<float> out(ids * dim);
  size_t next = 0;
  for (auto _ : state)
    TANDEM_CHECK(table->Gather(batches[next++ % kBatches], /*create=*/true, out.data()).ok());
  Report(state, *table, dim, ids);
}

void TableApply(benchmark::State& state, const v1::OptimizerConfig& optimizer) {
  const auto dim = static_cast<uint32_t>(state.range(0));
  const size_t ids = state.range(1);
  const auto table = FilledTable(dim, optimizer);
  auto batches = RandomBatches(ids);
  for (auto& batch : batches) {  // clients merge repeated ids before they push
    std::sort(batch.begin(), batch.end());
    batch.erase(std::unique(batch.begin(), batch.end()), batch.end());
    CounterRandom random(/*seed=*/2, batch.size());
    std::shuffle(batch.begin(), batch.end(), random);
  }
  const std::vector<float> gradients(ids * dim, 0.01f);
  size_t next = 0;
  int64_t rows = 0;
  for (auto _ : state) {
    const std::vector<uint64_t>& batch = batches[next++ % kBatches];
    rows += static_cast<int64_t>(batch.size());
    TANDEM_CHECK(table->Apply(batch, gradients.data(), {}).ok());
  }
  Report(state, *table, dim, ids);
  state.SetItemsProcessed(rows);
}

void TableCreate(benchmark::State& state) {
  const auto dim = static_cast<uint32_t>(state.range(0));
  const size_t ids = state.range(1);
  std::unique_ptr<TableStorage> table;
  std::vector<uint64_t> batch(ids);
  std::vector<float> out(ids * dim);
  uint64_t next = kRows;
  for (auto _ : state) {
    if (next >= kRows) {
      state.PauseTiming();
      table = TableStorage::Create(EmbeddingTable("t", dim, Adagrad(0.1f), Uniform(-1, 1)), kDefaultBuckets,
                                   [](uint32_t bucket) { return true; });
      next = 0;
      state.ResumeTiming();
    }
    for (uint64_t& id : batch) id = next++;
    TANDEM_CHECK(table->Gather(batch, /*create=*/true, out.data()).ok());
  }
  Report(state, *table, dim, ids);
}

void Shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"dim", "ids"});
  for (const int dim : {16, 64}) {
    for (const int ids : {256, 4096, 16384}) benchmark->Args({dim, ids});
  }
}

BENCHMARK(TableBesidePlainGather)->Apply(Shapes);
BENCHMARK(PlainGather)->Apply(Shapes);
BENCHMARK(TableGather)->Apply(Shapes);
BENCHMARK_CAPTURE(TableApply, sgd, Sgd(0.1f))->Apply(Shapes);
BENCHMARK_CAPTURE(TableApply, adagrad, Adagrad(0.1f))->Apply(Shapes);
BENCHMARK_CAPTURE(TableApply, rowwise_adagrad, RowwiseAdagrad(0.1f))->Apply(Shapes);
BENCHMARK_CAPTURE(TableApply, adam, Adam(0.1f))->Apply(Shapes);
BENCHMARK(TableCreate)->ArgNames({"dim", "ids"})->Args({16, 4096})->Args({64, 4096});

}  // namespace
}  // namespace tandem::ps

int main(int argc, char** argv) {
  // Debian's absl looks for lock cycles at every lock, under one lock for the whole process.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
