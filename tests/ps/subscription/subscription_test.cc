// SPDX-License-Identifier: Apache-2.0
#include "ps/subscription/subscription.h"

#include <atomic>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/client/client.h"
#include "ps/table.h"
#include "tests/testing/ps_cluster.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::PsCluster;
using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr uint32_t kDim = 4;
constexpr absl::Duration kLimit = absl::Seconds(60);

using TableRows = std::map<uint64_t, std::vector<float>>;

// Applies changes to a copy of the tables.
struct TableCopy {
  void Apply(const ChangeBatch& batch) {
    for (const RowChanges& change : batch.changes) {
      auto& bucket = buckets[{change.table, change.bucket}];
      if (change.whole) bucket.clear();
      for (const uint64_t id : change.removed) bucket.erase(id);
      for (size_t i = 0; i < change.ids.size(); ++i) {
        bucket[change.ids[i]].assign(change.rows.begin() + i * change.dim,
                                     change.rows.begin() + (i + 1) * change.dim);
      }
    }
  }
  TableRows Rows(const std::string& table) const {
    TableRows rows;
    for (const auto& [key, bucket] : buckets) {
      if (key.first == table) rows.insert(bucket.begin(), bucket.end());
    }
    return rows;
  }
  std::map<std::pair<std::string, uint32_t>, TableRows> buckets;
};

class SubscriptionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TANDEM_ASSERT_OK_AND_ASSIGN(client_, cluster_.Connect());
    v1::TableConfig config = EmbeddingTable("user", kDim, Adagrad(0.1f), Uniform(-1, 1));
    *config.mutable_update_mode() = Async();
    TANDEM_ASSERT_OK(client_->CreateTable(config));
  }
  // Updates some rows at random.
  absl::Status Train(int rows) {
    CounterRandom random(9, step_);
    std::set<uint64_t> ids;
    for (int i = 0; i < rows; ++i) ids.insert(random.Below(1000));
    const std::vector<uint64_t> some(ids.begin(), ids.end());
    std::vector<float> values(some.size() * kDim);
    TANDEM_RETURN_IF_ERROR(
        client_->Pull(step_, false, {{.table = "user", .ids = some, .rows = values.data()}}).status());
    for (float& value : values) value = static_cast<float>(random.Normal());
    return client_->Push(step_++, {{.table = "user", .ids = some, .gradients = values.data()}});
  }
  TableRows Scan() {
    TableRows rows;
    for (ScanPosition at;;) {
      const absl::StatusOr<ScannedRows> scanned = client_->ScanRows("user", at, 1000);
      TANDEM_CHECK(scanned.ok());
      for (size_t i = 0; i < scanned->ids.size(); ++i) {
        const float* const row = scanned->states.row(i);
        rows[scanned->ids[i]].assign(row, row + kDim);
      }
      if (scanned->at_end) return rows;
      at = scanned->next;
    }
  }
  // Reads until the copy is as the servers are.
  void CatchUp(Subscription& subscription, TableCopy* copy) {
    const TableRows wanted = Scan();
    while (copy->Rows("user") != wanted) {
      TANDEM_ASSERT_OK_AND_ASSIGN(const ChangeBatch batch, subscription.Next(kLimit));
      copy->Apply(batch);
    }
  }

  PsCluster cluster_{3};
  std::unique_ptr<Client> client_;
  uint64_t step_ = 0;
};

TEST_F(SubscriptionTest, FollowsAllServers) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto subscription,
                              Subscription::Open(cluster_.Channels(), {.max_bytes = 500}));
  TableCopy copy;
  for (int round = 0; round < 20; ++round) {
    TANDEM_ASSERT_OK(Train(50));
    CatchUp(*subscription, &copy);
  }
  EXPECT_GT(copy.Rows("user").size(), 500);
}

TEST_F(SubscriptionTest, MissesNothingWhenCallsFail) {
  std::atomic<uint64_t> calls{0};
  const rpc::FaultInjector injector = [&calls](absl::string_view, int64_t) {
    using Kind = rpc::Fault::Kind;
    const uint64_t call = calls++;
    return rpc::Fault{.kind = call % 3 == 0   ? Kind::kFailBefore
                              : call % 3 == 1 ? Kind::kFailAfter
                                              : Kind::kNone};
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto subscription,
                              Subscription::Open(cluster_.Channels(injector), {.max_bytes = 500}));
  TableCopy copy;
  for (int round = 0; round < 10; ++round) {
    TANDEM_ASSERT_OK(Train(50));
    CatchUp(*subscription, &copy);
  }
}

TEST_F(SubscriptionTest, GoesOnWhereAnEarlierOneWas) {
  TANDEM_ASSERT_OK(Train(500));
  TableCopy copy;
  std::string position;
  {
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto subscription, Subscription::Open(cluster_.Channels(), {}));
    while (!subscription->caught_up()) {
      TANDEM_ASSERT_OK_AND_ASSIGN(const ChangeBatch batch, subscription->Next(kLimit));
      copy.Apply(batch);
    }
    position = subscription->position();
  }
  EXPECT_EQ(copy.Rows("user"), Scan());
  TANDEM_ASSERT_OK(Train(1));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto subscription,
                              Subscription::Open(cluster_.Channels(), {.position = position}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const ChangeBatch batch, subscription->Next(kLimit));
  for (const RowChanges& change : batch.changes) EXPECT_FALSE(change.whole);
  copy.Apply(batch);
  CatchUp(*subscription, &copy);
}

TEST_F(SubscriptionTest, SaysThatNothingHasChanged) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto subscription, Subscription::Open(cluster_.Channels(), {}));
  while (!subscription->caught_up()) TANDEM_ASSERT_OK(subscription->Next(kLimit).status());
  EXPECT_THAT(subscription->Next(absl::Milliseconds(20)).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("nothing has changed for 20ms")));
}

TEST_F(SubscriptionTest, EndsWhenItIsCancelled) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto subscription, Subscription::Open(cluster_.Channels(), {}));
  while (!subscription->caught_up()) TANDEM_ASSERT_OK(subscription->Next(kLimit).status());
  std::thread canceller([&] { subscription->Cancel(); });
  EXPECT_THAT(subscription->Next(kLimit).status(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("cancelled")));
  canceller.join();
}

TEST_F(SubscriptionTest, RefusesThePositionOfOtherServers) {
  PsCluster other(2);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto subscription, Subscription::Open(other.Channels(), {}));
  EXPECT_THAT(Subscription::Open(cluster_.Channels(), {.position = subscription->position()}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("3 servers")));
}

}  // namespace
}  // namespace tandem::ps
