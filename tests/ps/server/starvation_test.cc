// SPDX-License-Identifier: Apache-2.0
// One worker pushes as fast as it can while another one pulls: both are served, in turns. The test counts
// calls. `tandem bench ps --op fairness` measures times.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/client/client.h"
#include "ps/server/parameter_server.h"
#include "ps/table.h"
#include "rpc/connect.h"
#include "rpc/server.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

constexpr uint32_t kStarvationDim = 16;
constexpr size_t kStarvationIds = 1024;
constexpr int kInFlight = 8;
constexpr int kPulls = 100;
// Limit for the number of pushes that are served for each pull. If both take turns, the number is about
// kInFlight; it is larger when the machine does not run the pulling thread for a while. Without turns no pull
// would ever be answered, since there is always another push.
constexpr uint64_t kMostPushesAPull = 50 * kInFlight;

// Keeps pushes in flight until it is destroyed or has made a given number of them.
class Pusher {
 public:
  Pusher(Client* client, const std::vector<uint64_t>& ids, uint64_t most) {
    thread_ = std::thread([this, client, &ids, most] {
      const std::vector<float> gradients(ids.size() * kStarvationDim, 1e-6f);
      for (uint64_t step = 0; step < most; ++step) {
        {
          absl::MutexLock lock(&mutex_);
          auto room = [this]()
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return under_way_ < kInFlight || stop_; };
          mutex_.Await(absl::Condition(&room));
          if (stop_) break;
          ++under_way_;
        }
        client->PushAsync(step, {{.table = "t", .ids = ids, .gradients = gradients.data(), .repeats = false}},
                          {}, [this](absl::Status status) {
                            absl::MutexLock lock(&mutex_);
                            --under_way_;
                            if (status.ok()) ++served_;
                            status_.Update(status);
                          });
      }
      absl::MutexLock lock(&mutex_);
      auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return under_way_ == 0; };
      mutex_.Await(absl::Condition(&none));  // each ends by its deadline
    });
  }
  ~Pusher() {
    {
      absl::MutexLock lock(&mutex_);
      stop_ = true;
    }
    thread_.join();
  }

  uint64_t served() const {
    absl::MutexLock lock(&mutex_);
    return served_;
  }
  absl::Status status() const {
    absl::MutexLock lock(&mutex_);
    return status_;
  }
  void AwaitServed(uint64_t pushes) const {
    absl::MutexLock lock(&mutex_);
    auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return served_ >= pushes || !status_.ok(); };
    mutex_.Await(absl::Condition(&there));  // each ends by its deadline
  }

 private:
  mutable absl::Mutex mutex_;
  int under_way_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t served_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

class StarvationTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    TANDEM_ASSERT_OK_AND_ASSIGN(listening_, rpc::Server::Start({.threads = 1}, {server_.service()}));
    table_ = EmbeddingTable("t", kStarvationDim, Adagrad(0.05f), Zeros());
    *table_.mutable_update_mode() = Async();
    table_.set_num_workers(2);
    for (uint32_t worker = 0; worker < 2; ++worker) {
      std::vector<std::unique_ptr<rpc::Channel>> channels(1);
      TANDEM_ASSERT_OK_AND_ASSIGN(channels[0], rpc::Connect(absl::StrCat("127.0.0.1:", listening_->port()),
                                                            {.transport = GetParam()}));
      TANDEM_ASSERT_OK_AND_ASSIGN(clients_[worker], Client::Connect(std::move(channels), {.worker = worker}));
      TANDEM_ASSERT_OK(clients_[worker]->CreateTable(table_));
    }
    for (size_t i = 0; i < kStarvationIds; ++i) ids_.push_back(i);
  }
  ~StarvationTest() override {
    for (auto& client : clients_) client.reset();
    server_.Stop();
    if (listening_ != nullptr) listening_->Shutdown(absl::ZeroDuration());
  }

  ParameterServer server_{ParameterServerOptions{}};
  std::unique_ptr<rpc::Server> listening_;
  v1::TableConfig table_;
  std::unique_ptr<Client> clients_[2];
  std::vector<uint64_t> ids_;
};

TEST_P(StarvationTest, PullsAndPushesOfTwoWorkersAreServedInTurns) {
  std::vector<float> rows(kStarvationIds * kStarvationDim);
  const std::vector<PullPart> all = {{.table = "t", .ids = ids_, .rows = rows.data()}};
  TANDEM_ASSERT_OK(clients_[0]->Pull(0, false, all));
  Pusher pusher(clients_[1].get(), ids_, kPulls * kMostPushesAPull);
  pusher.AwaitServed(2 * kInFlight);
  const uint64_t before = pusher.served();
  for (int pull = 0; pull < kPulls; ++pull) TANDEM_ASSERT_OK(clients_[0]->Pull(pull, false, all));
  const uint64_t after = pusher.served();
  ASSERT_LT(after - before, (kPulls - 1) * kMostPushesAPull);
  // The pulls did not starve the pushes, either.
  pusher.AwaitServed(after + kInFlight);
  TANDEM_EXPECT_OK(pusher.status());
}

INSTANTIATE_TEST_SUITE_P(Transports, StarvationTest, ::testing::Values("grpc", "shm"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tandem::ps
