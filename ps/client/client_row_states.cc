// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ps/client/client_impl.h"
#include "ps/client/splitter.h"
#include "ps/optimizers/optimizer.h"

namespace tandem::ps {
namespace {

// The states of rows travel in messages of about this size.
constexpr size_t kStateMessageBytes = size_t{4} << 20;

size_t RowsAMessage(size_t row_floats) {
  return std::max<size_t>(1, kStateMessageBytes / (row_floats * sizeof(float) + sizeof(uint64_t)));
}
bool AnyHasMore(absl::Span<const ServerIds> split, size_t first) {
  return std::any_of(split.begin(), split.end(),
                     [first](const ServerIds& server) { return first < server.ids.size(); });
}
// Returns at most `count` elements from `first` on.
template <typename T>
absl::Span<const T> Some(const std::vector<T>& all, size_t first, size_t count) {
  return first < all.size() ? absl::MakeConstSpan(all).subspan(first, count) : absl::Span<const T>();
}

}  // namespace

absl::StatusOr<std::vector<FrequentRow>> ClientImpl::FrequentlyUpdatedRows(const std::string& table,
                                                                           double min_row_staleness,
                                                                           size_t limit) {
  TANDEM_RETURN_IF_ERROR(FindTable(table).status());
  v1::FrequentlyUpdatedRowsRequest request;
  request.set_table(table);
  request.set_min_row_staleness(min_row_staleness);
  request.set_limit(static_cast<uint32_t>(std::min<size_t>(limit, ~uint32_t{0})));
  TANDEM_ASSIGN_OR_RETURN(
      const std::vector<v1::FrequentlyUpdatedRowsResponse> responses,
      CallAll<v1::FrequentlyUpdatedRowsResponse>("FrequentlyUpdatedRows", request, options_.timeout,
                                                 /*idempotent=*/true));
  std::vector<FrequentRow> rows;
  for (const v1::FrequentlyUpdatedRowsResponse& response : responses) {
    for (const v1::FrequentRow& row : response.rows()) {
      rows.push_back({row.id(), row.row_staleness(), row.update_rate()});
    }
  }
  std::sort(rows.begin(), rows.end(), [](const FrequentRow& a, const FrequentRow& b) {
    return a.row_staleness != b.row_staleness ? a.row_staleness > b.row_staleness : a.id < b.id;
  });
  if (rows.size() > limit) rows.resize(limit);
  return rows;
}

absl::StatusOr<RowStates> ClientImpl::ReadRowStates(const std::string& name, absl::Span<const uint64_t> ids) {
  TANDEM_ASSIGN_OR_RETURN(const KnownTable table, FindTable(name));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Optimizer> optimizer,
                          MakeOptimizer(table.config->optimizer()));
  RowStates states;
  states.dim = table.config->dim();
  states.state_floats = static_cast<uint32_t>(optimizer->state_floats(states.dim));
  states.values.resize(ids.size() * states.row_floats());
  states.exists.resize(ids.size());
  std::vector<ServerIds> split;
  SplitByServer(map_, ids, {}, &split);
  const size_t some = RowsAMessage(states.row_floats());
  for (size_t first = 0; AnyHasMore(split, first); first += some) {
    std::vector<std::optional<Bytes>> requests(channels_.size());
    for (size_t s = 0; s < channels_.size(); ++s) {
      const absl::Span<const uint64_t> own = Some(split[s].ids, first, some);
      if (own.empty()) continue;
      v1::ReadRowStatesRequest request;
      request.set_table(name);
      request.mutable_ids()->Add(own.begin(), own.end());
      requests[s] = Bytes(request.SerializeAsString());
    }
    TANDEM_ASSIGN_OR_RETURN(const std::vector<v1::ReadRowStatesResponse> responses,
                            CallEach<v1::ReadRowStatesResponse>("ReadRowStates", std::move(requests),
                                                                options_.timeout, /*idempotent=*/true));
    for (size_t s = 0; s < channels_.size(); ++s) {
      const absl::Span<const uint32_t> positions = Some(split[s].positions, first, some);
      if (positions.empty()) continue;
      const v1::ReadRowStatesResponse& response = responses[s];
      const size_t floats = states.row_floats();
      if (response.dim() != states.dim || response.state_floats() != states.state_floats ||
          response.exists().size() != positions.size() ||
          static_cast<size_t>(response.values_size()) != positions.size() * floats) {
        return absl::DataLossError(absl::StrCat(
            "server ", s, " (", channels_[s]->target(), "): table '", name, "': ", positions.size(),
            " rows of ", states.dim, " + ", states.state_floats, " floats were asked for; the answer has ",
            response.values_size(), " values of rows of ", response.dim(), " + ", response.state_floats()));
      }
      for (size_t i = 0; i < positions.size(); ++i) {
        std::copy_n(response.values().data() + i * floats, floats, states.row(positions[i]));
        states.exists[positions[i]] = response.exists()[i] != 0;
      }
    }
  }
  // While the caller keeps the rows, the servers' ones and copies of them fall behind.
  if (table.cache != nullptr) table.cache->Forget(ids);
  return states;
}

absl::Status ClientImpl::WriteRowStates(absl::Span<const TableRowStates> tables) {
  std::vector<KnownTable> known;
  for (const TableRowStates& rows : tables) {
    TANDEM_ASSIGN_OR_RETURN(KnownTable table, FindTable(rows.table));
    known.push_back(std::move(table));
    const size_t floats = rows.states->row_floats();
    if (rows.states->values.size() == rows.ids.size() * floats) continue;
    return absl::InvalidArgumentError(absl::StrCat("table '", rows.table, "': ", rows.states->values.size(),
                                                   " values for ", rows.ids.size(), " rows of ", floats,
                                                   " floats"));
  }
  // After an error, too: some rows may have been written.
  const absl::Cleanup forget = [&] {
    for (size_t t = 0; t < tables.size(); ++t) {
      if (known[t].cache != nullptr) known[t].cache->Forget(tables[t].ids);
      if (known[t].read_cache != nullptr) known[t].read_cache->Forget(tables[t].ids);
    }
  };
  std::vector<ServerRequest> requests;
  std::vector<PushWindow::Slot> slots;  // of the requests
  size_t bytes = 0;                     // of the requests
  const auto send = [&]() -> absl::Status {
    // The sequence makes it safe to send a request again.
    const absl::Status sent =
        CallMany<v1::WriteRowStatesResponse>("WriteRowStates", std::exchange(requests, {}), options_.timeout,
                                             /*idempotent=*/true)
            .status();
    slots.clear();
    bytes = 0;
    return sent;
  };
  for (const TableRowStates& rows : tables) {
    const size_t floats = rows.states->row_floats();
    std::vector<ServerIds> split;
    SplitByServer(map_, rows.ids, {}, &split);
    const size_t some = RowsAMessage(floats);
    for (size_t first = 0; AnyHasMore(split, first); first += some) {
      // Another slot is only waited for while this call holds none: it might wait for its own.
      absl::StatusOr<PushWindow::Slot> slot = Window()->Take(/*step=*/0, absl::ZeroDuration());
      if (!slot.ok() || bytes >= kStateMessageBytes) {
        if (!requests.empty()) TANDEM_RETURN_IF_ERROR(send());
        if (!slot.ok()) slot = Window()->Take(/*step=*/0, options_.timeout);
        TANDEM_RETURN_IF_ERROR(slot.status());
      }
      for (uint32_t s = 0; s < channels_.size(); ++s) {
        const absl::Span<const uint32_t> positions = Some(split[s].positions, first, some);
        if (positions.empty()) continue;
        v1::WriteRowStatesRequest request;
        request.set_worker(options_.worker);
        request.set_epoch(slot->epoch());
        request.set_sequence(slot->sequence());
        request.set_table(rows.table);
        request.set_dim(rows.states->dim);
        request.set_state_floats(rows.states->state_floats);
        const absl::Span<const uint64_t> own = Some(split[s].ids, first, some);
        request.mutable_ids()->Add(own.begin(), own.end());
        request.mutable_values()->Reserve(static_cast<int>(positions.size() * floats));
        for (const uint32_t position : positions) {
          request.mutable_values()->Add(rows.states->row(position), rows.states->row(position) + floats);
        }
        requests.push_back({.server = s, .bytes = Bytes(request.SerializeAsString())});
        bytes += positions.size() * (floats * sizeof(float) + sizeof(uint64_t));
      }
      slots.push_back(*std::move(slot));
    }
  }
  return requests.empty() ? absl::OkStatus() : send();
}

absl::StatusOr<ScannedRows> ClientImpl::ScanRows(const std::string& name, const ScanPosition& from,
                                                 size_t max_rows) {
  TANDEM_ASSIGN_OR_RETURN(const KnownTable table, FindTable(name));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Optimizer> optimizer,
                          MakeOptimizer(table.config->optimizer()));
  ScannedRows scanned;
  scanned.next = from;
  RowStates& states = scanned.states;
  states.dim = table.config->dim();
  states.state_floats = static_cast<uint32_t>(optimizer->state_floats(states.dim));
  const size_t wanted = std::clamp<size_t>(max_rows, 1, RowsAMessage(states.row_floats()));
  while (scanned.ids.size() < wanted && scanned.next.bucket < map_.num_buckets()) {
    const uint32_t s = map_.OwnerOfBucket(scanned.next.bucket);
    v1::ScanRowsRequest request;
    request.set_table(name);
    request.set_bucket(scanned.next.bucket);
    request.set_first_id(scanned.next.first_id);
    request.set_limit(static_cast<uint32_t>(wanted - scanned.ids.size()));
    std::vector<std::optional<Bytes>> requests(channels_.size());
    requests[s] = Bytes(request.SerializeAsString());
    TANDEM_ASSIGN_OR_RETURN(const std::vector<v1::ScanRowsResponse> responses,
                            CallEach<v1::ScanRowsResponse>("ScanRows", std::move(requests), options_.timeout,
                                                           /*idempotent=*/true));
    const v1::ScanRowsResponse& response = responses[s];
    const bool in_order = std::is_sorted(response.ids().begin(), response.ids().end()) &&
                          (response.ids().empty() || response.ids(0) >= scanned.next.first_id);
    if (response.dim() != states.dim || response.state_floats() != states.state_floats || !in_order ||
        static_cast<size_t>(response.values_size()) != response.ids_size() * states.row_floats() ||
        (response.more() && response.ids().empty())) {
      return absl::DataLossError(absl::StrCat(
          "server ", s, " (", channels_[s]->target(), "): table '", name,
          "': the answer to a scan of bucket ", scanned.next.bucket, " has ", response.ids_size(),
          " rows of ", response.dim(), " + ", response.state_floats(), " floats and ", response.values_size(),
          " values, expected rows of ", states.dim, " + ", states.state_floats, " in ascending order of id"));
    }
    scanned.ids.insert(scanned.ids.end(), response.ids().begin(), response.ids().end());
    states.values.insert(states.values.end(), response.values().begin(), response.values().end());
    if (response.more() && scanned.ids.back() != ~uint64_t{0}) {
      scanned.next.first_id = scanned.ids.back() + 1;
    } else {
      scanned.next = {.bucket = scanned.next.bucket + 1};
    }
  }
  states.exists.assign(scanned.ids.size(), 1);
  scanned.at_end = scanned.next.bucket >= map_.num_buckets();
  return scanned;
}

}  // namespace tandem::ps
