// SPDX-License-Identifier: Apache-2.0
// Tables that count how often ids occur in pushes, through clients and servers, compared with a map.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/client/client.h"
#include "ps/shard_map.h"
#include "ps/storage/table_storage.h"
#include "ps/table.h"
#include "tests/testing/ps_cluster.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using tandem::testing::PsCluster;
using tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr uint32_t kPushers = 2;
constexpr uint32_t kUsedBuckets = 4;  // that are in use

// The half-life is so long that no occurrence loses weight.
v1::TableConfig CountedTable(const v1::UpdateMode& mode) {
  v1::TableConfig config = EmbeddingTable("t", 1, Sgd(1.0f), Zeros());
  *config.mutable_eviction() = EvictLfu(/*half_life=*/uint64_t{1} << 31);
  config.set_byte_budget(256 << 10);
  config.set_num_workers(kPushers);
  *config.mutable_update_mode() = mode;
  return config;
}

// A table that keeps in each bucket the rows whose ids occurred most often.
class OccurrenceModel {
 public:
  explicit OccurrenceModel(const v1::TableConfig& config) {
    const auto table = TableStorage::Create(config, kDefaultBuckets, [](uint32_t) { return true; });
    quota_ = table->Statistics().budget_rows / kDefaultBuckets;
  }
  size_t quota() const { return quota_; }
  void Pull(const std::vector<uint64_t>& ids) {
    for (const uint64_t id : ids) BucketOfId(id).try_emplace(id, Row{.update = updates_});
  }
  void Update(const std::vector<uint64_t>& ids) {
    ++updates_;
    for (const uint64_t id : ids) {
      const auto row = BucketOfId(id).find(id);
      if (row == BucketOfId(id).end()) continue;
      ++row->second.occurrences;
      row->second.update = updates_;
    }
    for (const uint64_t id : ids) {
      std::map<uint64_t, Row>& rows = BucketOfId(id);
      if (rows.size() <= quota_) continue;
      std::vector<std::tuple<uint64_t, uint64_t, uint64_t>> order;
      for (const auto& [other, row] : rows) order.emplace_back(row.occurrences, row.update, other);
      std::sort(order.begin(), order.end());
      order.resize(order.size() - (quota_ - quota_ / 16));
      for (const auto& [occurrences, update, other] : order) rows.erase(other);
      evicted_ += order.size();
    }
  }
  // Each occurrence adds 1 to the row.
  float Value(uint64_t id) {
    const auto row = BucketOfId(id).find(id);
    return row == BucketOfId(id).end() ? 0.0f : static_cast<float>(row->second.occurrences);
  }
  size_t evicted() const { return evicted_; }

 private:
  struct Row {
    uint64_t occurrences = 0;
    uint64_t update = 0;
  };
  std::map<uint64_t, Row>& BucketOfId(uint64_t id) { return buckets_[BucketOf(id, kDefaultBuckets)]; }

  size_t quota_ = 0;
  std::map<uint32_t, std::map<uint64_t, Row>> buckets_;
  uint64_t updates_ = 0;
  size_t evicted_ = 0;
};

// The ways to push a list of ids with a gradient of -1 for each.
enum class PushWay { kRepeats, kDistinct, kRepeatsOnTheWire, kBags, kTwoParts };

absl::Status PushInWay(Client& client, uint64_t step, const std::vector<uint64_t>& ids, PushWay way) {
  std::vector<float> gradients(ids.size(), -1.0f);
  std::vector<PushPart> parts = {{.table = "t", .ids = ids, .gradients = gradients.data()}};
  std::vector<uint64_t> distinct;
  std::vector<uint32_t> occurrences, offsets;
  switch (way) {
    case PushWay::kRepeats:
      break;
    case PushWay::kDistinct: {
      std::map<uint64_t, uint32_t> counts;
      for (const uint64_t id : ids) ++counts[id];
      gradients.clear();
      for (const auto& [id, count] : counts) {
        distinct.push_back(id);
        occurrences.push_back(count);
        gradients.push_back(-static_cast<float>(count));
      }
      parts[0].ids = distinct;
      parts[0].gradients = gradients.data();
      parts[0].occurrences = occurrences;
      parts[0].repeats = false;
      break;
    }
    case PushWay::kRepeatsOnTheWire:
      parts[0].repeats = false;
      break;
    case PushWay::kBags:
      for (uint32_t end = 0; end < ids.size(); end += 4) offsets.push_back(end);
      offsets.push_back(static_cast<uint32_t>(ids.size()));
      gradients.resize(offsets.size() - 1);
      parts[0].pooling = v1::SUM;
      parts[0].offsets = offsets;
      break;
    case PushWay::kTwoParts:
      parts.push_back(parts[0]);
      parts[0].ids = parts[0].ids.first(ids.size() / 3);
      parts[1].ids = parts[1].ids.subspan(ids.size() / 3);
      parts[1].gradients += ids.size() / 3;
      break;
  }
  return client.Push(step, std::move(parts));
}

struct OccurrenceCase {
  std::string name;
  uint32_t servers;
  v1::UpdateMode mode;
  WireOptions wire;
};

class OccurrencesTest : public ::testing::TestWithParam<OccurrenceCase> {};
INSTANTIATE_TEST_SUITE_P(
    All, OccurrencesTest,
    ::testing::Values(
        OccurrenceCase{"Async", 1, Async(), {}}, OccurrenceCase{"Sync", 2, Sync(), {}},
        OccurrenceCase{"Gba", 2, Gba(1000, 2), {}},
        OccurrenceCase{"ErrorFeedback", 2, Async(), {.push_values = v1::VALUES_F16, .error_feedback = true}}),
    [](const auto& info) { return info.param.name; });

TEST_P(OccurrencesTest, TheIdsThatOccurMostOftenStayHoweverTheyArePushed) {
  PsCluster cluster(GetParam().servers);
  const v1::TableConfig config = CountedTable(GetParam().mode);
  const bool merges = GetParam().mode.kind() != v1::UpdateMode::ASYNC;
  OccurrenceModel model(config);
  std::vector<uint64_t> known;
  for (uint64_t id = 0; known.size() < kUsedBuckets * 3 * model.quota(); ++id) {
    if (BucketOf(id, kDefaultBuckets) < kUsedBuckets) known.push_back(id);
  }
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t w = 0; w < kPushers; ++w) {
    TANDEM_ASSERT_OK_AND_ASSIGN(clients.emplace_back(), cluster.Connect(w));
    TANDEM_ASSERT_OK(clients[w]->CreateTable(config));
    TANDEM_ASSERT_OK(clients[w]->SetWire("t", GetParam().wire));
    EXPECT_TRUE(clients[w]->CountsOccurrences("t"));
  }
  CounterRandom random(/*seed=*/6, 0);
  constexpr uint64_t kSteps = 60;
  for (uint64_t step = 0; step < kSteps; ++step) {
    std::vector<std::vector<uint64_t>> ids(kPushers);
    for (uint32_t w = 0; w < kPushers; ++w) {
      // Few distinct ids, of which some occur up to 40 times.
      for (int i = 0; i < 12; ++i) {
        const uint64_t id = known[random.Below(1 + random.Below(known.size()))];
        ids[w].insert(ids[w].end(), 1 + random.Below(random.Below(8) == 0 ? 40 : 2), id);
      }
      std::vector<float> rows(ids[w].size());
      PullPart pull = {.table = "t", .ids = ids[w], .rows = rows.data(), .repeats = true};
      TANDEM_ASSERT_OK(clients[w]->Pull(step, false, {pull}));
      model.Pull(ids[w]);
    }
    std::vector<uint64_t> merged;
    for (uint32_t w = 0; w < kPushers; ++w) {
      TANDEM_ASSERT_OK(PushInWay(*clients[w], step, ids[w], static_cast<PushWay>(random.Below(5))));
      merged.insert(merged.end(), ids[w].begin(), ids[w].end());
      if (!merges) model.Update(ids[w]);
    }
    if (merges) model.Update(merged);
  }
  std::vector<float> rows(known.size()), expected;
  PullPart pull = {.table = "t", .ids = known, .rows = rows.data()};
  TANDEM_ASSERT_OK(clients[0]->Pull(kSteps, true, {pull}));
  for (const uint64_t id : known) expected.push_back(model.Value(id));
  EXPECT_EQ(rows, expected);
  EXPECT_GT(model.evicted(), 20u);
}

// The cache sends one gradient for three pushes.
TEST(OccurrencesTest, ACacheThatDefersGradientsSendsTheOccurrencesOfAll) {
  PsCluster cluster(1);
  const v1::TableConfig config = CountedTable(Async());
  const size_t quota = OccurrenceModel(config).quota();
  std::vector<uint64_t> ids;  // of one bucket
  for (uint64_t id = 0; ids.size() < 2 * quota; ++id) {
    if (BucketOf(id, kDefaultBuckets) == 0) ids.push_back(id);
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto client, cluster.Connect());
  TANDEM_ASSERT_OK(client->CreateTable(config));
  TANDEM_ASSERT_OK(client->SetCache("t", {.bytes = 1 << 20, .push_bound = 3}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto other, cluster.Connect(1));
  TANDEM_ASSERT_OK(other->CreateTable(config));
  const std::vector<float> gradients(ids.size(), -1.0f);
  std::vector<float> rows(ids.size());
  const std::vector<uint64_t> hot = {ids[0]};
  // Rows of version 0 are not cached.
  TANDEM_ASSERT_OK(other->Push(0, {{.table = "t", .ids = {}, .gradients = nullptr}}));
  const std::vector<uint32_t> five = {5};
  for (uint64_t step = 0; step < 3; ++step) {
    TANDEM_ASSERT_OK(client->Pull(step, false, {{.table = "t", .ids = hot, .rows = rows.data()}}));
    TANDEM_ASSERT_OK(client->Push(
        step,
        {{.table = "t", .ids = hot, .gradients = gradients.data(), .repeats = false, .occurrences = five}}));
  }
  // 14 updates of each other id, fewer than the 15 occurrences of the first one, which came in one update.
  const auto others = absl::MakeConstSpan(ids).subspan(1);
  for (uint64_t step = 1; step <= 14; ++step) {
    TANDEM_ASSERT_OK(other->Pull(step, false, {{.table = "t", .ids = others, .rows = rows.data()}}));
    TANDEM_ASSERT_OK(other->Push(step, {{.table = "t", .ids = others, .gradients = gradients.data()}}));
  }
  TANDEM_ASSERT_OK(other->Pull(15, true, {{.table = "t", .ids = hot, .rows = rows.data()}}));
  EXPECT_EQ(rows[0], 3.0f);
}

TEST(OccurrencesTest, NumbersThatDoNotFitAreRefused) {
  PsCluster cluster(1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto client, cluster.Connect());
  EXPECT_FALSE(client->CountsOccurrences("t"));
  TANDEM_ASSERT_OK(client->CreateTable(CountedTable(Async())));
  const std::vector<uint64_t> ids = {1, 2};
  const std::vector<float> gradients = {1, 1};
  const auto push = [&](const std::vector<uint32_t>& occurrences) {
    return client->Push(
        0, {{.table = "t", .ids = ids, .gradients = gradients.data(), .occurrences = occurrences}});
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(push({1}), StatusIs(kInvalid, HasSubstr("there are 1 numbers of occurrences for 2 ids")));
  EXPECT_THAT(push({1, 0}), StatusIs(kInvalid, HasSubstr("id 2 has 0 occurrences")));
  TANDEM_EXPECT_OK(push({1, 2}));
}

}  // namespace
}  // namespace tandem::ps
