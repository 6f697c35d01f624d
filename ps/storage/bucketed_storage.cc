// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/bucketed_storage.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "ps/storage/row_codec.h"
#include "ps/table.h"

namespace tandem::ps {
namespace {

RowLayout LayoutOf(const v1::TableConfig& config, const Optimizer& optimizer, const Eviction* eviction) {
  return RowLayout(config.dim(), optimizer.state_floats(config.dim()), RowTypeOf(config),
                   eviction != nullptr && eviction->needs_count());
}

// Returns the number of rows of a DENSE table; nullopt for others.
std::optional<uint64_t> DenseRowsOf(const v1::TableConfig& config) {
  if (config.kind() != v1::TableConfig::DENSE) return std::nullopt;
  return (config.elements() + config.dim() - 1) / config.dim();
}

}  // namespace

BucketedStorage::BucketedStorage(const v1::TableConfig& config, uint32_t num_buckets, Policies policies)
    : optimizer_(std::move(policies.optimizer)),
      buckets_(LayoutOf(config, *optimizer_, policies.eviction.get()), num_buckets, config.byte_budget()),
      admission_(std::move(policies.admission), config.seed(), num_buckets, policies.pulls_create),
      creator_(&buckets_, std::move(policies.initializer), optimizer_.get(), &admission_, &scratch_pool_,
               config.seed(), DenseRowsOf(config)),
      gatherer_(&buckets_, /*spills=*/policies.tier != nullptr),
      evictor_(&buckets_, std::move(policies.eviction)),
      updater_(&buckets_, optimizer_.get(), &admission_, &creator_, &evictor_, &scratch_pool_,
               {.seed = config.seed(),
                .stochastic_rounding = config.stochastic_rounding(),
                .spills = policies.tier != nullptr}) {
  if (policies.tier == nullptr) return;
  spiller_ = std::make_unique<RowSpiller>(config.name(), &buckets_, std::move(policies.tier), &admission_,
                                          &creator_, &updater_, &evictor_, &scratch_pool_);
}

absl::Status BucketedStorage::GatherAs(RowFormat::Out as, absl::Span<const uint64_t> ids, bool create,
                                       float* out) {
  TANDEM_RETURN_IF_ERROR(CheckWhole());
  const RowLayout& layout = buckets_.layout();
  std::vector<uint32_t> missing;
  gatherer_.Gather({as, layout.dtype, layout.dim}, ids, reinterpret_cast<char*>(out), &missing);
  return missing.empty() ? absl::OkStatus() : FillMissing(ids, missing, create, out);
}

absl::Status BucketedStorage::FillMissing(absl::Span<const uint64_t> ids, absl::Span<const uint32_t> missing,
                                          bool create, float* out) {
  if (spiller_ != nullptr) return spiller_->FillMissing(ids, missing, create, out);
  creator_.FillMissing(ids, missing, create, out);
  return absl::OkStatus();
}

absl::Status BucketedStorage::GatherStored(absl::Span<const uint64_t> ids, bool create, char* out) {
  TANDEM_RETURN_IF_ERROR(CheckWhole());
  const RowLayout& layout = buckets_.layout();
  std::vector<uint32_t> missing;
  gatherer_.Gather({RowFormat::Out::kStored, layout.dtype, layout.dim}, ids, out, &missing);
  if (missing.empty()) return absl::OkStatus();
  // Missing rows are read as floats. These are the numbers that would be stored, so that storing them rounds
  // nothing.
  std::vector<uint64_t> missing_ids;
  for (const uint32_t i : missing) missing_ids.push_back(ids[i]);
  std::vector<float> values(missing.size() * layout.dim);
  TANDEM_RETURN_IF_ERROR(Gather(missing_ids, create, values.data()));
  for (size_t k = 0; k < missing.size(); ++k) {
    char* const row = out + missing[k] * layout.embedding_bytes;
    StoreRows(layout.dtype, absl::MakeConstSpan(&row, 1), layout.dim, values.data() + k * layout.dim,
              nullptr);
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> BucketedStorage::GatherNewer(absl::Span<const uint64_t> ids, const uint32_t* cached,
                                                    uint64_t max_age, bool create, float* out,
                                                    uint8_t* sent) {
  std::fill_n(sent, (ids.size() + 7) / 8, uint8_t{0});
  TANDEM_RETURN_IF_ERROR(CheckWhole());
  RowGatherer::NewerRows newer = gatherer_.GatherNewer(ids, cached, max_age, out, sent);
  if (!newer.doubtful.empty()) {
    TANDEM_RETURN_IF_ERROR(spiller_->ClearCurrent(ids, cached, newer.doubtful, sent));
    newer.wanted.clear();
    for (size_t i = 0; i < ids.size(); ++i) {
      if ((sent[i / 8] >> (i % 8) & 1) != 0) newer.wanted.push_back(ids[i]);
    }
    TANDEM_RETURN_IF_ERROR(Gather(newer.wanted, create, out));
  } else if (!newer.missing.empty()) {
    TANDEM_RETURN_IF_ERROR(FillMissing(newer.wanted, newer.missing, create, out));
  }
  return newer.wanted.size();
}

absl::StatusOr<uint64_t> BucketedStorage::Apply(absl::Span<const uint64_t> ids, const float* gradients,
                                                const ApplyOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckWhole());
  const uint64_t time = buckets_.AdvanceClock();
  uint64_t skipped = 0;
  if (!ids.empty()) {
    const UpdateArguments update{
        .gradients = gradients,
        .row_factors = options.row_factors,
        .occurrences = options.occurrences,
        .learning_rate_factor = options.learning_rate_factor * optimizer_->WarmUp(time),
        .batch_share = options.batch_share,
        .time = time};
    std::unique_ptr<Scratch> scratch = scratch_pool_.Take();
    scratch->absent.clear();
    scratch->over.clear();
    skipped = updater_.Apply(ids, update, options.helpers, scratch.get());
    absl::Status status;
    if (spiller_ != nullptr) {
      const absl::StatusOr<uint64_t> absent = spiller_->ApplyAbsent(update, scratch.get());
      skipped = absent.value_or(0);
      status = absent.status();
      spiller_->SpillOver(&scratch->over, update.now(), buckets_.quota());
    }
    scratch_pool_.Release(std::move(scratch));
    TANDEM_RETURN_IF_ERROR(status);
  }
  if (!admission_.at_pull()) refused_.fetch_add(skipped, std::memory_order_relaxed);
  evictor_.SweepNext(time);
  return skipped;
}

absl::Status BucketedStorage::ReadRows(absl::Span<const uint64_t> ids, float* out, uint8_t* exists) {
  TANDEM_RETURN_IF_ERROR(CheckWhole());
  const RowLayout& layout = buckets_.layout();
  const size_t floats = layout.row_floats();
  // Absent rows first: a row that is created meanwhile overwrites these values.
  std::vector<uint32_t> missing;
  for (uint32_t i = 0; i < ids.size(); ++i) {
    float* const to = out + i * floats;
    const uint64_t hash = Mix64(ids[i]);
    const uint32_t bucket = buckets_.BucketOfHash(hash);
    const FairLock::Reader lock(&buckets_.LockOfBucket(bucket));
    const char* const row = std::as_const(buckets_).store(bucket).Find(ids[i]);
    exists[i] = row != nullptr;
    if (row != nullptr) {
      buckets_.ReadRow(row, to);
    } else {
      missing.push_back(i);
    }
  }
  if (missing.empty()) return absl::OkStatus();
  if (spiller_ != nullptr) TANDEM_RETURN_IF_ERROR(spiller_->ReadRows(ids, missing, out, exists));
  for (const uint32_t i : missing) {
    if (exists[i] != 0) continue;
    float* const to = out + i * floats;
    std::fill_n(to, floats, 0.0f);
    if (creator_.OutOfRange(ids[i])) continue;
    creator_.InitialValues(ids[i], to);
    optimizer_->InitState(to, to + layout.dim, layout.dim);
  }
  return absl::OkStatus();
}

absl::Status BucketedStorage::WriteRows(absl::Span<const uint64_t> ids, const float* rows) {
  TANDEM_RETURN_IF_ERROR(CheckWhole());
  const RowLayout& layout = buckets_.layout();
  const size_t floats = layout.row_floats();
  buckets_.PrepareSlots(static_cast<uint32_t>(ids.size()));
  for (size_t i = 0; i < ids.size(); ++i, rows += floats) {
    if (creator_.OutOfRange(ids[i])) continue;
    // The version is that of the next update, so that copies which were read at the present clock are older.
    const uint64_t hash = Mix64(ids[i]);
    const uint32_t bucket = buckets_.BucketOfHash(hash);
    RowHistory history{.version = static_cast<uint32_t>(buckets_.clock() + 1),
                       .count = Eviction::kOneOccurrence};
    if (spiller_ != nullptr) {
      TANDEM_RETURN_IF_ERROR(spiller_->Restore(ids[i], rows, history, /*keep_count=*/true));
      continue;
    }
    const FairLock::Writer lock(&buckets_.LockOfBucket(bucket));
    const char* const row = std::as_const(buckets_).store(bucket).Find(ids[i]);
    if (row != nullptr) history.count = layout.count(row);
    buckets_.KeepRow(bucket, ids[i]);
    buckets_.PutRow(bucket, ids[i], hash, rows, history);
  }
  return absl::OkStatus();
}

StorageStatistics BucketedStorage::Statistics() const {
  StorageStatistics statistics;
  statistics.rows = buckets_.num_rows();
  if (buckets_.quota() != Buckets::kNoQuota) {
    statistics.budget_rows = uint64_t{buckets_.quota()} * buckets_.num_buckets();
  }
  statistics.bytes = sizeof(*this) + buckets_.shared_bytes() + scratch_pool_.bytes() + cut_bytes();
  for (uint32_t b = 0; b < buckets_.num_buckets(); ++b) {
    const FairLock::Reader lock(&buckets_.LockOfBucket(b));
    statistics.bytes += buckets_.BucketBytes(b) + admission_.bytes(b) + evictor_.removed(b).bytes();
    if (evictor_.removals(b) != nullptr) statistics.bytes += evictor_.removals(b)->bytes();
    if (spiller_ != nullptr) statistics.bytes += spiller_->BucketBytes(b);
  }
  statistics.admitted_rows = creator_.admitted_rows();
  statistics.refused_rows = refused_.load(std::memory_order_relaxed);
  statistics.evicted_rows = evictor_.evicted_rows();
  statistics.longest_pause_us = buckets_.longest_pause().seconds() * 1e6;
  if (spiller_ != nullptr) {
    statistics.bytes += spiller_->own_bytes();
    spiller_->AddStatistics(&statistics);
  }
  return statistics;
}

absl::Status BucketedStorage::VisitBucket(uint32_t bucket, RowVisitor visit) {
  return VisitRows(bucket, /*first_id=*/0, std::numeric_limits<size_t>::max(), visit).status();
}

absl::StatusOr<bool> BucketedStorage::VisitRows(uint32_t bucket, uint64_t first_id, size_t limit,
                                                RowVisitor visit) {
  TANDEM_CHECK(bucket < buckets_.num_buckets());
  TANDEM_RETURN_IF_ERROR(CheckWhole());
  if (spiller_ != nullptr) return spiller_->VisitRows(bucket, first_id, limit, visit);
  const FairLock::Reader lock(&buckets_.LockOfBucket(bucket));
  const RowLayout& layout = buckets_.layout();
  std::vector<float> floats(layout.row_floats());
  // One row more than the limit shows whether there are more.
  const size_t one_more = limit + (limit < std::numeric_limits<size_t>::max() ? 1 : 0);
  size_t visited = 0;
  for (const Buckets::StoredRow& row : buckets_.SortedRows(bucket, first_id, one_more)) {
    if (visited++ == limit) return true;
    buckets_.ReadRow(row.row, floats.data());
    visit(row.id, floats.data(), {row.version, layout.count(row.row)});
  }
  return false;
}

void BucketedStorage::MarkCut() {
  cut_ = buckets_.clock();
  has_cut_ = true;
  for (uint32_t b = 0; b < buckets_.num_buckets(); ++b) {
    const FairLock::Writer lock(&buckets_.LockOfBucket(b));
    evictor_.RecordRemoved(b);
    admission_.MarkCut(b);
  }
}

absl::StatusOr<BucketChanges> TableStorage::VisitChanges(uint32_t bucket, RowVisitor visit) {
  BucketChanges changes{.whole = true};
  TANDEM_RETURN_IF_ERROR(VisitBucket(bucket, visit));
  changes.filter = SaveFilter(bucket);
  changes.filter_bytes = changes.filter.size();
  return changes;
}

absl::StatusOr<BucketChanges> TableStorage::VisitCut(uint32_t bucket, bool whole, RowVisitor visit) {
  return whole ? TableStorage::VisitChanges(bucket, visit) : VisitChanges(bucket, visit);
}

absl::StatusOr<BucketChanges> BucketedStorage::VisitChanges(uint32_t bucket, RowVisitor visit) {
  TANDEM_CHECK(bucket < buckets_.num_buckets());
  BucketChanges changes;
  bool whole = !has_cut_ || buckets_.clock() - cut_ >= uint64_t{1} << 31;
  {
    const FairLock::Reader lock(&buckets_.LockOfBucket(bucket));
    const RemovedRows& removed = evictor_.removed(bucket);
    whole = whole || removed.too_many();
    if (!whole) {
      changes.removed = removed.Sorted();
      changes.filter = admission_.Changes(bucket);
      changes.filter_bytes = admission_.saved_bytes(bucket);
    }
  }
  if (whole) return TableStorage::VisitChanges(bucket, visit);
  TANDEM_RETURN_IF_ERROR(CheckWhole());
  const auto since = static_cast<uint32_t>(cut_);
  if (spiller_ != nullptr) {
    TANDEM_RETURN_IF_ERROR(spiller_->VisitChanges(bucket, since, visit));
    return changes;
  }
  const FairLock::Reader lock(&buckets_.LockOfBucket(bucket));
  const RowLayout& layout = buckets_.layout();
  std::vector<float> floats(layout.row_floats());
  for (const Buckets::StoredRow& row : buckets_.SortedChanges(bucket, since)) {
    buckets_.ReadRow(row.row, floats.data());
    visit(row.id, floats.data(), {row.version, layout.count(row.row)});
  }
  return changes;
}

absl::Status BucketedStorage::Restore(uint64_t id, const float* floats, const RowHistory& history) {
  if (creator_.OutOfRange(id)) return absl::OkStatus();
  if (spiller_ != nullptr) return spiller_->Restore(id, floats, history);
  const uint64_t hash = Mix64(id);
  const uint32_t bucket = buckets_.BucketOfHash(hash);
  const FairLock::Writer lock(&buckets_.LockOfBucket(bucket));
  buckets_.PutRow(bucket, id, hash, floats, history);
  return absl::OkStatus();
}

std::string BucketedStorage::SaveFilter(uint32_t bucket) const {
  const FairLock::Reader lock(&buckets_.LockOfBucket(bucket));
  return admission_.Save(bucket);
}

bool BucketedStorage::RestoreFilter(uint32_t bucket, absl::string_view counters) {
  const FairLock::Writer lock(&buckets_.LockOfBucket(bucket));
  return admission_.Restore(bucket, counters);
}

void BucketedStorage::Clear() {
  const auto clear_bucket = [this](uint32_t bucket) {
    buckets_.ClearBucket(bucket);
    admission_.Clear(bucket);
  };
  EndCut(/*keep=*/false);
  has_cut_ = false;
  if (spiller_ != nullptr) return spiller_->Clear(clear_bucket);
  for (uint32_t b = 0; b < buckets_.num_buckets(); ++b) {
    const FairLock::Writer lock(&buckets_.LockOfBucket(b));
    clear_bucket(b);
  }
}

std::unique_ptr<TableStorage> TableStorage::Create(const v1::TableConfig& config, uint32_t num_buckets,
                                                   absl::FunctionRef<bool(uint32_t bucket)> owns,
                                                   std::unique_ptr<ColdTier> tier,
                                                   RowsComeFrom rows_come_from) {
  TANDEM_CHECK(config.spill() == (tier != nullptr));
  TANDEM_CHECK(num_buckets > 0 && (num_buckets & (num_buckets - 1)) == 0);
  absl::StatusOr<std::unique_ptr<Optimizer>> optimizer = MakeOptimizer(config.optimizer());
  TANDEM_CHECK_MSG(optimizer.ok(), optimizer.status().message());
  absl::StatusOr<std::unique_ptr<Initializer>> initializer = MakeInitializer(config.initializer());
  TANDEM_CHECK_MSG(initializer.ok(), initializer.status().message());
  absl::StatusOr<std::unique_ptr<Admission>> admission = MakeAdmission(config.admission());
  TANDEM_CHECK_MSG(admission.ok(), admission.status().message());
  absl::StatusOr<std::unique_ptr<Eviction>> eviction = MakeEviction(config.eviction());
  TANDEM_CHECK_MSG(eviction.ok(), eviction.status().message());
  auto storage = std::make_unique<BucketedStorage>(
      config, num_buckets,
      BucketedStorage::Policies{*std::move(optimizer), *std::move(initializer), *std::move(admission),
                                *std::move(eviction), std::move(tier),
                                rows_come_from == RowsComeFrom::kAdmission});
  storage->CreateDenseRows(owns);
  return storage;
}

}  // namespace tandem::ps
