// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_SERVER_CLUSTER_H_
#define TANDEM_TESTS_PS_SERVER_CLUSTER_H_

// Several servers, and the minimum that a client must do: split ids by owner and put rows back in order.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ps/shard_map.h"
#include "tests/ps/server/driver.h"

namespace tandem::ps::testing {

class Cluster {
 public:
  explicit Cluster(uint32_t servers, ParameterServerOptions options = {})
      : map_(ShardMap::Even(servers, options.num_buckets)) {
    for (uint32_t s = 0; s < servers; ++s) {
      options.index = s;
      options.num_servers = servers;
      drivers_.push_back(std::make_unique<Driver>(options));
    }
  }
  size_t size() const { return drivers_.size(); }
  Driver& server(size_t s) { return *drivers_[s]; }

  absl::Status CreateTable(const v1::TableConfig& config) {
    for (auto& driver : drivers_) TANDEM_RETURN_IF_ERROR(driver->CreateTable(config));
    return absl::OkStatus();
  }
  // A pull of one table from all servers that is in flight.
  struct PendingPull {
    std::vector<std::shared_ptr<TestCall>> calls;
    std::vector<std::vector<size_t>> positions;  // [server]: the positions of its ids among all ids
    size_t ids = 0;
    bool answered() const {
      return std::all_of(calls.begin(), calls.end(), [](const auto& call) { return call->answered(); });
    }
  };
  PendingPull StartPull(uint32_t worker, uint64_t step, const std::string& table,
                        const std::vector<uint64_t>& ids, bool read_only = false) {
    PendingPull pull;
    pull.ids = ids.size();
    pull.positions.resize(size());
    std::vector<std::vector<uint64_t>> split(size());
    for (size_t i = 0; i < ids.size(); ++i) {
      split[map_.OwnerOf(ids[i])].push_back(ids[i]);
      pull.positions[map_.OwnerOf(ids[i])].push_back(i);
    }
    for (size_t s = 0; s < size(); ++s) {
      pull.calls.push_back(drivers_[s]->StartPull(worker, step, {{table, split[s]}}, read_only));
    }
    return pull;
  }
  // Blocks until all servers have answered. Returns the rows [ids x dim].
  absl::StatusOr<std::vector<float>> Finish(const PendingPull& pull, uint32_t dim) {
    std::vector<float> rows(pull.ids * dim);
    for (size_t s = 0; s < size(); ++s) {
      TANDEM_ASSIGN_OR_RETURN(const Rows part, ParseRows(pull.calls[s]->Wait()));
      for (size_t i = 0; i < pull.positions[s].size(); ++i) {
        std::copy_n(part.slices[0].data() + i * dim, dim, rows.data() + pull.positions[s][i] * dim);
      }
    }
    return rows;
  }
  absl::StatusOr<std::vector<float>> Pull(uint32_t worker, uint64_t step, const std::string& table,
                                          uint32_t dim, const std::vector<uint64_t>& ids,
                                          bool read_only = false) {
    return Finish(StartPull(worker, step, table, ids, read_only), dim);
  }
  // Returns the number of gradients without a row.
  absl::StatusOr<uint64_t> Push(const PushTag& tag, const PushOf& push) {
    std::vector<PushOf> split(size(), PushOf{.table = push.table, .dim = push.dim});
    for (size_t i = 0; i < push.ids.size(); ++i) {
      PushOf& part = split[map_.OwnerOf(push.ids[i])];
      part.ids.push_back(push.ids[i]);
      part.gradients.insert(part.gradients.end(), push.gradients.begin() + i * push.dim,
                            push.gradients.begin() + (i + 1) * push.dim);
    }
    uint64_t missing = 0;
    for (size_t s = 0; s < size(); ++s) {
      TANDEM_ASSIGN_OR_RETURN(const v1::PushResponse response, drivers_[s]->Push(tag, {split[s]}));
      missing += response.missing_rows();
    }
    return missing;
  }

 private:
  const ShardMap map_;
  std::vector<std::unique_ptr<Driver>> drivers_;
};

}  // namespace tandem::ps::testing

#endif  // TANDEM_TESTS_PS_SERVER_CLUSTER_H_
