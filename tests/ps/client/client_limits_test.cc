// SPDX-License-Identifier: Apache-2.0
// The memory limit of a worker's calls: ClientOptions::max_bytes_in_flight.

#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/client/client.h"
#include "ps/table.h"
#include "tests/testing/ps_cluster.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

constexpr uint32_t kDim = 8;
constexpr size_t kIds = 100;
constexpr uint64_t kCallBytes = kIds * (sizeof(uint64_t) + kDim * sizeof(float));

// A pull of step 1 waits on the server until both workers have pushed step 0. So a test can decide how long a
// call is under way.
class ClientLimitsTest : public ::testing::Test {
 protected:
  std::unique_ptr<Client> Connect(uint32_t worker, WhenFull when_full, rpc::FaultInjector injector = nullptr,
                                  absl::Duration timeout = absl::Seconds(60)) {
    absl::StatusOr<std::unique_ptr<Client>> client =
        Client::Connect(cluster_.Channels(std::move(injector)), {.worker = worker,
                                                                 .timeout = timeout,
                                                                 .max_bytes_in_flight = 2 * kCallBytes,
                                                                 .when_full = when_full});
    TANDEM_EXPECT_OK(client);
    v1::TableConfig table = EmbeddingTable("t", kDim, Sgd(0.1f), Zeros());
    table.set_num_workers(2);
    *table.mutable_update_mode() = Sync();
    TANDEM_EXPECT_OK((*client)->CreateTable(table));
    return *std::move(client);
  }
  // Starts a pull of step 1.
  void Start(Client* client, absl::StatusOr<PullVersions>* result, absl::Notification* done) {
    rows_.push_back(std::vector<float>(kIds * kDim));
    client->PullAsync(/*step=*/1, /*read_only=*/false,
                      {{.table = "t", .ids = ids_, .rows = rows_.back().data()}},
                      [result, done](absl::StatusOr<PullVersions> versions) {
                        *result = std::move(versions);
                        done->Notify();
                      });
  }
  absl::Status PushStep0(Client* client) {
    return client->Push(/*step=*/0, {{.table = "t", .ids = {}, .gradients = nullptr}});
  }

  testing::PsCluster cluster_{1};
  std::vector<uint64_t> ids_ = [] {
    std::vector<uint64_t> ids(kIds);
    for (size_t i = 0; i < kIds; ++i) ids[i] = i;
    return ids;
  }();
  std::deque<std::vector<float>> rows_;
};

TEST_F(ClientLimitsTest, ACallThatDoesNotFitIsRefusedWhereTheClientIsToldSo) {
  const auto a = Connect(0, WhenFull::kFail), b = Connect(1, WhenFull::kFail);
  absl::StatusOr<PullVersions> results[3];
  absl::Notification done[3];
  for (int i = 0; i < 3; ++i) Start(a.get(), &results[i], &done[i]);
  EXPECT_TRUE(done[2].HasBeenNotified());
  EXPECT_THAT(results[2], StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_bytes_in_flight")));
  EXPECT_FALSE(done[0].HasBeenNotified());
  // A call of zero bytes always fits. The other calls end and release their bytes.
  TANDEM_ASSERT_OK(PushStep0(a.get()));
  TANDEM_ASSERT_OK(PushStep0(b.get()));
  for (int i = 0; i < 2; ++i) {
    done[i].WaitForNotification();
    TANDEM_EXPECT_OK(results[i]);
  }
  absl::Notification again;
  Start(a.get(), &results[2], &again);
  again.WaitForNotification();
  TANDEM_EXPECT_OK(results[2]);
}

TEST_F(ClientLimitsTest, ACallThatDoesNotFitWaitsForTheOthers) {
  const auto a = Connect(0, WhenFull::kWait), b = Connect(1, WhenFull::kWait);
  absl::StatusOr<PullVersions> results[3];
  absl::Notification done[3], started;
  for (int i = 0; i < 2; ++i) Start(a.get(), &results[i], &done[i]);
  std::thread third([&] {
    Start(a.get(), &results[2], &done[2]);
    started.Notify();
  });
  // It can start only when both pushes of the step have released the first two pulls.
  TANDEM_ASSERT_OK(PushStep0(a.get()));
  EXPECT_FALSE(started.HasBeenNotified());
  TANDEM_ASSERT_OK(PushStep0(b.get()));
  third.join();
  for (int i = 0; i < 3; ++i) {
    done[i].WaitForNotification();
    TANDEM_EXPECT_OK(results[i]);
  }
}

TEST_F(ClientLimitsTest, PullsThatWaitForThisWorkersPushDoNotKeepItBack) {
  const auto a = Connect(0, WhenFull::kFail), b = Connect(1, WhenFull::kFail);
  absl::StatusOr<PullVersions> results[2];
  absl::Notification done[2];
  for (int i = 0; i < 2; ++i) Start(a.get(), &results[i], &done[i]);
  const std::vector<float> gradients(kIds * kDim, 1.0f);
  TANDEM_EXPECT_OK(PushStep0(b.get()));
  TANDEM_EXPECT_OK(a->Push(/*step=*/0, {{.table = "t", .ids = ids_, .gradients = gradients.data()}}));
  for (int i = 0; i < 2; ++i) {
    done[i].WaitForNotification();
    TANDEM_EXPECT_OK(results[i]);
  }
}

TEST_F(ClientLimitsTest, PushesAreCountedAmongThemselves) {
  const auto lost = [](absl::string_view method, int64_t) {
    const bool push = absl::EndsWith(method, "/Push");
    return rpc::Fault{.kind = push ? rpc::Fault::Kind::kNeverRespond : rpc::Fault::Kind::kNone};
  };
  const auto a = Connect(0, WhenFull::kFail, lost, /*timeout=*/absl::Seconds(5));
  const std::vector<float> gradients(kIds * kDim, 1.0f);
  const auto push = [&](uint64_t step, absl::Status* status, absl::Notification* done) {
    a->PushAsync(step, {{.table = "t", .ids = ids_, .gradients = gradients.data()}}, {},
                 [status, done](absl::Status result) {
                   *status = std::move(result);
                   done->Notify();
                 });
  };
  absl::Status status[3];
  absl::Notification done[3];
  for (int i = 0; i < 3; ++i) push(static_cast<uint64_t>(i), &status[i], &done[i]);
  ASSERT_TRUE(done[2].HasBeenNotified());
  EXPECT_THAT(status[2], StatusIs(absl::StatusCode::kResourceExhausted));
  for (int i = 0; i < 2; ++i) {
    done[i].WaitForNotification();
    EXPECT_THAT(status[i], StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
}

}  // namespace
}  // namespace tandem::ps
