// SPDX-License-Identifier: Apache-2.0
// Compares a table whose rows take four times its byte budget with the same table without a budget. One
// thread pulls and pushes Zipf-distributed ids. The program prints:
//
// - rows per second
// - the share of the used rows that was in memory
// - bytes per row on disk
// - the longest pause
// - the cost of an id that was never seen
//
//   ps_spill_bench [directory [rows [dim]]]     (a directory on a disk; defaults: TMPDIR, 2000000, 16)

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "ps/shard_map.h"
#include "ps/storage/spill/spill_store.h"
#include "ps/storage/table_storage.h"
#include "ps/table.h"

namespace tandem::ps {
namespace {

constexpr size_t kBatch = 4096;
constexpr double kSeconds = 5;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Draws ranks 0, 1, ... with probabilities proportional to 1, 2^-s, 3^-s, ..., and spreads them over all ids.
class Zipf {
 public:
  Zipf(uint64_t ranks, double s) : sums_(ranks) {
    double sum = 0;
    for (uint64_t i = 0; i < ranks; ++i) sums_[i] = sum += std::pow(static_cast<double>(i + 1), -s);
  }
  void Fill(CounterRandom* random, std::vector<uint64_t>* ids) const {
    for (uint64_t& id : *ids) {
      const double at = (static_cast<double>(random->Below(1u << 30)) + 0.5) / (1u << 30) * sums_.back();
      id = Mix64(std::lower_bound(sums_.begin(), sums_.end(), at) - sums_.begin());
    }
  }

 private:
  std::vector<double> sums_;
};

struct Phase {
  double rows_per_s = 0;
  double slowest_ms = 0;  // longest call
};

class Trainer {
 public:
  Trainer(TableStorage* table, uint32_t dim) : table_(table), rows_(kBatch * dim) {}
  void Step(const std::vector<uint64_t>& ids) {
    const double begin = Now();
    TANDEM_CHECK(table_->Gather(ids, /*create=*/true, rows_.data()).ok());
    TANDEM_CHECK(table_->Apply(ids, rows_.data(), {}).ok());
    slowest_ = std::max(slowest_, Now() - begin);
    touched_ += ids.size();
  }
  Phase End(double seconds) {
    const Phase phase{static_cast<double>(touched_) / seconds, slowest_ * 1e3};
    touched_ = 0;
    slowest_ = 0;
    return phase;
  }

 private:
  TableStorage* const table_;
  std::vector<float> rows_;
  uint64_t touched_ = 0;
  double slowest_ = 0;
};

void Run(const char* name, const v1::TableConfig& config, std::unique_ptr<ColdTier> tier, uint64_t num_rows,
         const Zipf& zipf) {
  const auto table = TableStorage::Create(
      config, kDefaultBuckets, [](uint32_t) { return true; }, std::move(tier));
  Trainer trainer(table.get(), config.dim());
  std::vector<uint64_t> ids(kBatch);
  double begin = Now();
  for (uint64_t first = 0; first < num_rows; first += kBatch) {
    for (size_t i = 0; i < kBatch; ++i) ids[i] = Mix64(first + i);
    trainer.Step(ids);
  }
  const Phase filled = trainer.End(Now() - begin);
  // Distinct ids, as a client sends them.
  std::vector<std::vector<uint64_t>> batches(256, std::vector<uint64_t>(2 * kBatch));
  CounterRandom random(/*seed=*/1, 0);
  for (std::vector<uint64_t>& batch : batches) {
    zipf.Fill(&random, &batch);
    std::sort(batch.begin(), batch.end());
    batch.erase(std::unique(batch.begin(), batch.end()), batch.end());
    std::shuffle(batch.begin(), batch.end(), std::minstd_rand(1));
    batch.resize(std::min(batch.size(), kBatch));
  }
  size_t next = 0;
  const auto train = [&](double seconds) {
    begin = Now();
    double end = begin;
    uint64_t touched = 0;
    for (; end - begin < seconds; end = Now(), ++next) {
      trainer.Step(batches[next % batches.size()]);
      touched += batches[next % batches.size()].size();
    }
    const Phase phase = trainer.End(end - begin);
    return std::make_pair(phase, touched);
  };
  train(kSeconds);
  const StorageStatistics before = table->Statistics();
  const auto [trained, touched] = train(kSeconds);
  const StorageStatistics after = table->Statistics();
  // Ids that were never pulled for training, so they have no row.
  std::vector<float> out(kBatch * config.dim());
  double unseen = 1e9;
  for (int round = 0; round < 20; ++round) {
    for (size_t i = 0; i < kBatch; ++i) ids[i] = Mix64(num_rows * 10 + round * kBatch + i);
    begin = Now();
    TANDEM_CHECK(table->Gather(ids, /*create=*/false, out.data()).ok());
    unseen = std::min(unseen, Now() - begin);
  }
  std::printf(
      "%-10s fill %7.0f rows/s, slowest call %6.1f ms | train %8.0f rows/s, in memory %5.1f %%, slowest call "
      "%6.1f ms, longest lock %6.2f ms | %.0f MB of memory, %.0f of %.0f rows on disk, %.1f bytes of disk "
      "each | "
      "never seen %4.0f ns an id\n",
      name, filled.rows_per_s, filled.slowest_ms, trained.rows_per_s,
      100 * (1 - static_cast<double>(after.spill_reads - before.spill_reads) / static_cast<double>(touched)),
      trained.slowest_ms, after.longest_pause_us * 1e-3, static_cast<double>(after.bytes) * 1e-6,
      static_cast<double>(after.spilled_rows), static_cast<double>(table->rows()),
      after.spilled_rows == 0
          ? 0.0
          : static_cast<double>(after.spilled_bytes) / static_cast<double>(after.spilled_rows),
      unseen / kBatch * 1e9);
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  const std::string directory =
      argc > 1 ? argv[1] : std::filesystem::temp_directory_path().string() + "/ps_spill_bench";
  const uint64_t rows = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 2000000;
  const auto dim = static_cast<uint32_t>(argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 16);
  const Zipf zipf(rows, 1.05);
  v1::TableConfig config = EmbeddingTable("t", dim, Adagrad(0.01f), Uniform(-1, 1));
  Run("unbounded", config, nullptr, rows, zipf);
  *config.mutable_eviction() = EvictLru();
  // A quarter of the bytes of all rows, including accumulators and index.
  config.set_byte_budget(rows / 4 * (dim * 8 + 24) * 6 / 5);
  Run("forgetting", config, nullptr, rows, zipf);
  config.set_spill(true);
  SpillStore store({.directory = directory + "/store"});
  absl::StatusOr<std::unique_ptr<ColdTier>> tier = store.NewTier("t");
  if (!tier.ok()) {
    std::fprintf(stderr, "%s\n", tier.status().ToString().c_str());
    return 1;
  }
  Run("spilling", config, *std::move(tier), rows, zipf);
  return 0;
}

}  // namespace
}  // namespace tandem::ps

int main(int argc, char** argv) { return tandem::ps::Main(argc, argv); }
