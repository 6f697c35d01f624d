// SPDX-License-Identifier: Apache-2.0
#include "ps/server/table/table_registry.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "google/protobuf/util/message_differencer.h"
#include "ps/optimizers/optimizer.h"
#include "ps/table.h"

namespace tandem::ps {
namespace {
constexpr uint32_t kMaxWorkers = 65536;  // a table keeps a clock for each
constexpr size_t kMaxTables = 1024;
constexpr uint64_t kMaxFirstStep = uint64_t{1} << 62;
constexpr int64_t kMeasureEveryNanoseconds = 100'000'000;

// Returns the memory that one of `servers` needs for the table before it has embedding rows, and for those
// that its budget allows.
absl::StatusOr<uint64_t> PlannedBytes(const v1::TableConfig& config, uint64_t servers) {
  uint64_t bytes = config.byte_budget();
  if (config.kind() == v1::TableConfig::DENSE) {
    TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Optimizer> optimizer, MakeOptimizer(config.optimizer()));
    const uint64_t row_floats = config.dim() + optimizer->state_floats(config.dim());
    bytes = (config.elements() + config.dim() - 1) / config.dim() * row_floats * sizeof(float);
  }
  return (bytes + config.admission().counters()) / servers;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TableStorage>> TableRegistry::NewStorage(const v1::TableConfig& config) const {
  std::unique_ptr<ColdTier> tier;
  if (config.spill()) {
    if (options_.cold_store == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("table '", config.name(), "': spill is set, but server ", options_.server,
                       " was given no directory for rows on disk; start it with --spill-dir DIR"));
    }
    absl::StatusOr<std::unique_ptr<ColdTier>> made = options_.cold_store->NewTier(config.name());
    if (!made.ok()) {
      return Annotate(made.status(), absl::StrCat("table '", config.name(), "': server ", options_.server));
    }
    tier = *std::move(made);
  }
  return TableStorage::Create(
      config, shard_map().num_buckets(),
      [this](uint32_t bucket) { return shard_map().OwnerOfBucket(bucket) == options_.server; },
      std::move(tier), options_.durable ? RowsComeFrom::kPushes : RowsComeFrom::kAdmission);
}

std::shared_ptr<ServerTable> TableRegistry::NewTable(v1::TableConfig config,
                                                     std::shared_ptr<TableStorage> storage) const {
  return std::make_shared<ServerTable>(std::move(config), std::move(storage), options_.buffers,
                                       options_.helpers, options_.server == 0, measured_tables_);
}

absl::Status TableRegistry::CreateWithin(const v1::TableConfig& config, uint64_t first_step,
                                         uint64_t max_memory_bytes) {
  TANDEM_RETURN_IF_ERROR(ValidateTableConfig(config));
  if (first_step > kMaxFirstStep) {
    return absl::InvalidArgumentError(
        absl::StrCat("table '", config.name(), "': first_step is ", first_step, ", at most 2^62 is allowed"));
  }
  {
    absl::MutexLock lock(&mutex_);
    auto found = tables_.find(config.name());
    if (found != tables_.end()) {
      std::string differences;
      google::protobuf::util::MessageDifferencer differencer;
      differencer.ReportDifferencesToString(&differences);
      if (differencer.Compare(found->second->created_config(), config)) return absl::OkStatus();
      return absl::AlreadyExistsError(
          absl::StrCat("table '", config.name(), "' exists with another configuration: ", differences));
    }
  }
  // Only one thread creates tables, so the name is still free below.
  size_t new_tables = 0;
  uint64_t new_bytes = 0;
  TANDEM_RETURN_IF_ERROR(CheckNewTable(config, max_memory_bytes, &new_tables, &new_bytes));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<TableStorage> storage, NewStorage(config));
  const std::shared_ptr<ServerTable> table = NewTable(config, std::move(storage));
  table->SetFirstStep(first_step);
  Add(table);
  return absl::OkStatus();
}

absl::Status TableRegistry::CheckNewTable(const v1::TableConfig& config, uint64_t max_memory_bytes,
                                          size_t* new_tables, uint64_t* new_bytes) const {
  if (config.num_workers() > kMaxWorkers) {
    return absl::InvalidArgumentError(absl::StrCat("table '", config.name(), "': num_workers is ",
                                                   config.num_workers(), ", at most ", kMaxWorkers,
                                                   " are allowed"));
  }
  if (All().size() + *new_tables >= kMaxTables) {
    return absl::ResourceExhaustedError(absl::StrCat("table '", config.name(), "': server ", options_.server,
                                                     " has ", kMaxTables, " tables, which is the limit"));
  }
  ++*new_tables;
  if (max_memory_bytes == 0) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const uint64_t planned, PlannedBytes(config, shard_map().num_servers()));
  const uint64_t held = MemoryBytes() + *new_bytes;
  if (held + planned > max_memory_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("table '", config.name(), "' needs ", planned, " bytes on server ", options_.server,
                     ", whose tables hold ", held, " and may hold ", max_memory_bytes, " (--max-memory)"));
  }
  *new_bytes += planned;
  return absl::OkStatus();
}

absl::Status TableRegistry::CheckLoadedBytes(uint64_t bytes) const {
  const uint64_t most = options_.max_memory_bytes;
  if (most == 0 || bytes <= most + most / 8) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the rows of server ", options_.server, " need ", bytes,
                                                   " bytes and more, and its tables may hold ", most,
                                                   " (--max-memory): load onto more servers"));
}

void TableRegistry::Add(std::shared_ptr<ServerTable> table) {
  absl::MutexLock lock(&mutex_);
  tables_.emplace(table->name(), std::move(table));
}

std::shared_ptr<ServerTable> TableRegistry::Drop(absl::string_view name,
                                                 std::vector<ServerTable::Waiter>* released) {
  std::shared_ptr<ServerTable> table;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = tables_.find(name);
    if (found == tables_.end()) return nullptr;
    table = std::move(found->second);
    tables_.erase(found);
  }
  table->Drop(released);
  return table;
}

void TableRegistry::Clear() {
  std::map<std::string, std::shared_ptr<ServerTable>, std::less<>> removed;  // destroyed outside the lock
  absl::MutexLock lock(&mutex_);
  removed.swap(tables_);
}

absl::StatusOr<std::shared_ptr<ServerTable>> TableRegistry::Find(absl::string_view name) const {
  absl::MutexLock lock(&mutex_);
  auto found = tables_.find(name);
  if (found != tables_.end()) return found->second;
  return absl::NotFoundError(
      absl::StrCat("no table '", name, "' on server ", options_.server, ", never created or dropped; it has ",
                   tables_.empty() ? "none: create tables first"
                                   : absl::StrJoin(tables_, ", ", [](std::string* out, const auto& entry) {
                                       absl::StrAppend(out, "'", entry.first, "'");
                                     })));
}

std::vector<std::shared_ptr<ServerTable>> TableRegistry::All() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<ServerTable>> tables;
  for (const auto& [name, table] : tables_) tables.push_back(table);
  return tables;
}

uint64_t TableRegistry::MemoryBytes() const {
  uint64_t bytes = 0;
  for (const auto& table : All()) bytes += table->storage()->Statistics().bytes;
  return bytes;
}

absl::Status TableRegistry::CheckMemory() const {
  if (options_.max_memory_bytes == 0) return absl::OkStatus();
  const int64_t now = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  int64_t next = next_measurement_.load(std::memory_order_relaxed);
  if (now >= next && next_measurement_.compare_exchange_strong(next, now + kMeasureEveryNanoseconds)) {
    measured_bytes_.store(MemoryBytes(), std::memory_order_relaxed);
  }
  const uint64_t held = measured_bytes_.load(std::memory_order_relaxed);
  if (held <= options_.max_memory_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "server ", options_.server, ": its tables hold ", held, " bytes and may hold ",
      options_.max_memory_bytes,
      " (--max-memory), so pulls create no more rows, nor do writes: give tables a byte_budget with an "
      "eviction, or more servers"));
}

uint64_t TableRegistry::WaitingBytes() const {
  absl::MutexLock lock(&mutex_);
  uint64_t bytes = 0;
  for (const auto& [name, table] : tables_) bytes += table->waiting_bytes();
  return bytes;
}

}  // namespace tandem::ps
