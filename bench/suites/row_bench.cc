// SPDX-License-Identifier: Apache-2.0
#include "bench/suites/row_bench.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "base/cgroup.h"
#include "base/random.h"
#include "base/status.h"
#include "ps/optimizers/optimizer.h"
#include "ps/shard_map.h"
#include "ps/storage/table_storage.h"
#include "ps/table.h"

namespace tandem::bench {
namespace {

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

absl::StatusOr<v1::OptimizerConfig> OptimizerOf(const std::string& kind) {
  if (kind == "sgd") return ps::Sgd(0.01f);
  if (kind == "adagrad") return ps::Adagrad(0.01f);
  if (kind == "rowwise_adagrad") return ps::RowwiseAdagrad(0.01f);
  if (kind == "adam") return ps::Adam(0.001f);
  return absl::InvalidArgumentError(
      absl::StrCat("--optimizer is '", kind, "'; it must be sgd, adagrad, rowwise_adagrad or adam"));
}

absl::StatusOr<v1::TableConfig::RowType> RowTypeOf(const std::string& name) {
  if (name == "f32") return v1::TableConfig::F32;
  if (name == "f16") return v1::TableConfig::F16;
  if (name == "bf16") return v1::TableConfig::BF16;
  return absl::InvalidArgumentError(absl::StrCat("--row-type is '", name, "'; it must be f32, f16 or bf16"));
}

// Returns a line of /proc/meminfo or /proc/self/status, in bytes.
std::optional<uint64_t> KilobytesIn(const launcher::Machine& machine, const std::string& path,
                                    absl::string_view name) {
  const absl::StatusOr<std::string> text = machine.ReadFile(path);
  if (!text.ok()) return std::nullopt;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    uint64_t kib = 0;
    if (words.size() >= 2 && words[0] == absl::StrCat(name, ":") && absl::SimpleAtoi(words[1], &kib)) {
      return kib * 1024;
    }
  }
  return std::nullopt;
}

std::string GiB(uint64_t bytes) {
  return absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / static_cast<double>(uint64_t{1} << 30));
}

// Returns the id of row i; ids are spread as if they came from a hash.
uint64_t IdOf(uint64_t i) { return Mix64(i); }

// Calls `call(ids, values)` with batches of random ids of the table for `seconds`, in each of the threads.
// Returns the ids per second of all threads together.
template <class Call>
double RatePerSecond(const RowBenchOptions& options, uint64_t stream, const Call& call) {
  std::vector<double> rates(options.threads);
  std::vector<std::thread> threads;
  for (int t = 0; t < options.threads; ++t) {
    threads.emplace_back([&, t] {
      constexpr size_t kBatches = 64;  // generated before the clock starts, used in turn
      CounterRandom random(/*seed=*/stream, t);
      std::vector<std::vector<uint64_t>> batches(kBatches, std::vector<uint64_t>(options.batch));
      for (std::vector<uint64_t>& batch : batches) {
        for (uint64_t& id : batch) id = IdOf(random.Below(options.rows));
      }
      std::vector<float> values(options.batch * options.dim, 0.001f);
      const Clock::time_point start = Clock::now();
      uint64_t calls = 0;
      do call(batches[calls % kBatches], values.data());
      while (++calls < 4 || Since(start) < options.seconds);
      rates[t] = static_cast<double>(calls * options.batch) / Since(start);
    });
  }
  for (std::thread& thread : threads) thread.join();
  double sum = 0;
  for (const double rate : rates) sum += rate;
  return sum;
}

}  // namespace

absl::StatusOr<v1::TableConfig> TableOf(const RowBenchOptions& options) {
  const auto at_least_1 = [](const char* flag, double value) {
    return value >= 1
               ? absl::OkStatus()
               : absl::InvalidArgumentError(absl::StrCat(flag, " is ", value, "; it must be at least 1"));
  };
  TANDEM_RETURN_IF_ERROR(at_least_1("--rows", static_cast<double>(options.rows)));
  TANDEM_RETURN_IF_ERROR(at_least_1("--batch", static_cast<double>(options.batch)));
  TANDEM_RETURN_IF_ERROR(at_least_1("--threads", options.threads));
  constexpr uint64_t kMostIds = 1 << 24;
  if (options.batch > kMostIds) {
    return absl::InvalidArgumentError(
        absl::StrCat("--batch is ", options.batch, "; it must be at most ", kMostIds));
  }
  if (!(options.seconds > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("--seconds is ", options.seconds, "; it must be above 0"));
  }
  TANDEM_ASSIGN_OR_RETURN(const v1::OptimizerConfig optimizer, OptimizerOf(options.optimizer));
  TANDEM_ASSIGN_OR_RETURN(const v1::TableConfig::RowType row_type, RowTypeOf(options.row_type));
  v1::TableConfig config = ps::EmbeddingTable("rows", options.dim, optimizer, ps::Uniform(-0.01f, 0.01f));
  config.set_row_type(row_type);
  TANDEM_RETURN_IF_ERROR(ps::ValidateTableConfig(config));
  return config;
}

uint64_t PayloadBytes(const v1::TableConfig& config) {
  const absl::StatusOr<std::unique_ptr<ps::Optimizer>> optimizer = ps::MakeOptimizer(config.optimizer());
  TANDEM_CHECK(optimizer.ok());
  return config.dim() * SizeOf(ps::RowTypeOf(config)) +
         (*optimizer)->state_floats(config.dim()) * sizeof(float);
}

absl::Status CheckMemoryFor(uint64_t bytes, const launcher::Machine& machine) {
  std::optional<uint64_t> available = KilobytesIn(machine, "/proc/meminfo", "MemAvailable");
  const char* what = "the machine has";
  if (const std::optional<uint64_t> limit =
          CgroupMemoryLimit([&machine](const std::string& path) { return machine.ReadFile(path); });
      limit.has_value() && *limit < available.value_or(*limit + 1)) {
    available = limit;
    what = "the control group allows";
  }
  if (!available.has_value() || bytes <= *available) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the rows may take ", GiB(bytes), " of memory and ", what,
                                                   " ", GiB(*available),
                                                   " left; ask for fewer --rows or free some memory"));
}

absl::StatusOr<RowBenchResult> RunRowBench(const RowBenchOptions& options, const launcher::Machine& machine) {
  TANDEM_ASSIGN_OR_RETURN(const v1::TableConfig config, TableOf(options));
  // The memory that the table takes at most, and the memory of the calls.
  const double most =
      static_cast<double>(options.rows) * (static_cast<double>(PayloadBytes(config)) + 24) * 1.2;
  const double calls = static_cast<double>(options.batch) * (options.dim * sizeof(float) + 600.0);
  if (most > 1e18) return absl::ResourceExhaustedError("no machine has memory for so many --rows");
  TANDEM_RETURN_IF_ERROR(CheckMemoryFor(
      static_cast<uint64_t>(most + calls * (1 + options.threads)) + (uint64_t{64} << 20), machine));
  const std::unique_ptr<ps::TableStorage> table =
      ps::TableStorage::Create(config, ps::kDefaultBuckets, [](uint32_t) { return true; });
  RowBenchResult result;
  {
    std::vector<uint64_t> ids;
    std::vector<float> values(options.batch * options.dim);
    const Clock::time_point start = Clock::now();
    for (uint64_t first = 0; first < options.rows; first += ids.size()) {
      ids.resize(std::min(options.batch, options.rows - first));
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = IdOf(first + i);
      TANDEM_RETURN_IF_ERROR(table->Gather(ids, /*create=*/true, values.data()));
    }
    result.load_rows_per_s = static_cast<double>(options.rows) / Since(start);
  }
  const ps::StorageStatistics loaded = table->Statistics();
  TANDEM_CHECK(loaded.rows == options.rows);
  result.load_longest_pause_us = loaded.longest_pause_us;
  result.table_bytes = loaded.bytes;
  result.resident_bytes = KilobytesIn(machine, "/proc/self/status", "VmRSS").value_or(0);
  absl::Mutex mutex;
  absl::Status status;
  const auto note = [&](const absl::Status& one) {
    if (one.ok()) return;
    absl::MutexLock lock(&mutex);
    status.Update(one);
  };
  result.lookup_rows_per_s = RatePerSecond(options, 1, [&](const std::vector<uint64_t>& ids, float* values) {
    note(table->Gather(ids, /*create=*/false, values));
  });
  result.update_rows_per_s = RatePerSecond(options, 2, [&](const std::vector<uint64_t>& ids, float* values) {
    note(table->Apply(ids, values, {}).status());
  });
  TANDEM_RETURN_IF_ERROR(status);
  result.longest_pause_us = table->Statistics().longest_pause_us;
  return result;
}

}  // namespace tandem::bench
