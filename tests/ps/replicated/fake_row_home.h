// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_REPLICATED_FAKE_ROW_HOME_H_
#define TANDEM_TESTS_PS_REPLICATED_FAKE_ROW_HOME_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "ps/optimizers/optimizer.h"
#include "ps/policies/initializer.h"
#include "ps/replicated/replicated_tables.h"

namespace tandem::testing {

// Holds the rows of one table in memory, as the servers would. Shared by the workers of a test.
class FakeRows {
 public:
  explicit FakeRows(const ps::v1::TableConfig& config)
      : config_(config),
        optimizer_(*ps::MakeOptimizer(config.optimizer())),
        initializer_(*ps::MakeInitializer(config.initializer())) {}

  struct Row {
    std::vector<float> weights, state;
    bool operator==(const Row&) const = default;
  };
  Row Get(uint64_t id) {
    absl::MutexLock lock(&mutex_);
    return GetLocked(id);
  }
  void Set(uint64_t id, Row row) {
    absl::MutexLock lock(&mutex_);
    rows_[id] = std::move(row);
  }

  // The modes to which the table was set, in this order.
  std::vector<ps::v1::UpdateMode::Kind> modes() const {
    absl::MutexLock lock(&mutex_);
    return modes_;
  }
  void SetMode(const ps::v1::UpdateMode& mode) {
    absl::MutexLock lock(&mutex_);
    modes_.push_back(mode.kind());
  }

  std::vector<ps::HotRow> hot;  // what FindHot returns
  double delay = 8;
  absl::Status error;       // of Read, if not OK
  absl::Status mode_error;  // of RowHome::SetMode, if not OK

 private:
  Row GetLocked(uint64_t id) {
    const auto found = rows_.find(id);
    if (found != rows_.end()) return found->second;
    Row row;
    const size_t dim = config_.dim();
    row.weights.resize(dim);
    row.state.resize(optimizer_->state_floats(dim));
    initializer_->Fill(config_.seed(), id, row.weights.data(), dim);
    optimizer_->InitState(row.weights.data(), row.state.data(), dim);
    return rows_[id] = row;
  }

  const ps::v1::TableConfig config_;
  const std::unique_ptr<ps::Optimizer> optimizer_;
  const std::unique_ptr<ps::Initializer> initializer_;
  mutable absl::Mutex mutex_;
  std::map<uint64_t, Row> rows_;
  std::vector<ps::v1::UpdateMode::Kind> modes_;
};

// Serves the tables of a map.
class FakeRowHome : public ps::RowHome {
 public:
  explicit FakeRowHome(std::map<std::string, FakeRows*> tables) : tables_(std::move(tables)) {}
  absl::StatusOr<std::vector<ps::HotRow>> FindHot(const std::string& table, double, uint64_t) override {
    return tables_.at(table)->hot;
  }
  absl::StatusOr<double> Delay(const std::string& table) override { return tables_.at(table)->delay; }
  absl::StatusOr<ps::MovedRows> Read(const std::string& table, absl::Span<const uint64_t> ids) override {
    if (!tables_.at(table)->error.ok()) return tables_.at(table)->error;
    ps::MovedRows rows;
    rows.ids.assign(ids.begin(), ids.end());
    for (const uint64_t id : ids) {
      const FakeRows::Row row = tables_.at(table)->Get(id);
      rows.weights.insert(rows.weights.end(), row.weights.begin(), row.weights.end());
      rows.state.insert(rows.state.end(), row.state.begin(), row.state.end());
    }
    return rows;
  }
  absl::Status Write(const std::map<std::string, ps::MovedRows>& rows) override {
    for (const auto& [table, of_table] : rows) Write(table, of_table);
    return absl::OkStatus();
  }
  absl::Status Flush(const std::string&) override { return absl::OkStatus(); }
  absl::Status SetMode(const std::string& table, const ps::v1::UpdateMode& mode) override {
    if (!tables_.at(table)->mode_error.ok()) return tables_.at(table)->mode_error;
    tables_.at(table)->SetMode(mode);
    return absl::OkStatus();
  }

 private:
  void Write(const std::string& table, const ps::MovedRows& rows) {
    const size_t dim = rows.weights.size() / rows.ids.size(), state = rows.state.size() / rows.ids.size();
    for (size_t i = 0; i < rows.ids.size(); ++i) {
      const auto w = rows.weights.begin() + static_cast<ptrdiff_t>(i * dim);
      const auto s = rows.state.begin() + static_cast<ptrdiff_t>(i * state);
      tables_.at(table)->Set(rows.ids[i],
                             {{w, w + static_cast<ptrdiff_t>(dim)}, {s, s + static_cast<ptrdiff_t>(state)}});
    }
  }

  std::map<std::string, FakeRows*> tables_;
};

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_PS_REPLICATED_FAKE_ROW_HOME_H_
