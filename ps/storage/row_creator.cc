// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/row_creator.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/fixed_array.h"
#include "base/random.h"
#include "ps/storage/row_codec.h"

namespace tandem::ps {

RowCreator::RowCreator(Buckets* buckets, std::unique_ptr<Initializer> initializer, const Optimizer* optimizer,
                       const AdmissionFilter* admission, ScratchPool* scratch_pool, uint64_t seed,
                       std::optional<uint64_t> dense_rows)
    : buckets_(buckets),
      initializer_(std::move(initializer)),
      optimizer_(optimizer),
      admission_(admission),
      scratch_pool_(scratch_pool),
      seed_(seed),
      dense_rows_(dense_rows) {}

void RowCreator::InitialValues(uint64_t id, float* values) const {
  const RowLayout& layout = buckets_->layout();
  initializer_->Fill(seed_, id, values, layout.dim);
  if (layout.f32()) return;
  absl::FixedArray<uint16_t, 512> stored(layout.dim);  // every format but f32 has 16 bits
  char* const row = reinterpret_cast<char*>(stored.data());
  StoreRows(layout.dtype, absl::MakeConstSpan(&row, 1), layout.dim, values, nullptr);
  const char* const from = row;
  LoadRows(layout.dtype, absl::MakeConstSpan(&from, 1), layout.dim, values);
}

void RowCreator::InitRow(char* row, const float* values) const {
  const RowLayout& layout = buckets_->layout();
  StoreRows(layout.dtype, absl::MakeConstSpan(&row, 1), layout.dim, values, nullptr);
  optimizer_->InitState(values, layout.state(row), layout.dim);
}

void RowCreator::AdmitRow(RowStore* store, uint64_t id, uint64_t hash, uint32_t version,
                          const float* values) {
  buckets_->cut().Keep(buckets_->BucketOfHash(hash), id, 0, nullptr);
  InitRow(buckets_->AddRow(store, id, hash, version), values);
  admitted_.fetch_add(1, std::memory_order_relaxed);
}

void RowCreator::CreateDenseRows(absl::FunctionRef<bool(uint32_t)> owns) {
  std::vector<float> values(buckets_->layout().dim);
  for (uint64_t id = 0; id < dense_rows_.value_or(0); ++id) {
    const uint64_t hash = Mix64(id);
    const uint32_t b = buckets_->BucketOfHash(hash);
    if (!owns(b)) continue;
    InitialValues(id, values.data());
    const FairLock::Writer lock(&buckets_->LockOfBucket(b));
    InitRow(buckets_->AddRow(&buckets_->store(b), id, hash, 0), values.data());
  }
}

void RowCreator::FillMissing(absl::Span<const uint64_t> ids, absl::Span<const uint32_t> missing, bool create,
                             float* out) {
  const RowLayout& layout = buckets_->layout();
  const bool creates = create && !dense_rows_.has_value() && admission_->at_pull();
  // The values of rows that may be created are not read back from `out`: a client may be able to write there
  // (rpc/shm).
  const std::unique_ptr<float[]> initial(creates ? new float[missing.size() * layout.dim] : nullptr);
  // This happens before a lock is taken: initial values may be slow to compute and depend on nothing that it
  // guards.
  for (size_t k = 0; k < missing.size(); ++k) {
    const uint32_t i = missing[k];
    float* const values = out + size_t{i} * layout.dim;
    if (OutOfRange(ids[i])) {
      std::fill_n(values, layout.dim, 0.0f);
    } else if (creates) {
      float* const own = initial.get() + k * layout.dim;
      InitialValues(ids[i], own);
      std::copy_n(own, layout.dim, values);
    } else {
      InitialValues(ids[i], values);
    }
  }
  if (!creates) return;
  // Pushes evict rows, after every worker has pulled. If no pushes come, pulls still create rows only up to
  // twice the quota.
  const uint64_t most_rows = 2 * uint64_t{buckets_->quota()};
  std::unique_ptr<Scratch> scratch = scratch_pool_->Take();
  scratch->ids.resize(missing.size());
  for (size_t k = 0; k < missing.size(); ++k) scratch->ids[k] = ids[missing[k]];
  scratch->grouping.Run(scratch->ids, buckets_->num_locks());
  scratch->over.clear();
  buckets_->PrepareSlots(static_cast<uint32_t>(missing.size()));
  for (const Grouping::Group& group : scratch->grouping.groups()) {
    const FairLock::Writer lock(&buckets_->lock(group.bucket));
    const LongestTime::Timer timer(&buckets_->longest_pause());
    for (const Grouping::Item& item :
         scratch->grouping.items().subspan(group.begin, group.end - group.begin)) {
      float* const values = out + size_t{missing[item.position]} * layout.dim;
      RowStore& store = buckets_->store(buckets_->BucketOfHash(item.hash));
      // Another call, or an earlier item of this one, may have created the row meanwhile.
      if (const char* const row = store.Find(item.id)) {
        LoadRows(layout.dtype, absl::MakeConstSpan(&row, 1), layout.dim, values);
        continue;
      }
      if (store.size() >= most_rows) continue;
      AdmitRow(&store, item.id, item.hash, static_cast<uint32_t>(buckets_->clock()),
               initial.get() + size_t{item.position} * layout.dim);
      if (store.index().WantedBytes() > 0) scratch->over.push_back(buckets_->BucketOfHash(item.hash));
    }
  }
  buckets_->PrepareGrowth(&scratch->over);
  scratch_pool_->Release(std::move(scratch));
}

}  // namespace tandem::ps
