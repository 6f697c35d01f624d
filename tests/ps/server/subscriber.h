// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_SERVER_SUBSCRIBER_H_
#define TANDEM_TESTS_PS_SERVER_SUBSCRIBER_H_

// A subscriber of one server (proto/tandem/v1/subscriptions.proto) that keeps a copy of the rows.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "gtest/gtest.h"
#include "ps/wire/value_codec.h"
#include "tandem/v1/subscriptions.pb.h"
#include "tests/ps/server/driver.h"

namespace tandem::ps::testing {

// A subscriber of one server that keeps the rows in a map.
class Subscriber {
 public:
  explicit Subscriber(Driver* server) : server_(*server) {}

  std::shared_ptr<TestCall> Start(uint32_t wait_ms = 0, absl::Time deadline = absl::InfiniteFuture()) {
    v1::GetChangesRequest request;
    request.set_position(position);
    request.set_max_bytes(max_bytes);
    request.set_wait_ms(wait_ms);
    *request.mutable_tables() = {tables.begin(), tables.end()};
    return server_.StartChanges(request, deadline);
  }
  absl::StatusOr<v1::GetChangesResponse> Finish(TestCall& call) {
    TANDEM_ASSIGN_OR_RETURN(const Bytes bytes, call.Wait());
    v1::GetChangesResponse response;
    TANDEM_CHECK(response.ParseFromString(bytes.Flatten()));
    for (const v1::ChangedRows& change : response.changes()) Apply(change);
    position = response.position();
    return response;
  }
  absl::StatusOr<v1::GetChangesResponse> Next(uint32_t wait_ms = 0) { return Finish(*Start(wait_ms)); }
  // Reads to the end of a pass. Returns the number of rows and removed ids that it gave.
  absl::StatusOr<size_t> CatchUp() {
    size_t changes = 0;
    while (true) {
      TANDEM_ASSIGN_OR_RETURN(const v1::GetChangesResponse response, Next());
      for (const v1::ChangedRows& one : response.changes()) changes += one.ids_size() + one.removed_size();
      if (response.complete()) return changes;
    }
  }

  std::map<uint64_t, std::vector<float>>& rows(const std::string& table) { return rows_[table]; }

  std::vector<std::string> tables;
  std::string position;
  uint32_t max_bytes = 0;

 private:
  void Apply(const v1::ChangedRows& change) {
    auto& rows = rows_[change.table()];
    auto& buckets = buckets_[change.table()];
    if (change.whole()) {
      std::erase_if(rows, [&](const auto& row) { return buckets[row.first] == change.bucket(); });
    }
    for (const uint64_t id : change.removed()) rows.erase(id);
    std::vector<float> values(change.ids_size() * change.dim());
    ASSERT_EQ(change.rows().size(), change.ids_size() * RowBytes(change.values(), change.dim()));
    DecodeRows(change.values(), change.rows().data(), nullptr, change.ids_size(), change.dim(),
               values.data());
    for (int i = 0; i < change.ids_size(); ++i) {
      const float* const row = values.data() + i * change.dim();
      rows[change.ids(i)].assign(row, row + change.dim());
      buckets[change.ids(i)] = change.bucket();
    }
  }

  Driver& server_;
  std::map<std::string, std::map<uint64_t, std::vector<float>>> rows_;
  std::map<std::string, std::map<uint64_t, uint32_t>> buckets_;
};

// Returns the rows of a table that the server has.
inline std::map<uint64_t, std::vector<float>> RowsOf(Driver& server, const std::string& table) {
  std::map<uint64_t, std::vector<float>> rows;
  for (uint32_t bucket = 0; bucket < server.options().num_buckets; ++bucket) {
    v1::ScanRowsRequest request;
    request.set_table(table);
    request.set_bucket(bucket);
    const auto scanned = server.Call<v1::ScanRowsResponse>("ScanRows", request);
    TANDEM_CHECK(scanned.ok() && !scanned->more());
    const uint32_t floats = scanned->dim() + scanned->state_floats();
    for (int i = 0; i < scanned->ids_size(); ++i) {
      const float* const row = scanned->values().data() + i * floats;
      rows[scanned->ids(i)].assign(row, row + scanned->dim());
    }
  }
  return rows;
}

}  // namespace tandem::ps::testing

#endif  // TANDEM_TESTS_PS_SERVER_SUBSCRIBER_H_
