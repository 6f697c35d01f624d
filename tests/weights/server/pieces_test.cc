// SPDX-License-Identifier: Apache-2.0
// Large versions, which travel in pieces.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/transport/loopback.h"
#include "rpc/wire/bulk_codec.h"
#include "tests/testing/status_matchers.h"
#include "tests/weights/models.h"
#include "weights/client/publisher.h"
#include "weights/client/remote_weights.h"
#include "weights/server/weight_server.h"
#include "weights/wire/messages.h"

namespace tandem::weights {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;
using testing::Soon;
using testing::Uniform;
using testing::ValueOf;

constexpr rpc::BackoffOptions kShortBackoff = {.initial = absl::Milliseconds(1),
                                               .max = absl::Milliseconds(5)};
constexpr size_t kLargeRows = 400'000;  // of `Uniform`: 3.2 MB, four pieces

// Servers behind one loopback channel, of which one is in use. Counts the calls by method.
class Servers {
 public:
  explicit Servers(const WeightServerOptions& options = {}) {
    for (int i = 0; i < 2; ++i) servers_.push_back(std::make_unique<WeightServer>(options));
    rpc::Service service = servers_[0]->service();
    for (rpc::Method& method : service.methods) {
      method.handler = [this, name = method.name](std::shared_ptr<rpc::ServerCall> call) {
        Handle(name, std::move(call));
      };
    }
    channel_ = rpc::ConnectLoopback(
        std::make_shared<const std::vector<rpc::Service>>(std::vector<rpc::Service>{service}),
        [this](absl::string_view method, int64_t) {
          absl::MutexLock lock(&mutex_);
          const std::string name(method.substr(method.rfind('/') + 1));
          const auto fault = faults_.find({name, calls_[name]++});
          return fault == faults_.end() ? rpc::Fault{} : rpc::Fault{.kind = fault->second};
        },
        kShortBackoff);
  }

  // The next calls go to another server, which has nothing.
  void Restart() {
    absl::MutexLock lock(&mutex_);
    ++current_;
  }
  // Runs `action` before the handler of call `index` of `method`; calls count from 0, repeated ones too.
  void Before(const std::string& method, int index, std::function<void()> action) {
    absl::MutexLock lock(&mutex_);
    actions_[{method, index}] = std::move(action);
  }
  void Fail(const std::string& method, int index, rpc::Fault::Kind kind) {
    absl::MutexLock lock(&mutex_);
    faults_[{method, index}] = kind;
  }
  // Removes a method from the server, or adds all of them again.
  void Forget(const std::string& method) {
    absl::MutexLock lock(&mutex_);
    unknown_.insert(method);
  }
  void RememberAll() {
    absl::MutexLock lock(&mutex_);
    unknown_.clear();
  }
  int calls(const std::string& method) {
    absl::MutexLock lock(&mutex_);
    return calls_[method];
  }
  WeightServer& server() {
    absl::MutexLock lock(&mutex_);
    return *servers_[current_];
  }
  const std::shared_ptr<rpc::Channel>& channel() const { return channel_; }

 private:
  void Handle(const std::string& name, std::shared_ptr<rpc::ServerCall> call) {
    std::function<void()> action;
    {
      absl::MutexLock lock(&mutex_);
      if (unknown_.contains(name)) return call->Finish(absl::UnimplementedError("there is no such method"));
      if (const auto found = actions_.find({name, handled_[name]++}); found != actions_.end())
        action = std::move(found->second);
    }
    if (action) action();
    const rpc::Service service = server().service();
    for (const rpc::Method& method : service.methods) {
      if (method.name == name) return method.handler(std::move(call));
    }
  }

  absl::Mutex mutex_;
  std::vector<std::unique_ptr<WeightServer>> servers_;
  size_t current_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> calls_ ABSL_GUARDED_BY(mutex_), handled_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<std::string, int>, std::function<void()>> actions_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<std::string, int>, rpc::Fault::Kind> faults_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> unknown_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<rpc::Channel> channel_;  // destroyed first
};

// Returns values of which each one differs from its neighbours.
std::vector<float> Ramp(size_t count, float first = 0) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i % 100'003);
  return values;
}

std::shared_ptr<const Model> Newest(RemoteWeights& weights, const ModelVersion& than = {}) {
  const auto newer = weights.Newer("policy", than, Soon());
  TANDEM_CHECK_MSG(newer.ok() && *newer != nullptr, newer.status().ToString());
  return *newer;
}

TEST(Pieces, AReaderGetsWhatAPublisherHasSent) {
  Servers servers;
  RemoteWeights weights(servers.channel());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto publisher,
                              Publisher::Create(&weights, {.model = "policy", .repair_every = {}}, Soon()));
  const std::vector<float> large = Ramp(600'001), small = Ramp(3), rest = Ramp(200'000, 5);
  TANDEM_ASSERT_OK(publisher->Publish(
      {{"large", {600'001}, large}, {"none", {0}, {}}, {"small", {3}, small}, {"rest", {200, 1000}, rest}},
      {.step = 7, .last = true}, Soon()));
  EXPECT_EQ(servers.calls("PutPiece"), 4);
  EXPECT_EQ(servers.calls("Publish"), 1);
  const auto model = Newest(weights);
  EXPECT_EQ(servers.calls("Pull"), 4);
  EXPECT_EQ(model->info.version, publisher->version());
  EXPECT_EQ(model->info.step, 7u);
  EXPECT_TRUE(model->info.last);
  EXPECT_TRUE(model->HasItsDigest());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto pulled, model->Find("large"));
  EXPECT_TRUE(std::equal(pulled.begin(), pulled.end(), large.begin(), large.end()));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto end, model->Find("rest"));
  EXPECT_TRUE(std::equal(end.begin(), end.end(), rest.begin(), rest.end()));
  EXPECT_EQ(servers.server().State().models(0).pulls(), 1u);
}

TEST(Pieces, AServerOfAnEarlierReleaseTakesAndGivesWholeVersions) {
  Servers servers;
  servers.Forget("BeginUpload");
  servers.Forget("PutPiece");
  RemoteWeights weights(servers.channel());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto publisher,
                              Publisher::Create(&weights, {.model = "policy", .repair_every = {}}, Soon()));
  const std::vector<float> values = Ramp(500'000);
  for (int i = 0; i < 2; ++i) TANDEM_ASSERT_OK(publisher->Publish({{"x", {500'000}, values}}, {}, Soon()));
  EXPECT_EQ(servers.calls("BeginUpload"), 1);  // it is not asked again
  EXPECT_EQ(servers.calls("Publish"), 2);
  TANDEM_ASSERT_OK(weights.Commit(Uniform({publisher->version().epoch, 3}, 3, kLargeRows), Soon()));
  EXPECT_EQ(ValueOf(*Newest(weights)), 3);

  // A server that does not know ranges.
  const std::shared_ptr<const Model> head = servers.server().store().Head("policy");
  rpc::Service service = servers.server().service();
  for (rpc::Method& method : service.methods) {
    if (method.name != "Pull") continue;
    method.handler = [&](std::shared_ptr<rpc::ServerCall> call) {
      v1::PullWeightsResponse response;
      *response.mutable_info() = ToProto(head->info);
      call->Finish(rpc::EncodeBulk(response, PayloadOf(head)));
    };
  }
  RemoteWeights of_earlier(rpc::ConnectLoopback(
      std::make_shared<const std::vector<rpc::Service>>(std::vector<rpc::Service>{service})));
  EXPECT_EQ(ValueOf(*Newest(of_earlier)), 3);
}

TEST(Pieces, AServerThatStartsAgainInTheMiddleGetsTheWholeVersion) {
  for (const char* const method : {"PutPiece", "Publish"}) {
    Servers servers;
    RemoteWeights weights(servers.channel());
    servers.Before(method, method == std::string("Publish") ? 0 : 2, [&] { servers.Restart(); });
    TANDEM_ASSERT_OK(weights.Commit(Uniform({1, 1}, 1, kLargeRows), Soon()));
    EXPECT_EQ(ValueOf(*servers.server().store().Head("policy")), 1);
    EXPECT_EQ(ValueOf(*Newest(weights)), 1);
  }
}

TEST(Pieces, AReaderWhoseVersionIsRemovedInTheMiddleGetsANewerOne) {
  Servers servers({.store = {.keep = 1}});
  RemoteWeights weights(servers.channel());
  TANDEM_ASSERT_OK(weights.Commit(Uniform({1, 1}, 1, kLargeRows), Soon()));
  servers.Before("Pull", 2, [&] {
    TANDEM_EXPECT_OK(servers.server().store().Commit(Uniform({1, 2}, 2, kLargeRows)));
  });
  const auto model = Newest(weights);
  EXPECT_EQ(model->info.version, (ModelVersion{1, 2}));
  EXPECT_EQ(ValueOf(*model), 2);
}

TEST(Pieces, RequestsThatArriveTwiceOrWhoseResponsesAreLostCountOnce) {
  using Kind = rpc::Fault::Kind;
  for (const Kind kind : {Kind::kFailBefore, Kind::kFailAfter, Kind::kDuplicate}) {
    Servers servers;
    RemoteWeights weights(servers.channel());
    for (const char* const method : {"BeginUpload", "PutPiece", "Publish", "Pull"})
      servers.Fail(method, 0, kind);
    servers.Fail("PutPiece", 2, kind);
    servers.Fail("Pull", 3, kind);
    TANDEM_ASSERT_OK(weights.Commit(Uniform({1, 1}, 1, kLargeRows), Soon()));
    EXPECT_EQ(servers.server().State().models(0).publishes(), 1u);
    EXPECT_EQ(servers.server().State().models(0).refused(), 0u);
    EXPECT_EQ(ValueOf(*Newest(weights)), 1);
  }
}

TEST(Pieces, TheHeadIsNotSentAgain) {
  Servers servers;
  RemoteWeights weights(servers.channel());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto publisher,
                              Publisher::Create(&weights, {.model = "policy", .repair_every = {}}, Soon()));
  const std::vector<float> values = Ramp(500'000);
  TANDEM_ASSERT_OK(publisher->Publish({{"x", {500'000}, values}}, {}, Soon()));
  const int pieces = servers.calls("PutPiece");
  TANDEM_ASSERT_OK(publisher->Repeat(Soon()));
  EXPECT_EQ(servers.calls("PutPiece"), pieces);
  servers.Restart();
  TANDEM_ASSERT_OK(publisher->Repeat(Soon()));
  EXPECT_EQ(servers.calls("PutPiece"), 2 * pieces);
  EXPECT_EQ(servers.server().store().Head("policy")->info.version, publisher->version());
}

TEST(Pieces, AVersionThatWasNotSentIsCompleteAllTheSame) {
  Servers servers;
  RemoteWeights weights(servers.channel());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto publisher,
                              Publisher::Create(&weights, {.model = "policy", .repair_every = {}}, Soon()));
  const std::vector<float> original = Ramp(900'000);
  std::vector<float> values = original;
  servers.Before("PutPiece", 1, [&] { servers.Forget("PutPiece"); });
  servers.Forget("Publish");
  EXPECT_THAT(publisher->Publish({{"x", {900'000}, values}}, {}, Soon()),
              StatusIs(absl::StatusCode::kUnimplemented));
  values.assign(values.size(), -1);  // the caller's memory, which the publisher must not need any more
  servers.RememberAll();
  TANDEM_ASSERT_OK(publisher->Repeat(Soon()));
  const auto model = Newest(weights);
  EXPECT_EQ(model->info.version, publisher->version());
  EXPECT_TRUE(std::equal(original.begin(), original.end(), model->values().begin(), model->values().end()));
}

TEST(Pieces, ARefusedVersionIsNotSent) {
  Servers servers;
  RemoteWeights weights(servers.channel());
  TANDEM_ASSERT_OK(weights.Commit(Uniform({1, 5}, 5), Soon()));
  EXPECT_THAT(weights.Commit(Uniform({1, 4}, 4, kLargeRows), Soon()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("numbers must rise")));
  EXPECT_EQ(servers.calls("PutPiece"), 0);
  EXPECT_EQ(servers.server().State().models(0).refused(), 1u);
  Servers limited({.store = {.max_bytes = 2'000'000}});
  RemoteWeights to_limited(limited.channel());
  EXPECT_THAT(to_limited.Commit(Uniform({1, 1}, 1, kLargeRows), Soon()),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("exceeds the limit of 2000000")));
  EXPECT_EQ(limited.calls("PutPiece"), 0);
}

TEST(Pieces, ADamagedPieceIsFound) {
  Servers servers;
  const std::shared_ptr<Model> model = Uniform({1, 1}, 1, kLargeRows);
  model->info.digest ^= 1;
  RemoteWeights weights(servers.channel());
  EXPECT_THAT(weights.Commit(model, Soon()),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged on its way")));
  EXPECT_EQ(servers.server().store().Head("policy"), nullptr);

  TANDEM_ASSERT_OK(servers.server().store().Commit(Uniform({1, 1}, 1, kLargeRows)));
  rpc::Service service = servers.server().service();
  for (rpc::Method& method : service.methods) {
    if (method.name != "Pull") continue;
    method.handler = [&servers, pulls = 0](std::shared_ptr<rpc::ServerCall> call) mutable {
      const std::shared_ptr<const Model> head = servers.server().store().Head("policy");
      v1::PullWeightsRequest request;
      TANDEM_EXPECT_OK(rpc::internal::ParseRequest(*call, &request));
      v1::PullWeightsResponse response;
      *response.mutable_info() = ToProto(head->info, request.offset() == 0);
      const size_t size = std::min<size_t>(request.limit(), head->count * sizeof(float) - request.offset());
      std::string payload = PayloadOf(head, request.offset(), size).Flatten();
      if (++pulls == 3) payload[9] = static_cast<char>(payload[9] ^ 4);
      call->Finish(rpc::EncodeBulk(response, Bytes(std::move(payload))));
    };
  }
  RemoteWeights damaged(rpc::ConnectLoopback(
      std::make_shared<const std::vector<rpc::Service>>(std::vector<rpc::Service>{service})));
  EXPECT_THAT(damaged.Newer("policy", {}, Soon()),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged on its way")));
}

TEST(Pieces, ARangeOutsideOfTheVersionIsRefused) {
  Servers servers;
  TANDEM_ASSERT_OK(servers.server().store().Commit(Uniform({1, 1}, 1)));
  const auto pull = [&](uint64_t offset, uint64_t limit) -> absl::StatusOr<size_t> {
    v1::PullWeightsRequest request;
    request.set_model("policy");
    request.set_offset(offset);
    request.set_limit(limit);
    TANDEM_ASSIGN_OR_RETURN(
        const Bytes wire,
        servers.channel()->Call("/tandem.v1.Weights/Pull", Bytes(request.SerializeAsString()), {}));
    v1::PullWeightsResponse response;
    Bytes payload;
    TANDEM_RETURN_IF_ERROR(rpc::DecodeBulk(wire, &response, &payload));
    return payload.size();
  };
  EXPECT_EQ(*pull(0, 0), 28u);
  EXPECT_EQ(*pull(20, 4), 4u);
  EXPECT_EQ(*pull(20, 100), 8u);
  EXPECT_EQ(*pull(28, 0), 0u);
  EXPECT_THAT(pull(29, 1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("offset 29")));
  EXPECT_THAT(pull(~uint64_t{0}, ~uint64_t{0}), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace tandem::weights
