// SPDX-License-Identifier: Apache-2.0
#include "python/src/batch_lookup.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "ps/occurrences.h"

namespace tandem::python {
namespace {

// Four independent lanes, because a single chain of multiplications would be bound by its latency.
class ContentHash {
 public:
  void Add(uint64_t value) {
    lanes_[0] = (lanes_[0] ^ value) * kMultiplier;
    lanes_[0] ^= lanes_[0] >> 29;
  }
  // `data` has `count` values of 8 bytes.
  void Add(const void* data, size_t count) {
    Add(count);
    const char* at = static_cast<const char*>(data);
    for (; count >= 4; count -= 4, at += 32) {
      std::array<uint64_t, 4> values;
      std::memcpy(values.data(), at, 32);
      for (size_t l = 0; l < 4; ++l) {
        lanes_[l] = (lanes_[l] ^ values[l]) * kMultiplier;
        lanes_[l] ^= lanes_[l] >> 29;
      }
    }
    for (; count > 0; --count, at += 8) {
      uint64_t value;
      std::memcpy(&value, at, 8);
      Add(value);
    }
  }
  std::string Finish() const {
    const uint64_t words[2] = {
        Mix64(lanes_[0] + 3 * Mix64(lanes_[1])) + Mix64(lanes_[2] + 5 * Mix64(lanes_[3])),
        Mix64(lanes_[3] + 7 * Mix64(lanes_[2])) ^ Mix64(lanes_[1] + 9 * Mix64(lanes_[0]))};
    return std::string(reinterpret_cast<const char*>(words), sizeof(words));
  }

 private:
  static constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15;
  std::array<uint64_t, 4> lanes_ = {0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0,
                                    0x082efa98ec4e6c89};
};

// Checks the bags of a feature and writes their ends, counted from its first id.
absl::Status ReadEnds(const LookupFeature& info, const FeatureIds& from, std::vector<uint32_t>* ends) {
  const auto count = static_cast<int64_t>(from.ids.size());
  const auto bad = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the offsets of feature '", info.name, "' ", what, "; they must begin with 0, not decrease, and ",
        from.ends_are_given ? absl::StrCat("end with the number of ids, ", count)
                            : absl::StrCat("be at most the number of ids, ", count)));
  };
  if (from.num_offsets == 0) return bad("are empty");
  if (from.offsets[0] != from.base) return bad(absl::StrCat("begin with ", from.offsets[0] - from.base));
  const size_t bags = from.num_offsets - (from.ends_are_given ? 1 : 0);
  ends->reserve(bags);
  for (size_t b = 0; b < bags; ++b) {
    const int64_t begin = from.offsets[b] - from.base;
    const int64_t end = b + 1 < from.num_offsets ? from.offsets[b + 1] - from.base : count;
    if (end < begin) return bad(absl::StrCat("decrease from ", begin, " to ", end));
    if (end > count) return bad(absl::StrCat("contain ", end));
    ends->push_back(static_cast<uint32_t>(end));
  }
  const int64_t last = ends->empty() ? 0 : ends->back();
  if (last != count) return bad(absl::StrCat("end with ", last));
  return absl::OkStatus();
}

}  // namespace

std::string ContentKey(const LookupPlan& plan, absl::Span<const FeatureIds> features) {
  ContentHash hash;
  hash.Add(reinterpret_cast<uintptr_t>(&plan));
  for (const FeatureIds& feature : features) {
    hash.Add(feature.ids.data(), feature.ids.size());
    hash.Add(feature.length);
    hash.Add(feature.bags);
    hash.Add(static_cast<uint64_t>(feature.base));
    hash.Add(feature.ends_are_given ? 1 : 2);
    if (feature.offsets != nullptr) hash.Add(feature.offsets, feature.num_offsets);
    if (feature.weights == nullptr) continue;
    const size_t pairs = feature.ids.size() / 2;
    hash.Add(feature.weights, pairs);
    if (feature.ids.size() % 2 == 1) {
      uint32_t bits;
      std::memcpy(&bits, feature.weights + 2 * pairs, sizeof(bits));
      hash.Add(bits);
    }
  }
  return hash.Finish();
}

absl::Status BatchLookup::Prepare(absl::Span<const FeatureIds> features) {
  if (features.size() != plan_->num_features()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are ids for ", features.size(), " features, expected ", plan_->num_features()));
  }
  versions_.clear();
  rows_.resize(plan_->tables.size());
  features_.resize(features.size());
  size_t first = 0;
  for (size_t t = 0; t < rows_.size(); ++t) {
    const size_t count = plan_->tables[t].features.size();
    rows_[t].counted = false;
    TANDEM_RETURN_IF_ERROR(PrepareTable(plan_->tables[t], features.subspan(first, count), &rows_[t],
                                        absl::MakeSpan(features_).subspan(first, count)));
    first += count;
  }
  return absl::OkStatus();
}

absl::Status BatchLookup::PrepareTable(const LookupTable& table, absl::Span<const FeatureIds> features,
                                       Rows* rows, absl::Span<Feature> prepared) {
  rows->gradients = nullptr;
  size_t total = 0;
  bool padded = false;
  for (size_t f = 0; f < features.size(); ++f) {
    const FeatureIds& from = features[f];
    const LookupFeature& info = table.features[f];
    Feature& to = prepared[f];
    to.first = total;
    to.ids = from.ids.size();
    to.bags = from.bags;
    to.length = from.length;
    to.ends.clear();
    to.weights.clear();
    total += to.ids;
    if (total >= kPadding) {
      return absl::InvalidArgumentError(absl::StrCat("the features of table '", table.name, "' have ", total,
                                                     " ids, at most ", kPadding - 1,
                                                     " are possible in one lookup: use smaller batches"));
    }
    int64_t signs = 0;
    for (const int64_t id : from.ids) signs |= id;
    if (signs < 0 && !table.negative_ids) {
      return absl::InvalidArgumentError(
          absl::StrCat("the ids of feature '", info.name, "' contain ",
                       *std::min_element(from.ids.begin(), from.ids.end()),
                       "; ids must not be negative. With negative_ids=\"bits\" the table takes "
                       "64-bit hashes by their bits"));
    }
    if (info.pooling != v1::NONE && from.offsets != nullptr) {
      TANDEM_RETURN_IF_ERROR(ReadEnds(info, from, &to.ends));
      to.bags = to.ends.size();
    }
    if (from.weights != nullptr) to.weights.assign(from.weights, from.weights + to.ids);
    padded |= info.padding >= 0;
  }
  // A table with one feature needs no copy of its ids.
  absl::Span<const uint64_t> ids;
  if (features.size() == 1 && !padded) {
    ids = {reinterpret_cast<const uint64_t*>(features[0].ids.data()), features[0].ids.size()};
  } else {
    ids_.clear();
    ids_.reserve(total);
    for (size_t f = 0; f < features.size(); ++f) {
      for (const int64_t id : features[f].ids) {
        if (id != table.features[f].padding) ids_.push_back(static_cast<uint64_t>(id));
      }
    }
    ids = ids_;
  }
  deduper_.Run(ids, &rows->unique, padded ? &kept_index_ : &rows->index);
  if (padded) {
    rows->index.resize(total);
    size_t to = 0, kept = 0;
    for (size_t f = 0; f < features.size(); ++f) {
      for (const int64_t id : features[f].ids) {
        rows->index[to++] = id == table.features[f].padding ? kPadding : kept_index_[kept++];
      }
    }
  }
  rows->values.resize(rows->unique.size() * table.dim);
  return absl::OkStatus();
}

std::vector<ps::PullPart> BatchLookup::PullParts() {
  std::vector<ps::PullPart> parts(rows_.size());
  for (size_t t = 0; t < rows_.size(); ++t) {
    parts[t].table = plan_->tables[t].name;
    parts[t].ids = rows_[t].unique;
    parts[t].rows = rows_[t].values.data();
  }
  return parts;
}

void BatchLookup::SetCounted(absl::FunctionRef<bool(const std::string& table)> counts) {
  for (size_t t = 0; t < rows_.size(); ++t) rows_[t].counted = counts(plan_->tables[t].name);
}

size_t BatchLookup::OutputRows(size_t feature) const {
  size_t f = feature;
  for (const LookupTable& table : plan_->tables) {
    if (f < table.features.size()) {
      return table.features[f].pooling == v1::NONE ? features_[feature].ids : features_[feature].bags;
    }
    f -= table.features.size();
  }
  return 0;
}

void BatchLookup::Gather(absl::Span<const OutputArray> outputs) const {
  size_t f = 0;
  for (size_t t = 0; t < rows_.size(); ++t) {
    const LookupTable& table = plan_->tables[t];
    for (const LookupFeature& info : table.features) {
      GatherFeature(info, table.dim, rows_[t], features_[f], outputs[f]);
      ++f;
    }
  }
}

void BatchLookup::GatherFeature(const LookupFeature& info, size_t dim, const Rows& rows,
                                const Feature& feature, const OutputArray& out) const {
  const uint32_t* const index = rows.index.data() + feature.first;
  const float* const values = rows.values.data();
  const bool weighted = !feature.weights.empty();
  if (info.pooling == v1::NONE || (feature.ends.empty() && feature.length == 1 && !weighted)) {
    for (size_t i = 0; i < feature.ids; ++i) {
      float* const to = out.data + i * out.stride;
      if (index[i] == kPadding) {
        std::memset(to, 0, dim * sizeof(float));
      } else {
        std::memcpy(to, values + size_t{index[i]} * dim, dim * sizeof(float));
      }
    }
    return;
  }
  const size_t bags = feature.bags;
  for (size_t b = 0; b < bags; ++b) {
    float* __restrict const sum = out.data + b * out.stride;
    std::fill_n(sum, dim, 0.0f);
    const auto [begin, end] = feature.bag(b);
    size_t count = 0;
    for (size_t i = begin; i < end; ++i) {
      if (index[i] == kPadding) continue;
      ++count;
      const float* __restrict const row = values + size_t{index[i]} * dim;
      if (weighted) {
        const float weight = feature.weights[i];
        for (size_t d = 0; d < dim; ++d) sum[d] += weight * row[d];
      } else {
        for (size_t d = 0; d < dim; ++d) sum[d] += row[d];
      }
    }
    if (info.pooling == v1::MEAN && count > 1) {
      const float divisor = static_cast<float>(count);
      for (size_t d = 0; d < dim; ++d) sum[d] /= divisor;
    }
  }
}

void BatchLookup::Scatter(absl::Span<const OutputGradients> gradients, float scale,
                          absl::Span<float* const> weight_gradients, const std::vector<bool>& trains) {
  absl::MutexLock lock(&mutex_);
  size_t f = 0;
  for (size_t t = 0; t < rows_.size(); ++t) {
    const LookupTable& table = plan_->tables[t];
    Rows& rows = rows_[t];
    const bool train_rows = trains[t];
    if (train_rows && rows.gradients == nullptr) {
      if (rows.recycled != nullptr && rows.recycled.use_count() == 1) {
        // The last other owner, perhaps a thread of the transport, has finished reading.
        std::atomic_thread_fence(std::memory_order_acquire);
        rows.gradients = std::move(rows.recycled);
        rows.gradients->assign(rows.values.size(), 0.0f);
      } else {
        rows.gradients = std::make_shared<std::vector<float>>(rows.values.size(), 0.0f);
      }
      rows.recycled = nullptr;
    }
    for (const LookupFeature& info : table.features) {
      float* const d_weights = weight_gradients.empty() ? nullptr : weight_gradients[f];
      if (gradients[f].data != nullptr) {
        ScatterFeature(info, table.dim, rows, features_[f], gradients[f], scale,
                       train_rows ? rows.gradients->data() : nullptr, d_weights);
      } else if (d_weights != nullptr) {
        std::fill_n(d_weights, features_[f].ids, 0.0f);
      }
      ++f;
    }
  }
}

void BatchLookup::ScatterFeature(const LookupFeature& info, size_t dim, const Rows& rows,
                                 const Feature& feature, const OutputGradients& d_out, float scale,
                                 float* d_rows, float* d_weights) const {
  const uint32_t* const index = rows.index.data() + feature.first;
  if (d_rows == nullptr && d_weights == nullptr) return;
  if (info.pooling == v1::NONE) {
    if (d_rows == nullptr) return;
    for (size_t i = 0; i < feature.ids; ++i) {
      if (index[i] == kPadding) continue;
      const float* __restrict const from = d_out.data + i * d_out.stride;
      float* __restrict const to = d_rows + size_t{index[i]} * dim;
      for (size_t d = 0; d < dim; ++d) to[d] += scale * from[d];
    }
    return;
  }
  const size_t bags = feature.bags;
  for (size_t b = 0; b < bags; ++b) {
    const float* __restrict const from = d_out.data + b * d_out.stride;
    const auto [begin, end] = feature.bag(b);
    float factor = scale;
    if (info.pooling == v1::MEAN) {
      const auto count = end - begin - std::count(index + begin, index + end, kPadding);
      if (count > 1) factor /= static_cast<float>(count);
    }
    for (size_t i = begin; i < end; ++i) {
      if (index[i] == kPadding) {
        if (d_weights != nullptr) d_weights[i] = 0.0f;
        continue;
      }
      if (d_rows != nullptr) {
        const float by = feature.weights.empty() ? factor : factor * feature.weights[i];
        float* __restrict const to = d_rows + size_t{index[i]} * dim;
        for (size_t d = 0; d < dim; ++d) to[d] += by * from[d];
      }
      if (d_weights == nullptr) continue;
      const float* const row = rows.values.data() + size_t{index[i]} * dim;
      float dot = 0.0f;
      for (size_t d = 0; d < dim; ++d) dot += row[d] * from[d];
      d_weights[i] = dot;
    }
  }
}

bool BatchLookup::HasGradients() const {
  absl::MutexLock lock(&mutex_);
  return std::any_of(rows_.begin(), rows_.end(), [](const Rows& rows) { return rows.gradients != nullptr; });
}

bool BatchLookup::HasGradients(const std::string& table) const {
  absl::MutexLock lock(&mutex_);
  for (size_t t = 0; t < rows_.size(); ++t) {
    if (plan_->tables[t].name == table) return rows_[t].gradients != nullptr;
  }
  return false;
}

BatchLookup::RowGradients BatchLookup::TakeGradients(const std::string& table) {
  absl::MutexLock lock(&mutex_);
  RowGradients taken;
  for (size_t t = 0; t < rows_.size(); ++t) {
    if (plan_->tables[t].name != table || rows_[t].gradients == nullptr) continue;
    taken.ids = rows_[t].unique;
    if (t < versions_.size()) taken.versions = versions_[t];
    if (rows_[t].counted) {
      rows_[t].occurrences.assign(rows_[t].unique.size(), 0);
      for (const uint32_t index : rows_[t].index) {
        if (index != kPadding) ++rows_[t].occurrences[index];
      }
      taken.occurrences = rows_[t].occurrences;
    }
    taken.rows = rows_[t].gradients;
    rows_[t].recycled = std::move(rows_[t].gradients);
    rows_[t].gradients = nullptr;
  }
  return taken;
}

void BatchLookup::DropGradients() {
  absl::MutexLock lock(&mutex_);
  for (Rows& rows : rows_) rows.gradients = nullptr;
}

void BatchLookup::DropGradients(const std::string& table) {
  absl::MutexLock lock(&mutex_);
  for (size_t t = 0; t < rows_.size(); ++t) {
    if (plan_->tables[t].name == table) rows_[t].gradients = nullptr;
  }
}

uint64_t BatchLookup::num_ids() const {
  uint64_t count = 0;
  for (const Feature& feature : features_) count += feature.ids;
  return count;
}

uint64_t BatchLookup::num_unique() const {
  uint64_t count = 0;
  for (const Rows& rows : rows_) count += rows.unique.size();
  return count;
}

uint64_t BatchLookup::bytes() const {
  uint64_t bytes = 0;
  for (const Rows& rows : rows_) {
    bytes += rows.unique.size() * sizeof(uint64_t) + rows.index.size() * sizeof(uint32_t) +
             rows.values.size() * sizeof(float);
  }
  return bytes;
}

namespace {

std::vector<BatchLookup::RowGradients> TakeAll(const std::string& table,
                                               absl::Span<const std::shared_ptr<BatchLookup>> lookups) {
  std::vector<BatchLookup::RowGradients> taken;
  for (const std::shared_ptr<BatchLookup>& lookup : lookups) {
    BatchLookup::RowGradients gradients = lookup->TakeGradients(table);
    if (gradients.rows != nullptr) taken.push_back(std::move(gradients));
  }
  return taken;
}

BatchLookup::RowGradients View(const TableGradients& gathered) {
  return {.ids = gathered.ids,
          .versions = gathered.versions,
          .rows = gathered.rows,
          .occurrences = gathered.occurrences};
}

std::vector<uint64_t> OldestVersions(absl::Span<const BatchLookup::RowGradients> taken) {
  std::vector<uint64_t> versions;
  for (const BatchLookup::RowGradients& gradients : taken) {
    if (versions.empty()) versions.assign(gradients.versions.begin(), gradients.versions.end());
    for (size_t s = 0; s < versions.size() && s < gradients.versions.size(); ++s) {
      versions[s] = std::min(versions[s], gradients.versions[s]);
    }
  }
  return versions;
}

// Adds up the gradients and the occurrences of each id. Writes the distinct ids in the order in which they
// first appear.
std::shared_ptr<std::vector<float>> Sum(absl::Span<const BatchLookup::RowGradients> taken, uint32_t dim,
                                        std::vector<uint64_t>* ids, std::vector<uint32_t>* occurrences) {
  std::vector<uint64_t> all;
  for (const BatchLookup::RowGradients& gradients : taken) {
    all.insert(all.end(), gradients.ids.begin(), gradients.ids.end());
  }
  std::vector<uint32_t> index;
  ps::Deduper().Run(all, ids, &index);
  auto sums = std::make_shared<std::vector<float>>(ids->size() * dim, 0.0f);
  size_t i = 0;
  for (const BatchLookup::RowGradients& gradients : taken) {
    const float* __restrict from = gradients.rows->data();
    for (size_t k = 0; k < gradients.ids.size(); ++k, ++i, from += dim) {
      float* __restrict const to = sums->data() + size_t{index[i]} * dim;
      for (size_t d = 0; d < dim; ++d) to[d] += from[d];
    }
  }
  occurrences->clear();
  if (std::all_of(taken.begin(), taken.end(),
                  [](const BatchLookup::RowGradients& gradients) { return gradients.occurrences.empty(); })) {
    return sums;
  }
  occurrences->assign(ids->size(), 0);
  i = 0;
  for (const BatchLookup::RowGradients& gradients : taken) {
    for (size_t k = 0; k < gradients.ids.size(); ++k, ++i) {
      uint32_t& sum = (*occurrences)[index[i]];
      sum = ps::AddOccurrences(sum, gradients.occurrences.empty() ? 1 : gradients.occurrences[k]);
    }
  }
  return sums;
}

}  // namespace

std::shared_ptr<TableGradients> TakeGradients(const std::string& table, uint32_t dim,
                                              absl::Span<const std::shared_ptr<BatchLookup>> lookups,
                                              std::shared_ptr<TableGradients> earlier) {
  std::vector<BatchLookup::RowGradients> taken = TakeAll(table, lookups);
  if (taken.empty()) return earlier;
  if (earlier != nullptr) taken.insert(taken.begin(), View(*earlier));
  auto gathered = std::make_shared<TableGradients>();
  gathered->versions = OldestVersions(taken);
  gathered->rows = Sum(taken, dim, &gathered->ids, &gathered->occurrences);
  return gathered;
}

GradientPush TakePush(absl::Span<const PushSource> sources) {
  GradientPush push;
  push.parts.resize(sources.size());
  push.ids.resize(sources.size());
  push.versions.resize(sources.size());
  push.occurrences.resize(sources.size());
  for (size_t t = 0; t < sources.size(); ++t) {
    const PushSource& source = sources[t];
    ps::PushPart& part = push.parts[t];
    part.table = source.table;
    part.learning_rate_factor = source.learning_rate_factor;
    part.repeats = false;
    std::vector<BatchLookup::RowGradients> taken;
    for (const std::shared_ptr<TableGradients>& gathered : source.gathered) taken.push_back(View(*gathered));
    for (BatchLookup::RowGradients& gradients : TakeAll(source.table, source.lookups)) {
      taken.push_back(std::move(gradients));
    }
    if (taken.empty()) continue;
    push.versions[t] = OldestVersions(taken);
    part.pulled_versions = push.versions[t];
    if (taken.size() == 1) {
      part.ids = taken[0].ids;
      part.gradients = taken[0].rows->data();
      part.owner = std::move(taken[0].rows);
      part.occurrences = taken[0].occurrences;
      continue;
    }
    auto sums = Sum(taken, source.dim, &push.ids[t], &push.occurrences[t]);
    part.ids = push.ids[t];
    part.occurrences = push.occurrences[t];
    part.gradients = sums->data();
    part.owner = std::move(sums);
  }
  return push;
}

}  // namespace tandem::python
