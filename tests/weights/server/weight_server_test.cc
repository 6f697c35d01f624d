// SPDX-License-Identifier: Apache-2.0
#include "weights/server/weight_server.h"

#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/connect.h"
#include "rpc/security/epoch_gate.h"
#include "rpc/server.h"
#include "rpc/transport/loopback.h"
#include "rpc/wire/bulk_codec.h"
#include "tests/testing/status_matchers.h"
#include "tests/weights/models.h"
#include "weights/client/publisher.h"
#include "weights/client/remote_weights.h"
#include "weights/wire/messages.h"

namespace tandem::weights {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;
using testing::Soon;
using testing::Uniform;
using testing::ValueOf;

// Rows of `Uniform` for a version of four pieces.
constexpr size_t kRows = 400'000;

constexpr rpc::BackoffOptions kFastBackoff = {.initial = absl::Milliseconds(1), .max = absl::Milliseconds(5)};

// A server behind a loopback channel, whose server can be replaced by another one, like a process that starts
// again at the same address.
class ReplaceableServer {
 public:
  explicit ReplaceableServer(rpc::FaultInjector injector = nullptr, const WeightServerOptions& options = {})
      : options_(options), current_(std::make_shared<Process>(options)) {
    std::vector<rpc::Service> services = {current_->service};
    for (rpc::Method& method : services[0].methods) {
      method.handler = [this, name = method.name](std::shared_ptr<rpc::ServerCall> call) {
        const std::shared_ptr<Process> process = Current();
        for (const rpc::Method& current : process->service.methods) {
          if (current.name == name) return current.handler(std::move(call));
        }
      };
    }
    channel_ = rpc::ConnectLoopback(std::make_shared<const std::vector<rpc::Service>>(std::move(services)),
                                    std::move(injector), kFastBackoff);
  }
  // Stops the server in the regular way, as SIGTERM does, and starts another one. Calls may be under way.
  void Restart() {
    const std::shared_ptr<Process> old = Current();
    old->server.Stop();
    absl::MutexLock lock(&mutex_);
    current_ = std::make_shared<Process>(options_);
  }
  WeightServer& server() { return Current()->server; }
  const std::shared_ptr<rpc::Channel>& channel() const { return channel_; }
  // Waits until `calls` calls of Head wait.
  void AwaitWaiting(uint64_t calls) {
    const absl::Time deadline = Soon();
    while (server().State().models_size() == 0 || server().State().models(0).waiting() != calls) {
      TANDEM_CHECK_MSG(MonotonicNow() < deadline, absl::StrCat("there were never ", calls, " calls of Head"));
      std::this_thread::yield();
    }
  }

 private:
  struct Process {
    explicit Process(const WeightServerOptions& options) : server(options), service(server.service()) {}
    WeightServer server;
    const rpc::Service service;
  };

  std::shared_ptr<Process> Current() {
    absl::MutexLock lock(&mutex_);
    return current_;
  }

  const WeightServerOptions options_;
  absl::Mutex mutex_;
  std::shared_ptr<Process> current_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<rpc::Channel> channel_;  // destroyed first
};

// One call of StartEpoch of a process without any identity ended a job.
TEST(WeightServer, AStrangerCannotTakeTheEpochOfAJobsLearner) {
  WeightServer server({});
  const auto services =
      std::make_shared<const std::vector<rpc::Service>>(std::vector<rpc::Service>{rpc::Gated(
          server.service(), std::make_shared<rpc::EpochGate>(rpc::Caller{.token = "0123456789abcdef"}))});
  v1::StartWeightsEpochRequest request;
  request.set_model("policy");
  request.set_publisher("learner/0");
  v1::StartWeightsEpochResponse first, second;
  const auto member = rpc::ConnectLoopback(services, nullptr, {}, {.token = "0123456789abcdef"});
  TANDEM_ASSERT_OK(rpc::CallProto(*member, "/tandem.v1.Weights/StartEpoch", request, &first, {}));
  request.set_publisher("stranger");
  const auto stranger = rpc::ConnectLoopback(services);
  EXPECT_THAT(rpc::CallProto(*stranger, "/tandem.v1.Weights/StartEpoch", request, &second, {}),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("tandem key show")));
  request.set_publisher("learner/0");
  TANDEM_ASSERT_OK(rpc::CallProto(*member, "/tandem.v1.Weights/StartEpoch", request, &second, {}));
  EXPECT_GT(second.epoch(), first.epoch());
}

TEST(WeightServer, GivesReadersWhatALearnerPublishes) {
  ReplaceableServer server;
  RemoteWeights weights(server.channel());
  TANDEM_ASSERT_OK_AND_ASSIGN(const ModelVersion nothing, weights.Head("policy", Soon()));
  EXPECT_EQ(nothing, ModelVersion());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto none, weights.Newer("policy", {}, MonotonicNow()));
  EXPECT_EQ(none, nullptr);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto publisher,
                              Publisher::Create(&weights, {.model = "policy", .name = "learner/0"}, Soon()));
  const std::vector<float> weight = {1, 2, 3, 4}, bias = {5};
  TANDEM_ASSERT_OK(publisher->Publish({{"weight", {2, 2}, weight}, {"bias", {}, bias}},
                                      {.step = 7, .items_consumed = 56, .last = true}, Soon()));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto model, weights.Newer("policy", {}, Soon()));
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->info.version, publisher->version());
  EXPECT_EQ(model->info.step, 7u);
  EXPECT_EQ(model->info.items_consumed, 56u);
  EXPECT_TRUE(model->info.last);
  EXPECT_EQ(model->info.publisher, "learner/0");
  EXPECT_EQ(model->info.tensors, (std::vector<TensorInfo>{{"weight", {2, 2}}, {"bias", {}}}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto values, model->Find("weight"));
  EXPECT_THAT(values, ::testing::ElementsAreArray(weight));
  TANDEM_ASSERT_OK_AND_ASSIGN(const ModelVersion head, weights.Head("policy", Soon()));
  EXPECT_EQ(head, model->info.version);
  const v1::ListWeightsResponse state = server.server().State();
  ASSERT_EQ(state.models_size(), 1);
  EXPECT_EQ(state.models(0).publishes(), 1u);
  EXPECT_EQ(state.models(0).bytes(), 20u);
}

TEST(WeightServer, AReaderThatWaitsHoldsNoThreadAndGetsTheNextVersion) {
  ReplaceableServer server;  // the loopback has one thread, so a handler that blocks would block all calls
  RemoteWeights weights(server.channel());
  TANDEM_ASSERT_OK(server.server().store().Commit(Uniform({1, 1}, 1)));
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      const auto newer = weights.Newer("policy", {1, 1}, Soon());
      TANDEM_ASSERT_OK(newer);
      ASSERT_NE(*newer, nullptr);
      EXPECT_EQ(ValueOf(**newer), 2);
    });
  }
  server.AwaitWaiting(3);
  TANDEM_ASSERT_OK(weights.Commit(Uniform({1, 2}, 2), Soon()));
  for (std::thread& reader : readers) reader.join();
  server.AwaitWaiting(0);
}

TEST(WeightServer, AWaitEndsAtItsDeadlineWithoutAVersion) {
  ReplaceableServer server;
  RemoteWeights weights(server.channel());
  TANDEM_ASSERT_OK(server.server().store().Commit(Uniform({1, 1}, 1)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto none,
                              weights.Newer("policy", {1, 1}, MonotonicNow() + absl::Milliseconds(50)));
  EXPECT_EQ(none, nullptr);
  server.AwaitWaiting(0);  // the server ends its part by its own timer
}

TEST(WeightServer, AReaderKeepsUpWithAPublisherThatIsFasterThanItsPulls) {
  ModelStore* store = nullptr;
  uint64_t pulls = 0;
  // Each pull finds a version that was published after the announcement, which has removed the announced one.
  ReplaceableServer server(
      [&](absl::string_view method, int64_t) -> rpc::Fault {
        constexpr uint64_t kMost = 20;
        if (!absl::StrContains(method, "Pull") || ++pulls > kMost) return {};
        TANDEM_EXPECT_OK(store->Commit(Uniform({1, 1 + pulls}, static_cast<float>(1 + pulls))));
        return {};
      },
      {.store = {.keep = 1}});
  store = &server.server().store();
  TANDEM_ASSERT_OK(store->Commit(Uniform({1, 1}, 1)));
  RemoteWeights weights(server.channel());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto newer, weights.Newer("policy", {}, Soon()));
  ASSERT_NE(newer, nullptr);
  EXPECT_EQ(newer->info.version, (ModelVersion{1, 2}));
  EXPECT_EQ(ValueOf(*newer), 2);
  EXPECT_EQ(pulls, 1u);
}

TEST(WeightServer, AReaderGivesUpAtItsDeadlineThoughVersionsAreAnnounced) {
  // A server that announces versions and has none.
  WeightServer announcing({}), empty({});
  TANDEM_ASSERT_OK(announcing.store().Commit(Uniform({1, 1}, 1)));
  rpc::Service service = announcing.service();
  int pulls = 0;
  for (rpc::Method& method : service.methods) {
    if (method.name != "Pull") continue;
    method.handler = [&pulls, lost = empty.service()](std::shared_ptr<rpc::ServerCall> call) {
      if (++pulls > 20) return call->Finish(absl::InternalError("there are too many pulls"));
      for (const rpc::Method& other : lost.methods) {
        if (other.name == "Pull") return other.handler(std::move(call));
      }
    };
  }
  const std::shared_ptr<rpc::Channel> channel = rpc::ConnectLoopback(
      std::make_shared<const std::vector<rpc::Service>>(std::vector<rpc::Service>{service}));
  RemoteWeights weights(channel);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto none, weights.Newer("policy", {}, MonotonicNow()));
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(pulls, 1);
}

TEST(WeightServer, AReaderOfAStoppedServerWaitsAtTheNextOne) {
  ReplaceableServer server;
  RemoteWeights weights(server.channel());
  TANDEM_ASSERT_OK(server.server().store().Commit(Uniform({1, 1}, 1)));
  std::thread reader([&] {
    const auto newer = weights.Newer("policy", {1, 1}, Soon());
    TANDEM_ASSERT_OK(newer);
    ASSERT_NE(*newer, nullptr);
    EXPECT_EQ(ValueOf(**newer), 2);
  });
  server.AwaitWaiting(1);
  server.Restart();
  TANDEM_ASSERT_OK(server.server().store().Commit(Uniform({1, 2}, 2)));
  reader.join();
}

TEST(WeightServer, AStoppedServerEndsWaits) {
  ReplaceableServer server;
  TANDEM_ASSERT_OK(server.server().store().Commit(Uniform({1, 1}, 1)));
  v1::WeightsHeadRequest request;
  request.set_model("policy");
  request.set_have_epoch(1);
  request.set_have_version(1);
  request.set_wait(true);
  const auto wait = [&] {
    v1::WeightsHeadResponse response;
    return rpc::CallProto(*server.channel(), "/tandem.v1.Weights/Head", request, &response, {});
  };
  std::thread reader(
      [&] { EXPECT_THAT(wait(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("weights/0 stops"))); });
  server.AwaitWaiting(1);
  server.server().Stop();
  reader.join();
  EXPECT_THAT(wait(), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(WeightServer, ACommitWhoseAnswerIsLostCountsOnce) {
  int faults = 0;
  ReplaceableServer server([&](absl::string_view method, int64_t) -> rpc::Fault {
    if (!absl::StrContains(method, "Publish")) return {};
    // Before the commit, after it, and twice.
    switch (faults++) {
      case 0:
        return {.kind = rpc::Fault::Kind::kFailBefore};
      case 1:
        return {.kind = rpc::Fault::Kind::kFailAfter};
      case 2:
        return {.kind = rpc::Fault::Kind::kDuplicate};
      default:
        return {};
    }
  });
  RemoteWeights weights(server.channel());
  TANDEM_ASSERT_OK(weights.Commit(Uniform({1, 1}, 1), Soon()));
  EXPECT_GE(faults, 3);
  EXPECT_EQ(server.server().State().models(0).publishes(), 1u);
  EXPECT_EQ(server.server().State().models(0).refused(), 0u);
  TANDEM_ASSERT_OK(weights.Commit(Uniform({1, 2}, 2), Soon()));
  EXPECT_EQ(server.server().State().models(0).publishes(), 2u);
}

TEST(WeightServer, AStartWhoseRequestArrivesTwiceDoesNotReplaceItsOwnPublisher) {
  for (const auto kind : {rpc::Fault::Kind::kFailAfter, rpc::Fault::Kind::kDuplicate}) {
    int starts = 0;
    ReplaceableServer server([&](absl::string_view method, int64_t) -> rpc::Fault {
      if (!absl::StrContains(method, "StartEpoch") || starts++ > 0) return {};
      return {.kind = kind};
    });
    RemoteWeights weights(server.channel());
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto publisher,
                                Publisher::Create(&weights, {.model = "policy"}, Soon()));
    EXPECT_EQ(publisher->version().epoch, server.server().State().models(0).epoch());
    const std::vector<float> values = {1};
    TANDEM_EXPECT_OK(publisher->Publish({{"x", {1}, values}}, {}, Soon()));
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto next, Publisher::Create(&weights, {.model = "policy"}, Soon()));
    EXPECT_GT(next->version().epoch, publisher->version().epoch);
  }
}

TEST(WeightServer, ARestartedServerGetsTheHeadAgain) {
  ReplaceableServer server;
  RemoteWeights weights(server.channel());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto publisher,
                              Publisher::Create(&weights, {.model = "policy", .repair_every = {}}, Soon()));
  const std::vector<float> values = {1};
  TANDEM_ASSERT_OK(publisher->Publish({{"x", {1}, values}}, {}, Soon()));
  server.Restart();
  TANDEM_ASSERT_OK_AND_ASSIGN(const ModelVersion lost, weights.Head("policy", Soon()));
  EXPECT_EQ(lost, ModelVersion());
  TANDEM_ASSERT_OK(publisher->Repeat(Soon()));
  TANDEM_ASSERT_OK_AND_ASSIGN(const ModelVersion head, weights.Head("policy", Soon()));
  EXPECT_EQ(head, publisher->version());
}

TEST(WeightServer, RefusesWhatIsNoModel) {
  ReplaceableServer server;
  RemoteWeights weights(server.channel());
  TANDEM_ASSERT_OK(server.server().store().Commit(Uniform({1, 1}, 1)));
  const auto publish = [&](const v1::PublishWeightsRequest& request, const std::string& payload) {
    return server.channel()
        ->Call("/tandem.v1.Weights/Publish", rpc::EncodeBulk(request, Bytes(std::string(payload))), {})
        .status();
  };
  v1::PublishWeightsRequest request;
  *request.mutable_info() = ToProto(Uniform({1, 2}, 2)->info);
  EXPECT_THAT(publish(request, std::string(27, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the payload has 27 bytes")));
  EXPECT_THAT(publish(request, std::string(28, 'x')), StatusIs(absl::StatusCode::kDataLoss));
  request.mutable_info()->set_digest_kind(7);
  EXPECT_THAT(publish(request, std::string(28, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of kind 7")));
  request.mutable_info()->mutable_tensors(0)->set_shape(0, -1);
  EXPECT_THAT(publish(request, std::string(28, 'x')), StatusIs(absl::StatusCode::kInvalidArgument));
  request.mutable_info()->clear_tensors();
  EXPECT_THAT(publish(request, ""), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(ValueOf(*server.server().store().Head("policy")), 1);
}

TEST(WeightServer, TakesAndGivesVersionsOfPublishersOfEarlierReleases) {
  ReplaceableServer server;
  const std::shared_ptr<const Model> model = Uniform({1, 2}, 2);
  v1::PublishWeightsRequest request;
  *request.mutable_info() = ToProto(model->info);
  request.mutable_info()->clear_digest_kind();
  request.mutable_info()->set_digest(DigestOf(DigestKind::kSerial, model->info.tensors, model->values()));
  TANDEM_ASSERT_OK(server.channel()
                       ->Call("/tandem.v1.Weights/Publish", rpc::EncodeBulk(request, PayloadOf(model)), {})
                       .status());
  RemoteWeights weights(server.channel());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto pulled, weights.Newer("policy", {}, Soon()));
  ASSERT_NE(pulled, nullptr);
  EXPECT_EQ(ValueOf(*pulled), 2);
}

TEST(WeightServer, SaysWhenTheHeadWasPublished) {
  SimulatedClock clock;
  ReplaceableServer server(nullptr, {.store = {.clock = &clock}});
  const auto age = [&] {
    v1::WeightsHeadRequest request;
    request.set_model("policy");
    v1::WeightsHeadResponse response;
    TANDEM_EXPECT_OK(rpc::CallProto(*server.channel(), "/tandem.v1.Weights/Head", request, &response, {}));
    return response.seconds_since_publish();
  };
  EXPECT_EQ(age(), 0);
  TANDEM_ASSERT_OK(server.server().store().Commit(Uniform({1, 1}, 1)));
  clock.Advance(absl::Seconds(7));
  EXPECT_EQ(age(), 7);
}

TEST(WeightServer, KeepsNoLongRequestsOfReadersThatWait) {
  ReplaceableServer server;
  v1::WeightsHeadRequest request;
  request.set_wait(true);
  for (const size_t bytes : {257, 5000}) {
    request.set_model(std::string(bytes, 'x'));
    v1::WeightsHeadResponse response;
    EXPECT_THAT(rpc::CallProto(*server.channel(), "/tandem.v1.Weights/Head", request, &response, {}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("must have")));
  }
}

TEST(WeightServer, DropsAnUploadThatItsPublisherDoesNotFinish) {
  SimulatedClock clock;
  ReplaceableServer server(nullptr, {.store = {.clock = &clock}});
  RemoteWeights weights(server.channel());
  TANDEM_ASSERT_OK_AND_ASSIGN(const EpochGrant grant, weights.StartEpoch("policy", "learner/0", Soon()));
  for (uint64_t upload = 1; upload <= 2; ++upload) {
    v1::BeginWeightsUploadRequest request;
    request.set_upload(upload);
    ModelInfo info = {.model = "policy", .version = {grant.epoch, upload}};
    info.tensors = {{"x", {1 << 20}}};
    *request.mutable_info() = ToProto(info);
    v1::BeginWeightsUploadResponse response;
    TANDEM_ASSERT_OK(
        rpc::CallProto(*server.channel(), "/tandem.v1.Weights/BeginUpload", request, &response, {}));
    EXPECT_EQ(server.server().State().uploads(), 1u);
    EXPECT_EQ(server.server().State().upload_bytes(), 4u << 20);
    clock.Advance(Uploads::kIdle);
    for (const absl::Time deadline = Soon(); server.server().State().uploads() > 0; std::this_thread::yield())
      ASSERT_LT(MonotonicNow(), deadline) << "upload " << upload;
    EXPECT_EQ(server.server().State().dropped_uploads(), upload);
  }
}

TEST(WeightServer, ADamagedAnswerIsNotUsed) {
  // A server whose answers to Pull have one bit flipped.
  ModelStore store;
  TANDEM_ASSERT_OK(store.Commit(Uniform({1, 1}, 1)));
  WeightServer honest({});
  TANDEM_ASSERT_OK(honest.store().Commit(Uniform({1, 1}, 1)));
  rpc::Service service = honest.service();
  for (rpc::Method& method : service.methods) {
    if (method.name != "Pull") continue;
    method.handler = [&](std::shared_ptr<rpc::ServerCall> call) {
      const std::shared_ptr<const Model> head = store.Head("policy");
      v1::PullWeightsResponse response;
      *response.mutable_info() = ToProto(head->info);
      std::string payload = PayloadOf(head).Flatten();
      payload[9] = static_cast<char>(payload[9] ^ 4);
      call->Finish(rpc::EncodeBulk(response, Bytes(std::move(payload))));
    };
  }
  const std::shared_ptr<rpc::Channel> channel = rpc::ConnectLoopback(
      std::make_shared<const std::vector<rpc::Service>>(std::vector<rpc::Service>{service}));
  RemoteWeights weights(channel);
  EXPECT_THAT(weights.Newer("policy", {}, Soon()),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged on its way")));
}

TEST(WeightServer, ReadersOverTheNetworkSeeWholeVersions) {
  WeightServer weight_server({.store = {.keep = 1}});
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<rpc::Server> listening,
                              rpc::Server::Start({}, {weight_server.service()}));
  const std::string address = absl::StrCat("127.0.0.1:", listening->port());
  // Small versions, and some that travel in pieces.
  constexpr uint64_t kVersions = 120, kSmall = 100;
  const auto connect = [&](const char* transport) -> std::shared_ptr<rpc::Channel> {
    rpc::ConnectOptions options;
    options.transport = transport;
    auto channel = rpc::Connect(address, options);
    TANDEM_CHECK_MSG(channel.ok(), channel.status().ToString());
    return *std::move(channel);
  };
  std::vector<std::thread> readers;
  for (const char* transport : {"auto", "grpc"}) {
    readers.emplace_back([&, transport] {
      RemoteWeights weights(connect(transport));
      ModelVersion have;
      while (have.number < kVersions) {
        const auto newer = weights.Newer("policy", have, Soon());
        TANDEM_ASSERT_OK(newer);
        ASSERT_NE(*newer, nullptr);
        ASSERT_GT((*newer)->info.version, have);
        have = (*newer)->info.version;
        ASSERT_EQ(ValueOf(**newer), static_cast<float>(have.number));
      }
    });
  }
  RemoteWeights weights(connect("auto"));
  for (uint64_t number = 1; number <= kVersions; ++number)
    TANDEM_ASSERT_OK(weights.Commit(
        Uniform({1, number}, static_cast<float>(number), number <= kSmall ? 5000 : kRows), Soon()));
  for (std::thread& reader : readers) reader.join();
  weight_server.Stop();
  listening->Shutdown(absl::Seconds(1));
}

}  // namespace
}  // namespace tandem::weights
