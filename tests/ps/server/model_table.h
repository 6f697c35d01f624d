// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_SERVER_MODEL_TABLE_H_
#define TANDEM_TESTS_PS_SERVER_MODEL_TABLE_H_

// A reference model of a table: a map from id to row, on one server, without threads. It knows optimizers and
// initializers, nothing else.

#include <map>
#include <memory>
#include <vector>

#include "base/status.h"
#include "ps/optimizers/optimizer.h"
#include "ps/policies/initializer.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps::testing {

class ModelTable {
 public:
  explicit ModelTable(const v1::TableConfig& config)
      : config_(config),
        optimizer_(*MakeOptimizer(config.optimizer())),
        initializer_(*MakeInitializer(config.initializer())) {}

  std::vector<float> Read(uint64_t id, bool create) {
    auto found = rows_.find(id);
    if (found != rows_.end()) return found->second.weights;
    Row row;
    row.weights.resize(config_.dim());
    initializer_->Fill(config_.seed(), id, row.weights.data(), config_.dim());
    row.state.resize(optimizer_->state_floats(config_.dim()));
    optimizer_->InitState(row.weights.data(), row.state.data(), config_.dim());
    std::vector<float> weights = row.weights;
    if (create) rows_.emplace(id, std::move(row));
    return weights;
  }
  // Applies one update with the sums of the gradients, added in the order given. Returns the number of
  // entries without a row.
  uint64_t Apply(const std::vector<uint64_t>& ids, const std::vector<float>& gradients) {
    const uint32_t dim = config_.dim();
    std::map<uint64_t, std::vector<float>> sums;
    uint64_t missing = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (rows_.count(ids[i]) == 0) {
        ++missing;
        continue;
      }
      const float* gradient = gradients.data() + i * dim;
      auto [sum, first] = sums.try_emplace(ids[i], gradient, gradient + dim);
      for (uint32_t d = 0; !first && d < dim; ++d) sum->second[d] += gradient[d];
    }
    for (auto& [id, sum] : sums) {
      Row& row = rows_.at(id);
      const RowUpdate update{row.weights.data(), row.state.data(), sum.data()};
      optimizer_->Update({&update, 1}, dim, 1.0f);
    }
    return missing;
  }
  size_t rows() const { return rows_.size(); }
  std::vector<uint64_t> ids() const {
    std::vector<uint64_t> ids;
    for (const auto& [id, row] : rows_) ids.push_back(id);
    return ids;
  }

 private:
  struct Row {
    std::vector<float> weights;
    std::vector<float> state;
  };
  const v1::TableConfig config_;
  const std::unique_ptr<Optimizer> optimizer_;
  const std::unique_ptr<Initializer> initializer_;
  std::map<uint64_t, Row> rows_;
};

}  // namespace tandem::ps::testing

#endif  // TANDEM_TESTS_PS_SERVER_MODEL_TABLE_H_
