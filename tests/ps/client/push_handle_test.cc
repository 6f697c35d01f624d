// SPDX-License-Identifier: Apache-2.0
// Pushes that fail on some of the servers, and pushes that no server may see.

#include "ps/client/push_handle.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
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

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::PsCluster;
using testing::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

v1::TableConfig Counting(const std::string& name, v1::UpdateMode mode = Async()) {
  v1::TableConfig config = EmbeddingTable(name, 1, Sgd(1.0f), Zeros());
  *config.mutable_update_mode() = std::move(mode);
  config.set_num_workers(1);
  return config;
}

class PushHandleTest : public ::testing::Test {
 protected:
  static constexpr size_t kIds = 16;  // both servers own some of them

  // Neither is repeated by the channel, and neither takes time.
  const rpc::Fault kAnswerLost = {.kind = rpc::Fault::Kind::kFailAfter,
                                  .status = absl::DeadlineExceededError("the answer is lost")};
  const rpc::Fault kNeverArrives = {.kind = rpc::Fault::Kind::kFailBefore,
                                    .status = absl::InternalError("the request is lost")};

  // Connects to the servers. The pushes to server 1 suffer `fault` while `faulty_` is true. Calls that do not
  // fit are refused at once.
  std::unique_ptr<Client> Connect(rpc::Fault fault, absl::Duration timeout = absl::Seconds(30)) {
    std::vector<std::unique_ptr<rpc::Channel>> channels = cluster_.Channels();
    channels[1] = std::move(cluster_.Channels([this, fault](absl::string_view method, int64_t) {
      return absl::EndsWith(method, "/Push") && faulty_ ? fault : rpc::Fault();
    })[1]);
    absl::StatusOr<std::unique_ptr<Client>> client =
        Client::Connect(std::move(channels), {.timeout = timeout, .when_full = WhenFull::kFail});
    TANDEM_EXPECT_OK(client);
    return *std::move(client);
  }
  std::unique_ptr<Client> Connect() { return Connect(rpc::Fault()); }

  // Starts a push of one for each id and waits until it has ended.
  std::shared_ptr<PushHandle> Push(Client& client, uint64_t step, absl::Status* status,
                                   const std::string& table = "t") {
    absl::Notification done;
    std::shared_ptr<PushHandle> handle = client.StartPush(
        step, {{.table = table, .ids = ids_, .gradients = ones_.data()}}, {}, [&](absl::Status result) {
          *status = std::move(result);
          done.Notify();
        });
    done.WaitForNotification();
    return handle;
  }
  std::vector<float> Rows(Client& client, bool read_only = true) {
    std::vector<float> rows(kIds, -1);
    TANDEM_EXPECT_OK(client.Pull(0, read_only, {{.table = "t", .ids = ids_, .rows = rows.data()}}));
    return rows;
  }

  PsCluster cluster_{2};
  std::atomic<bool> faulty_{true};
  const std::vector<uint64_t> ids_ = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const std::vector<float> ones_ = std::vector<float>(kIds, 1.0f);
};

TEST_F(PushHandleTest, APushWhoseAnswerIsLostIsRepeatedAndAppliedOnce) {
  const auto client = Connect(kAnswerLost);
  TANDEM_ASSERT_OK(client->CreateTable(Counting("t")));
  Rows(*client, /*read_only=*/false);
  absl::Status status;
  const std::shared_ptr<PushHandle> push = Push(*client, 7, &status);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               AllOf(HasSubstr("push to server 1"),
                                     HasSubstr("step 7: applied on server 0, unknown on server 1"))));
  EXPECT_THAT(push->outcomes(), ElementsAre(PushOutcome::kApplied, PushOutcome::kUnknown));
  faulty_ = false;
  TANDEM_EXPECT_OK(push->Retry());
  TANDEM_EXPECT_OK(push->Retry());  // has no effect any more
  EXPECT_THAT(push->outcomes(), Each(PushOutcome::kApplied));
  EXPECT_THAT(Rows(*client), Each(-1.0f));
}

TEST_F(PushHandleTest, APushThatNeverArrivedIsRepeatedAndAppliedOnce) {
  const auto client = Connect(kNeverArrives);
  TANDEM_ASSERT_OK(client->CreateTable(Counting("t")));
  Rows(*client, /*read_only=*/false);
  absl::Status status;
  const std::shared_ptr<PushHandle> push = Push(*client, 0, &status);
  EXPECT_FALSE(status.ok());
  // A push in between does not disturb it.
  faulty_ = false;
  absl::Status later;
  Push(*client, 1, &later);
  TANDEM_EXPECT_OK(later);
  TANDEM_EXPECT_OK(push->Retry());
  EXPECT_THAT(Rows(*client), Each(-2.0f));
}

TEST_F(PushHandleTest, ARepeatedPushOfAGlobalBatchKeepsItsPosition) {
  const auto client = Connect(kAnswerLost);
  TANDEM_ASSERT_OK(client->CreateTable(Counting("t", Gba(4, 2))));
  Rows(*client, /*read_only=*/false);
  absl::Status status;
  const std::shared_ptr<PushHandle> push = Push(*client, 0, &status);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  faulty_ = false;
  TANDEM_EXPECT_OK(push->Retry());
  EXPECT_THAT(Rows(*client), Each(0.0f));  // one of two pushes
  Push(*client, 1, &status);
  TANDEM_EXPECT_OK(status);
  EXPECT_THAT(Rows(*client), Each(-2.0f));
}

TEST_F(PushHandleTest, AFailedPushKeepsItsPlaceInTheWindowWhileItHasAHandle) {
  const auto client = Connect(kNeverArrives);
  TANDEM_ASSERT_OK(client->CreateTable(Counting("t")));
  Rows(*client, /*read_only=*/false);
  absl::Status status;
  std::shared_ptr<PushHandle> first = Push(*client, 0, &status);
  ASSERT_FALSE(status.ok());
  faulty_ = false;
  for (uint64_t step = 1; step < 256; ++step) {
    TANDEM_ASSERT_OK(client->Push(step, {{.table = "t", .ids = ids_, .gradients = ones_.data()}}));
  }
  EXPECT_THAT(client->Push(256, {{.table = "t", .ids = ids_, .gradients = ones_.data()}}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the oldest of step 0")));
  TANDEM_EXPECT_OK(first->Retry());
  TANDEM_EXPECT_OK(client->Push(256, {{.table = "t", .ids = ids_, .gradients = ones_.data()}}));
  EXPECT_THAT(Rows(*client), Each(-257.0f));
}

TEST_F(PushHandleTest, WritesOfRowStatesTakeSequencesOfTheSameWindow) {
  const auto client = Connect(kNeverArrives, absl::Seconds(5));
  TANDEM_ASSERT_OK(client->CreateTable(Counting("t")));
  Rows(*client, /*read_only=*/false);
  TANDEM_ASSERT_OK_AND_ASSIGN(const RowStates zeros, client->ReadRowStates("t", ids_));
  absl::Status status;
  const std::shared_ptr<PushHandle> first = Push(*client, 0, &status);
  ASSERT_FALSE(status.ok());
  faulty_ = false;
  for (uint64_t step = 1; step < 256; ++step) {
    TANDEM_ASSERT_OK(client->Push(step, {{.table = "t", .ids = ids_, .gradients = ones_.data()}}));
  }
  // A write waits for the client's timeout.
  EXPECT_THAT(client->WriteRowStates("t", ids_, zeros),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the oldest of step 0")));
  TANDEM_EXPECT_OK(first->Retry());
  TANDEM_EXPECT_OK(client->WriteRowStates("t", ids_, zeros));
  EXPECT_THAT(Rows(*client), Each(0.0f));
}

TEST_F(PushHandleTest, APushThatMayHaveBeenAppliedStaysUnknownWhenANewPushEpochRefusesItsRepetition) {
  const auto client = Connect(kAnswerLost);
  TANDEM_ASSERT_OK(client->CreateTable(Counting("t")));
  Rows(*client, /*read_only=*/false);
  absl::Status status;
  const std::shared_ptr<PushHandle> push = Push(*client, 7, &status);
  EXPECT_THAT(push->outcomes(), ElementsAre(PushOutcome::kApplied, PushOutcome::kUnknown));
  faulty_ = false;
  TANDEM_ASSERT_OK(client->StartPushEpoch());
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT(
        push->Retry(),
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 AllOf(HasSubstr("repeats a push from before it took the new epoch"),
                       HasSubstr("it is not known whether an earlier attempt of this push was applied"),
                       HasSubstr("step 7: applied on server 0, unknown on server 1"))));
    EXPECT_THAT(push->outcomes(), ElementsAre(PushOutcome::kApplied, PushOutcome::kUnknown));
  }
}

TEST_F(PushHandleTest, APushStaysUnknownIfTheChannelItselfRepeatedItBeforeItWasRefused) {
  for (const bool lost : {true, false}) {
    std::atomic<int> attempts{0};
    std::vector<std::unique_ptr<rpc::Channel>> channels = cluster_.Channels();
    channels[1] = std::move(cluster_.Channels([&](absl::string_view method, int64_t) {
      if (!absl::EndsWith(method, "/Push")) return rpc::Fault();
      // The answer of the first attempt is lost; then the server's memory is full.
      if (lost && attempts++ == 0) return rpc::Fault{.kind = rpc::Fault::Kind::kFailAfter};
      return rpc::Fault{.kind = rpc::Fault::Kind::kFailBefore,
                        .status = absl::ResourceExhaustedError("full")};
    })[1]);
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect(std::move(channels), {}));
    TANDEM_ASSERT_OK(client->StartPushEpoch());
    TANDEM_ASSERT_OK(client->CreateTable(Counting(lost ? "t" : "u")));
    absl::Status status;
    const std::shared_ptr<PushHandle> push = Push(*client, 7, &status, lost ? "t" : "u");
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                 HasSubstr(lost ? "unknown on server 1" : "refused by server 1")));
    EXPECT_THAT(push->outcomes(),
                ElementsAre(PushOutcome::kApplied, lost ? PushOutcome::kUnknown : PushOutcome::kRefused));
  }
}

TEST_F(PushHandleTest, ANewPushEpochBeginsWithAnEmptyWindowAndEndsTheRetriesOfTheOldOne) {
  const auto client = Connect(kNeverArrives);
  TANDEM_ASSERT_OK(client->CreateTable(Counting("t")));
  Rows(*client, /*read_only=*/false);
  TANDEM_ASSERT_OK_AND_ASSIGN(const RowStates zeros, client->ReadRowStates("t", ids_));
  absl::Status status;
  const std::shared_ptr<PushHandle> first = Push(*client, 0, &status);
  ASSERT_FALSE(status.ok());
  faulty_ = false;
  TANDEM_ASSERT_OK(client->StartPushEpoch());
  EXPECT_THAT(first->Retry(), StatusIs(absl::StatusCode::kFailedPrecondition));
  TANDEM_EXPECT_OK(client->WriteRowStates("t", ids_, zeros));
  for (uint64_t step = 1; step <= 300; ++step) {
    TANDEM_ASSERT_OK(client->Push(step, {{.table = "t", .ids = ids_, .gradients = ones_.data()}}));
  }
  EXPECT_THAT(Rows(*client), Each(-300.0f));
}

// Without the limit, the servers would refuse the first push: its sequence would be too old.
TEST_F(PushHandleTest, ThousandsOfPushesInFlightDoNotOvertakeAPushThatIsDelayed) {
  std::atomic<int> refused{0};
  const auto injector = [&](absl::string_view method, int64_t) {
    const bool push = absl::EndsWith(method, "/Push") && refused < 30;
    if (push) ++refused;
    return rpc::Fault{.kind = push ? rpc::Fault::Kind::kFailBefore : rpc::Fault::Kind::kNone};
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto client, cluster_.Connect(0, injector));
  TANDEM_ASSERT_OK(client->CreateTable(Counting("t")));
  Rows(*client, /*read_only=*/false);
  constexpr int kPushes = 1000;
  std::vector<absl::Status> results(kPushes);
  absl::Notification all;
  std::atomic<int> left{kPushes};
  for (int i = 0; i < kPushes; ++i) {
    client->PushAsync(static_cast<uint64_t>(i), {{.table = "t", .ids = ids_, .gradients = ones_.data()}}, {},
                      [&, i](absl::Status status) {
                        results[i] = std::move(status);
                        if (--left == 0) all.Notify();
                      });
  }
  all.WaitForNotification();
  for (int i = 0; i < kPushes; ++i) TANDEM_ASSERT_OK(results[i]);
  EXPECT_THAT(Rows(*client), Each(-static_cast<float>(kPushes)));
}

TEST_F(PushHandleTest, AGradientThatIsNotFiniteChangesNoServer) {
  const auto client = Connect();
  TANDEM_ASSERT_OK(client->CreateTable(Counting("t")));
  Rows(*client, /*read_only=*/false);
  for (const float wrong : {std::nanf(""), std::numeric_limits<float>::infinity(), -0x1p60f}) {
    for (const v1::ValueFormat format : {v1::VALUES_F32, v1::VALUES_BF16, v1::VALUES_INT8}) {
      TANDEM_ASSERT_OK(client->SetWire("t", {.push_values = format}));
      for (size_t at = 0; at < kIds; ++at) {
        std::vector<float> gradients = ones_;
        gradients[at] = wrong;
        EXPECT_THAT(client->Push(0, {{.table = "t", .ids = ids_, .gradients = gradients.data()}}),
                    StatusIs(kInvalid, AllOf(HasSubstr("worker 0: table 't'"),
                                             HasSubstr("id " + std::to_string(at) + " is"),
                                             HasSubstr("nothing was pushed"))));
      }
    }
  }
  EXPECT_THAT(Rows(*client), Each(0.0f));
}

TEST_F(PushHandleTest, ASumOfGradientsThatIsTooLargeChangesNoServer) {
  const auto client = Connect();
  TANDEM_ASSERT_OK(client->CreateTable(Counting("t")));
  Rows(*client, /*read_only=*/false);
  std::vector<uint64_t> ids = ids_;
  ids.insert(ids.end(), ids_.begin(), ids_.end());
  std::vector<float> gradients(ids.size(), 1.0f);
  gradients[3] = gradients[3 + kIds] = 0x1p59f;
  EXPECT_THAT(client->Push(0, {{.table = "t", .ids = ids, .gradients = gradients.data()}}),
              StatusIs(kInvalid, HasSubstr("gradient of id 3 is")));
  EXPECT_THAT(Rows(*client), Each(0.0f));
}

TEST_F(PushHandleTest, ACacheDoesNotTakeAGradientThatIsNotFinite) {
  const auto client = Connect();
  TANDEM_ASSERT_OK(client->CreateTable(Counting("t")));
  CacheOptions options;
  options.bytes = 1 << 20;
  TANDEM_ASSERT_OK(client->SetCache("t", options));
  Rows(*client, /*read_only=*/false);
  std::vector<float> gradients = ones_;
  gradients[5] = std::nanf("");
  EXPECT_THAT(client->Push(0, {{.table = "t", .ids = ids_, .gradients = gradients.data()}}),
              StatusIs(kInvalid, HasSubstr("id 5 is NaN")));
  TANDEM_EXPECT_OK(client->PushDeferred());
  EXPECT_THAT(Rows(*client, /*read_only=*/false), Each(0.0f));
}

TEST_F(PushHandleTest, ARefusedSumOfDeferredGradientsSaysThatTheyAreLost) {
  const auto client = Connect();
  TANDEM_ASSERT_OK(client->CreateTable(Counting("t")));
  TANDEM_ASSERT_OK(client->SetCache("t", {.bytes = 1 << 20, .push_bound = 3}));
  std::vector<float> gradients = ones_;
  absl::Status status;
  for (uint64_t step = 0; step < 20 && status.ok(); ++step) {
    Rows(*client, /*read_only=*/false);
    if (step >= 4) gradients[3] = 0x1p59f;
    status = client->Push(step, {{.table = "t", .ids = ids_, .gradients = gradients.data()}});
  }
  EXPECT_THAT(status, StatusIs(kInvalid, AllOf(HasSubstr("gradient of id 3 is"),
                                               HasSubstr("of 16 rows, which are lost, those of earlier"))));
}

TEST_F(PushHandleTest, TooManyPartsOrSegmentsChangeNoServer) {
  const auto client = Connect();
  TANDEM_ASSERT_OK(client->CreateTable(Counting("t")));
  Rows(*client, /*read_only=*/false);
  const PushPart one = {.table = "t", .ids = ids_, .gradients = ones_.data()};
  EXPECT_THAT(client->Push(0, std::vector<PushPart>(1025, one)),
              StatusIs(kInvalid, AllOf(HasSubstr("1025 parts"), HasSubstr("Nothing was pushed"))));
  // Ends of segments, most of which are empty.
  std::vector<uint32_t> ends(40000, 0);
  ends.back() = kIds;
  PushPart divided = one;
  divided.segments = ends;
  EXPECT_THAT(client->Push(0, {divided, divided}), StatusIs(kInvalid, HasSubstr("80000 segments")));
  EXPECT_THAT(Rows(*client), Each(0.0f));
  TANDEM_EXPECT_OK(client->Push(0, {divided, one}));
  EXPECT_THAT(Rows(*client), Each(-2.0f));
}

TEST(PushOutcomes, AreListedByServer) {
  using enum PushOutcome;
  EXPECT_EQ(Describe({kApplied, kUnknown, kApplied, kRefused, kApplied, kNotSent}),
            "applied on servers 0, 2 and 4, refused by server 3, unknown on server 1, not sent to server 5");
}

}  // namespace
}  // namespace tandem::ps
