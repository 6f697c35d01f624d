// SPDX-License-Identifier: Apache-2.0
// Wrong requests, which must change nothing, and pooling.

#include <cmath>
#include <limits>

#include "base/random.h"
#include "gmock/gmock.h"
#include "google/protobuf/stubs/logging.h"
#include "gtest/gtest.h"
#include "tests/ps/server/driver.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class Requests : public ::testing::Test {
 protected:
  void SetUp() override {
    TANDEM_ASSERT_OK(driver_.CreateTable(TestTable("user", 2, 2, Async())));
    TANDEM_ASSERT_OK(driver_.CreateTable(TestTable("item", 3, 2, Sync())));
    v1::TableConfig bias = DenseTable("bias", 10, Sgd(0.5f), Zeros());
    bias.set_dim(4);
    *bias.mutable_update_mode() = Async();
    TANDEM_ASSERT_OK(driver_.CreateTable(bias));
    TANDEM_ASSERT_OK(driver_.Pull(0, 0, {{"user", kIds}, {"item", kIds}}));
    before_ = Snapshot();
  }
  std::vector<std::vector<float>> Snapshot() {
    absl::StatusOr<Rows> rows =
        driver_.Pull(0, 0, {{"user", kIds}, {"item", kIds}, {"bias", {0, 1, 2}}}, true);
    return rows.ok() ? rows->slices : std::vector<std::vector<float>>{};
  }
  absl::Status Push(const PushOf& push, uint32_t worker = 1) {
    return driver_.Push({.worker = worker}, {push}).status();
  }
  absl::Status PushHeader(const std::function<void(v1::PushRequest*)>& change, size_t payload_bytes) {
    v1::PushRequest header;
    header.set_worker(1);
    header.set_epoch(1);
    header.set_sequence(1);
    change(&header);
    return driver_.Start("Push", rpc::EncodeBulk(header, Bytes(std::string(payload_bytes, '\0'))))
        ->Wait()
        .status();
  }
  void ExpectUnchanged() {
    EXPECT_EQ(Snapshot(), before_);
    for (const char* table : {"user", "item", "bias"})
      EXPECT_EQ(driver_.Table(table).statistics().version(), 0);
  }

  const std::vector<uint64_t> kIds = {1, 2, 3};
  Driver driver_;
  std::vector<std::vector<float>> before_;
};

TEST_F(Requests, AnUnknownTableIsNamedWithThoseThereAre) {
  EXPECT_THAT(driver_.Pull(0, 0, {{"usr", {1}}}),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("'usr'"), HasSubstr("'bias'"),
                                                          HasSubstr("'item'"), HasSubstr("'user'"))));
  EXPECT_THAT(Push({"usr", 2, {1}, {0, 0}}), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(Requests, ATableIsCreatedOnceAndNamesWhatDiffers) {
  TANDEM_EXPECT_OK(driver_.CreateTable(TestTable("user", 2, 2, Async())));
  EXPECT_THAT(
      driver_.CreateTable(TestTable("user", 4, 2, Async())),
      StatusIs(absl::StatusCode::kAlreadyExists, AllOf(HasSubstr("'user'"), HasSubstr("dim: 2 -> 4"))));
  EXPECT_THAT(driver_.CreateTable(TestTable("new", 0, 2, Async())), StatusIs(kInvalid, HasSubstr("dim")));
  // The config is compared with the one given at creation, not with the one in force.
  TANDEM_EXPECT_OK(driver_.SetUpdateMode("user", Bounded(3)));
  TANDEM_EXPECT_OK(driver_.CreateTable(TestTable("user", 2, 2, Async())));
  EXPECT_THAT(driver_.SetUpdateMode("user", Bounded(0)), StatusIs(kInvalid, HasSubstr("'user'")));
  EXPECT_THAT(driver_.SetUpdateMode("usr", Async()), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(Requests, NanAndInfAreRefusedWithWorkerTableAndId) {
  EXPECT_THAT(
      driver_.Push({.worker = 1}, {{"item", 3, {1}, {1, 1, 1}}, {"user", 2, {1, 42}, {1, 1, 1, NAN}}}),
      StatusIs(kInvalid, "worker 1: table 'user': gradient of id 42 is NaN; push refused"));
  EXPECT_THAT(Push({"user", 2, {3}, {-std::numeric_limits<float>::infinity(), 0}}),
              StatusIs(kInvalid, "worker 1: table 'user': gradient of id 3 is Inf; push refused"));
  EXPECT_THAT(Push({"user", 2, {1, 2, 3}, {0, 0, NAN, 0}, v1::SUM, {0, 1, 3}}),
              StatusIs(kInvalid, HasSubstr("gradient of bag 1 is NaN")));
  EXPECT_EQ(driver_.Table("user").statistics().refused_pushes(), 3);
  EXPECT_EQ(driver_.Table("item").statistics().refused_pushes(), 0);
  ExpectUnchanged();
}

TEST_F(Requests, ShapesThatDoNotFitAreRefused) {
  EXPECT_THAT(Push({"user", 3, {1}, {0, 0, 0}}),
              StatusIs(kInvalid, AllOf(HasSubstr("dim 3"), HasSubstr("dim is 2"))));
  EXPECT_THAT(Push({"user", 2, {1}, {0}}), StatusIs(kInvalid, HasSubstr("too short")));
  EXPECT_THAT(Push({"user", 2, {1}, {0, 0, 0}}), StatusIs(kInvalid, HasSubstr("too long: 4 bytes")));
  EXPECT_THAT(Push({"item", 3, {1}, {0, 0, 0}}, /*worker=*/2),
              StatusIs(kInvalid, HasSubstr("has 2 workers")));
  EXPECT_THAT(driver_.Push({}, {}), StatusIs(kInvalid, HasSubstr("no table")));
  EXPECT_THAT(driver_.Push({.learning_rate_factor = -1}, {{"user", 2, {}, {}}}), StatusIs(kInvalid));
  EXPECT_THAT(driver_.Push({.step = ~uint64_t{0}}, {{"user", 2, {}, {}}}),
              StatusIs(kInvalid, HasSubstr("2^62")));
  EXPECT_THAT(Push({"bias", 4, {3}, {0, 0, 0, 0}}, 0), StatusIs(kInvalid, HasSubstr("3 rows")));
  EXPECT_THAT(driver_.Pull(2, 0, {{"item", {1}}}), StatusIs(kInvalid, HasSubstr("has 2 workers")));
  TANDEM_EXPECT_OK(driver_.Pull(2, 0, {{"item", {1}}}, /*read_only=*/true));
  ExpectUnchanged();
}

TEST_F(Requests, OffsetsMustCutTheIds) {
  const std::vector<std::vector<uint32_t>> wrong = {{0, 4, 3}, {1, 2, 3}, {0, 2, 2}, {0, 4}, {0, 2, 1, 3}};
  for (const std::vector<uint32_t>& offsets : wrong) {
    EXPECT_THAT(driver_.Pull(0, 0, {{"user", kIds, v1::SUM, offsets}}),
                StatusIs(kInvalid, HasSubstr("offset")));
    const std::vector<float> gradients((offsets.size() - 1) * 2);
    EXPECT_THAT(Push({"user", 2, kIds, gradients, v1::SUM, offsets}),
                StatusIs(kInvalid, HasSubstr("offset")));
  }
  ExpectUnchanged();
}

TEST_F(Requests, CountsThatOverflowAreRefused) {
  for (uint64_t count :
       {uint64_t{1} << 61, (uint64_t{1} << 61) + 1, ~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 32}) {
    EXPECT_THAT(PushHeader(
                    [&](v1::PushRequest* header) {
                      v1::PushSlice* slice = header->add_slices();
                      slice->set_table("user");
                      slice->set_dim(2);
                      slice->set_num_ids(count);
                    },
                    64),
                StatusIs(kInvalid, HasSubstr("too short")));
    EXPECT_THAT(PushHeader(
                    [&](v1::PushRequest* header) {
                      v1::PushSlice* slice = header->add_slices();
                      slice->set_table("user");
                      slice->set_dim(2);
                      slice->set_num_ids(1);
                      slice->set_pooling(v1::SUM);
                      slice->set_num_bags(count);
                    },
                    64),
                StatusIs(kInvalid, HasSubstr("too short")));
  }
  ExpectUnchanged();
}

TEST_F(Requests, AnAnswerLargerThanAMessageIsRefused) {
  Driver small({.max_message_bytes = 1000});
  TANDEM_ASSERT_OK(small.CreateTable(TestTable("user", 100, 1, Async())));
  TANDEM_EXPECT_OK(small.Pull(0, 0, {{"user", {1, 2}}}));
  EXPECT_THAT(small.Pull(0, 0, {{"user", {1, 2}}, {"user", {3}}}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1000 bytes")));
  // A small response that needs much memory to compute, and a small push that does.
  const std::vector<uint64_t> ids(50, 1);
  EXPECT_THAT(small.Pull(0, 0, {{"user", ids, v1::SUM, {0, 50}}}),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(small.Push({}, {{"user", 100, ids, std::vector<float>(100), v1::SUM, {0, 50}}}),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(small.Table("user").statistics().rows(), 2);
}

TEST_F(Requests, AnIdOfAnotherServerIsRefusedWithItsOwner) {
  Driver second({.index = 1, .num_servers = 2});
  TANDEM_ASSERT_OK(second.CreateTable(TestTable("user", 2, 1, Async())));
  const ShardMap map = ShardMap::Even(2);
  uint64_t foreign = 0;
  while (map.OwnerOf(foreign) != 0) ++foreign;
  EXPECT_THAT(
      second.Pull(0, 0, {{"user", {foreign}}}),
      StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("server 0"), HasSubstr("server 1"))));
  EXPECT_THAT(second.Push({}, {{"user", 2, {foreign}, {1, 1}}}),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(second.Table("user").statistics().rows(), 0);
}

TEST_F(Requests, MissingRowsNeverShiftTheGradientsOfOthers) {
  // SGD from known rows; 77 and 88 do not exist.
  Driver driver;
  v1::TableConfig config = TestTable("t", 2, 1, Async(), Sgd(1.0f));
  *config.mutable_initializer() = Zeros();
  TANDEM_ASSERT_OK(driver.CreateTable(config));
  TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"t", {1, 2, 3}}}));
  const absl::StatusOr<v1::PushResponse> pushed =
      driver.Push({}, {{"t", 2, {1, 77, 2, 88, 3, 1}, {1, 2, 9, 9, 3, 4, 9, 9, 5, 6, 10, 20}}});
  TANDEM_ASSERT_OK(pushed);
  EXPECT_EQ(pushed->missing_rows(), 2);
  EXPECT_THAT(driver.Pull(0, 0, {{"t", {1, 2, 3}}})->slices[0], ElementsAre(-11, -22, -3, -4, -5, -6));
  EXPECT_EQ(driver.Table("t").statistics().rows(), 3);
}

TEST_F(Requests, BagsArePooledOnTheServerBothWays) {
  Driver driver;
  v1::TableConfig config = TestTable("t", 1, 1, Async(), Sgd(1.0f));
  *config.mutable_initializer() = Zeros();
  TANDEM_ASSERT_OK(driver.CreateTable(config));
  TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"t", {1, 2, 3}}}));
  TANDEM_ASSERT_OK(driver.Push({.sequence = 1}, {{"t", 1, {1, 2, 3}, {-1, -2, -4}}}));
  const std::vector<uint32_t> offsets = {0, 2, 2, 3};  // {1, 2}, {}, {3}
  const absl::StatusOr<Rows> rows = driver.Pull(
      0, 0, {{"t", {1, 2, 3}, v1::SUM, offsets}, {"t", {3}}, {"t", {1, 2, 3}, v1::MEAN, offsets}});
  TANDEM_ASSERT_OK(rows);
  EXPECT_THAT(rows->slices[0], ElementsAre(3, 0, 4));
  EXPECT_THAT(rows->slices[1], ElementsAre(4));
  EXPECT_THAT(rows->slices[2], ElementsAre(1.5, 0, 4));
  // Three slices of one table are one update; id 3 gets 8 (bag), 16 and 32/2.
  TANDEM_ASSERT_OK(driver.Push({.sequence = 2}, {{"t", 1, {1, 2, 3}, {1, 9, 8}, v1::SUM, offsets},
                                                 {"t", 1, {3}, {16}},
                                                 {"t", 1, {3, 1}, {32}, v1::MEAN, {0, 2}}}));
  EXPECT_THAT(driver.Pull(0, 0, {{"t", {1, 2, 3}}})->slices[0],
              ElementsAre(1 - 1 - 16, 2 - 1, 4 - 8 - 16 - 16));
  EXPECT_EQ(driver.Table("t").statistics().version(), 2);
}

TEST_F(Requests, DenseTablesAreThereFromTheStart) {
  EXPECT_EQ(driver_.Table("bias").statistics().rows(), 3);
  TANDEM_ASSERT_OK(Push({"bias", 4, {0, 2}, {1, 2, 3, 4, 5, 6, 7, 8}}, /*worker=*/0));
  EXPECT_THAT(driver_.Pull(0, 0, {{"bias", {2, 0}}})->slices[0],
              ElementsAre(-2.5, -3, -3.5, -4, -0.5, -1, -1.5, -2));
}

TEST_F(Requests, NoTruncatedOrMutatedMessageCrashesOrIsHalfApplied) {
  const google::protobuf::LogSilencer quiet;
  const std::string push =
      PushRequestBytes({.worker = 1, .step = 0}, {{"user", 2, {1, 2, 9}, {1, 2, 3, 4}, v1::MEAN, {0, 2, 3}},
                                                  {"item", 3, {3}, {1, 2, 3}}})
          .Flatten();
  const std::string pull =
      PullRequestBytes(0, 0, {{"user", {1, 2, 3}, v1::SUM, {0, 1, 3}}, {"item", {2}}}, true).Flatten();
  for (size_t length = 0; length < push.size(); ++length) {
    EXPECT_FALSE(driver_.Start("Push", Bytes(push.substr(0, length)))->Wait().ok()) << length;
  }
  for (size_t length = 1; length < pull.size(); ++length) {
    // A message that is cut between two fields may be valid, but it has fewer slices.
    const absl::StatusOr<Rows> rows = ParseRows(driver_.Start("Pull", Bytes(pull.substr(0, length)))->Wait());
    if (rows.ok()) {
      EXPECT_LT(rows->slices.size(), 2);
    }
  }
  ExpectUnchanged();
  CounterRandom random(5, 6);
  int accepted = 0;
  for (int round = 0; round < 8000; ++round) {
    std::string mutated = round % 2 == 0 ? push : pull;
    for (uint64_t n = 1 + random.Below(3); n > 0; --n)
      mutated[random.Below(mutated.size())] = static_cast<char>(random());
    // The message comes in slices of odd sizes, as from a network. Some of the mutated pulls wait for later
    // steps; Stop ends them.
    Bytes bytes;
    for (size_t at = 0; at < mutated.size();) {
      const size_t take = std::min<size_t>(mutated.size() - at, 1 + random.Below(40));
      bytes.Append(Slice::FromString(mutated.substr(at, take)));
      at += take;
    }
    const auto versions = [&] {
      return driver_.Table("user").statistics().version() + driver_.Table("item").statistics().version();
    };
    const uint64_t version = versions();
    const auto call = driver_.Start(round % 2 == 0 ? "Push" : "Pull", bytes);
    if (!call->answered()) continue;
    if (call->Wait().ok()) {
      ++accepted;
    } else {
      ASSERT_EQ(versions(), version);
    }
  }
  EXPECT_GT(accepted, 0);
  driver_.server().Stop();
}

}  // namespace
}  // namespace tandem::ps::testing
