// SPDX-License-Identifier: Apache-2.0
#include "worker/evaluation/logistic_baseline.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/random.h"
#include "base/status.h"

namespace tandem::worker {
namespace {

using IdMap = absl::flat_hash_map<uint64_t, uint32_t>;  // id to index of its weight

// Rows in memory. Row r has the values [begin[r], begin[r + 1]) and num_dense dense values.
struct Rows {
  std::vector<float> labels;
  std::vector<uint64_t> begin = {0};
  std::vector<uint32_t> index;
  std::vector<float> weight;  // one per value
  std::vector<float> dense;

  size_t size() const { return labels.size(); }
};

// Appends a batch to `rows`. With `grow`, unknown ids get the next index; otherwise they are left out.
void AppendBatch(const Batch& batch, bool grow, IdMap* ids, Rows* rows) {
  for (size_t b = 0; b < batch.size; ++b) {
    for (const SparseColumn& column : batch.sparse) {
      const size_t first = column.offsets.empty() ? b : column.offsets[b];
      const size_t last = column.offsets.empty() ? b + 1 : column.offsets[b + 1];
      for (size_t i = first; i < last; ++i) {
        auto found = ids->find(column.ids[i]);
        if (found == ids->end()) {
          if (!grow) continue;
          found = ids->emplace(column.ids[i], static_cast<uint32_t>(ids->size())).first;
        }
        rows->index.push_back(found->second);
        rows->weight.push_back(column.weights.empty() ? 1.0f : column.weights[i]);
      }
    }
    rows->begin.push_back(rows->index.size());
  }
  rows->labels.insert(rows->labels.end(), batch.labels.begin(), batch.labels.end());
  rows->dense.insert(rows->dense.end(), batch.dense.begin(), batch.dense.end());
}

class Regression {
 public:
  struct Weight {
    float weight = 0;
    float squares = 0;  // sum over its gradients so far
  };
  struct Parameters {
    Weight bias;
    std::vector<Weight> weights;  // by index of the id
    std::vector<Weight> dense;
  };

  Regression(const LogisticBaselineOptions& options, size_t num_dense)
      : options_(options), num_dense_(num_dense) {}

  IdMap* ids() { return &ids_; }

  // Call it once, after all training rows are read.
  void Prepare(const Rows& train) {
    share_.assign(ids_.size(), 0.0f);
    for (uint32_t i : train.index) ++share_[i];
    for (float& share : share_) share = 1 / share;
    mean_.assign(num_dense_, 0.0f);
    scale_.assign(num_dense_, 1.0f);
    for (size_t d = 0; d < num_dense_; ++d) {
      double sum = 0;
      double squares = 0;
      for (size_t r = 0; r < train.size(); ++r) {
        const double x = train.dense[r * num_dense_ + d];
        sum += x;
        squares += x * x;
      }
      const double n = static_cast<double>(train.size());
      const double variance = squares / n - (sum / n) * (sum / n);
      mean_[d] = static_cast<float>(sum / n);
      if (variance > 0) scale_[d] = static_cast<float>(1 / std::sqrt(variance));
    }
    const double positives = std::accumulate(train.labels.begin(), train.labels.end(), 0.0);
    mean_label_ = positives / static_cast<double>(train.size());
  }

  void Reset(double l2) {
    l2_ = static_cast<float>(l2);
    const double p = std::clamp(mean_label_, 1e-6, 1 - 1e-6);
    parameters_.bias = {.weight = static_cast<float>(std::log(p / (1 - p)))};
    parameters_.weights.assign(ids_.size(), {});
    parameters_.dense.assign(num_dense_, {});
  }

  float Logit(const Rows& rows, size_t r) const {
    float sum = parameters_.bias.weight;
    for (uint64_t i = rows.begin[r]; i < rows.begin[r + 1]; ++i) {
      sum += parameters_.weights[rows.index[i]].weight * rows.weight[i];
    }
    for (size_t d = 0; d < num_dense_; ++d) sum += parameters_.dense[d].weight * Dense(rows, r, d);
    return sum;
  }

  void Epoch(const Rows& train, uint64_t epoch) {
    std::vector<uint32_t> order(train.size());
    std::iota(order.begin(), order.end(), 0);
    CounterRandom random(options_.seed, epoch);
    rate_ = static_cast<float>(options_.learning_rate / (1 + 0.5 * static_cast<double>(epoch - 1)));
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
    for (const uint32_t r : order) {
      const float error = static_cast<float>(Sigmoid(Logit(train, r))) - train.labels[r];
      Step(error, &parameters_.bias);
      for (uint64_t i = train.begin[r]; i < train.begin[r + 1]; ++i) {
        // Each occurrence of an id pays its share of the id's penalty.
        Weight& weight = parameters_.weights[train.index[i]];
        Step(error * train.weight[i] + l2_ * share_[train.index[i]] * weight.weight, &weight);
      }
      for (size_t d = 0; d < num_dense_; ++d) Step(error * Dense(train, r, d), &parameters_.dense[d]);
    }
  }

  ScoredExamples Score(const Rows& rows) const {
    std::vector<float> logits(rows.size());
    for (size_t r = 0; r < rows.size(); ++r) logits[r] = Logit(rows, r);
    ScoredExamples scored;
    scored.Add(rows.labels, logits);
    return scored;
  }

  double mean_label() const { return mean_label_; }
  const Parameters& parameters() const { return parameters_; }
  void set_parameters(Parameters parameters) { parameters_ = std::move(parameters); }

 private:
  float Dense(const Rows& rows, size_t r, size_t d) const {
    return (rows.dense[r * num_dense_ + d] - mean_[d]) * scale_[d];
  }
  void Step(float gradient, Weight* weight) const {
    weight->squares += gradient * gradient;
    weight->weight -= rate_ * gradient / std::sqrt(weight->squares + 1e-8f);
  }

  const LogisticBaselineOptions options_;
  const size_t num_dense_;
  IdMap ids_;
  std::vector<float> share_;  // 1 / occurrences of the id
  std::vector<float> mean_;
  std::vector<float> scale_;
  double mean_label_ = 0;
  float l2_ = 0;
  float rate_ = 0;  // of this epoch
  Parameters parameters_;
};

// Reads every k-th row of a split, for the smallest k that gives at most `max_rows` rows. `use` returns false
// to stop.
template <typename Use>
absl::Status ReadSample(Dataset* dataset, Split split, uint64_t max_rows, Use use) {
  TANDEM_ASSIGN_OR_RETURN(const uint64_t count, dataset->Count(split));
  const uint64_t step = max_rows == 0 ? 1 : (count + max_rows - 1) / max_rows;
  ReadOptions read = {.split = split, .batch_size = 4096, .tail = ReadOptions::Tail::kExact};
  read.world_size = static_cast<int>(std::clamp<uint64_t>(step, 1, std::numeric_limits<int>::max()));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<BatchReader> reader, dataset->Read(read));
  Batch batch;
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const bool more, reader->Next(&batch));
    if (!more || !use(batch)) return absl::OkStatus();
  }
}

}  // namespace

absl::StatusOr<LogisticBaseline> TrainLogisticBaseline(Dataset* dataset,
                                                       const LogisticBaselineOptions& options) {
  Regression model(options, dataset->num_dense());
  Rows train;
  Rows valid;
  TANDEM_RETURN_IF_ERROR(ReadSample(dataset, Split::kTrain, options.max_rows, [&](const Batch& batch) {
    AppendBatch(batch, /*grow=*/true, model.ids(), &train);
    return train.index.size() < options.max_values;
  }));
  if (train.size() == 0) return absl::FailedPreconditionError("the training split is empty");
  TANDEM_RETURN_IF_ERROR(
      ReadSample(dataset, Split::kValid, (options.max_rows + 3) / 4, [&](const Batch& batch) {
        AppendBatch(batch, /*grow=*/false, model.ids(), &valid);
        return valid.index.size() < options.max_values / 4;
      }));
  model.Prepare(train);

  LogisticBaseline best;
  double best_logloss = std::numeric_limits<double>::infinity();
  Regression::Parameters best_parameters;
  for (const double l2 : options.l2) {
    const double before = best_logloss;
    double last = std::numeric_limits<double>::infinity();
    model.Reset(l2);
    for (int epoch = 1; epoch <= options.max_epochs; ++epoch) {
      model.Epoch(train, epoch);
      TANDEM_ASSIGN_OR_RETURN(const ClickMetrics metrics, model.Score(valid).Evaluate());
      if (metrics.logloss < best_logloss) {
        best_logloss = metrics.logloss;
        best.valid = metrics;
        best.l2 = l2;
        best.epochs = epoch;
        best_parameters = model.parameters();
      }
      if (metrics.logloss > last - 1e-5) break;
      last = metrics.logloss;
    }
    if (best_logloss >= before) break;
  }

  model.set_parameters(std::move(best_parameters));
  ScoredExamples scored;
  TANDEM_RETURN_IF_ERROR(ReadSample(dataset, Split::kTest, 0, [&](const Batch& batch) {
    Rows rows;
    AppendBatch(batch, /*grow=*/false, model.ids(), &rows);
    scored.Merge(model.Score(rows));
    return true;
  }));
  TANDEM_ASSIGN_OR_RETURN(best.test, scored.Evaluate());
  best.mean_label = model.mean_label();
  best.mean_test_logloss = LogLossOfConstant(best.mean_label, best.test.positives, best.test.examples);
  best.train_rows = train.size();
  return best;
}

}  // namespace tandem::worker
