// SPDX-License-Identifier: Apache-2.0
#include "ps/replicated/client_row_home.h"

#include "base/status.h"

namespace tandem::ps {

absl::StatusOr<std::vector<HotRow>> ClientRowHome::FindHot(const std::string& table, double min_staleness,
                                                           uint64_t limit) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<FrequentRow> frequent,
                          client_->FrequentlyUpdatedRows(table, min_staleness, limit));
  std::vector<HotRow> rows;
  rows.reserve(frequent.size());
  for (const FrequentRow& row : frequent) rows.push_back({.id = row.id, .staleness = row.row_staleness});
  return rows;
}

absl::StatusOr<double> ClientRowHome::Delay(const std::string& table) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<FrequentRow> hottest,
                          client_->FrequentlyUpdatedRows(table, /*min_row_staleness=*/0, /*limit=*/1));
  if (!hottest.empty() && hottest[0].update_rate > 0) {
    return hottest[0].row_staleness / hottest[0].update_rate;
  }
  // The servers have measured nothing yet.
  TANDEM_ASSIGN_OR_RETURN(const std::vector<v1::TableInfo> tables, client_->ListTables());
  for (const v1::TableInfo& info : tables) {
    if (info.config().name() == table) return info.statistics().staleness_mean();
  }
  return absl::NotFoundError("the servers have no table '" + table + "'");
}

absl::StatusOr<MovedRows> ClientRowHome::Read(const std::string& table, absl::Span<const uint64_t> ids) {
  TANDEM_ASSIGN_OR_RETURN(const RowStates states, client_->ReadRowStates(table, ids));
  MovedRows rows;
  rows.ids.assign(ids.begin(), ids.end());
  rows.weights.reserve(ids.size() * states.dim);
  rows.state.reserve(ids.size() * states.state_floats);
  for (size_t i = 0; i < ids.size(); ++i) {
    const float* const row = states.row(i);
    rows.weights.insert(rows.weights.end(), row, row + states.dim);
    rows.state.insert(rows.state.end(), row + states.dim, row + states.row_floats());
  }
  return rows;
}

absl::Status ClientRowHome::Write(const std::map<std::string, MovedRows>& rows) {
  std::vector<RowStates> states;
  states.reserve(rows.size());  // elements do not move
  std::vector<TableRowStates> tables;
  for (const auto& [table, moved] : rows) {
    if (moved.ids.empty()) continue;
    RowStates& to = states.emplace_back();
    to.dim = static_cast<uint32_t>(moved.weights.size() / moved.ids.size());
    to.state_floats = static_cast<uint32_t>(moved.state.size() / moved.ids.size());
    to.values.reserve(moved.weights.size() + moved.state.size());
    for (size_t i = 0; i < moved.ids.size(); ++i) {
      const float* const weights = moved.weights.data() + i * to.dim;
      const float* const state = moved.state.data() + i * to.state_floats;
      to.values.insert(to.values.end(), weights, weights + to.dim);
      to.values.insert(to.values.end(), state, state + to.state_floats);
    }
    tables.push_back({.table = table, .ids = moved.ids, .states = &to});
  }
  return client_->WriteRowStates(tables);
}

}  // namespace tandem::ps
