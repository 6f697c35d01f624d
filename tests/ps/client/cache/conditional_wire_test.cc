// SPDX-License-Identifier: Apache-2.0
// Conditional pulls and deferred gradients in messages, correct and wrong ones.

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/wire/value_codec.h"
#include "ps/wire/version_codec.h"
#include "tests/ps/server/driver.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kWireDim = 3;

class ConditionalPull : public ::testing::Test {
 protected:
  ConditionalPull() {
    v1::TableConfig config = TestTable("user", kWireDim, 1, Async(), Sgd(1.0f));
    *config.mutable_initializer() = Zeros();
    TANDEM_EXPECT_OK(driver_.CreateTable(config));
    TANDEM_EXPECT_OK(driver_.Pull(0, 0, {{"user", ids_}}));
    // Row i has version i + 1 and contains that number.
    for (uint64_t step = 0; step < ids_.size(); ++step) {
      const std::vector<float> gradients(kWireDim, -static_cast<float>(step + 1));
      TANDEM_EXPECT_OK(driver_.Push(
          {.step = step}, {{.table = "user", .dim = kWireDim, .ids = {ids_[step]}, .gradients = gradients}}));
    }
  }

  struct Response {
    std::vector<bool> sent;
    std::vector<float> rows;
    uint64_t version = 0;
    uint64_t generation = 0;
  };
  // `spoil` may change the message.
  absl::StatusOr<Response> Pull(const std::vector<uint32_t>& versions, uint64_t max_age, uint64_t generation,
                                const std::function<void(v1::PullSlice*, std::string*)>& spoil = nullptr,
                                v1::ValueFormat values = v1::VALUES_F32) {
    v1::PullRequest header;
    header.set_step(9);
    v1::PullSlice* slice = header.add_slices();
    slice->set_table("user");
    slice->set_num_ids(ids_.size());
    slice->set_values(values);
    slice->set_conditional(true);
    slice->set_max_age(max_age);
    slice->set_generation(generation);
    const VersionCoding coding = ChooseVersionCoding(versions, 1 << 20);
    slice->set_version_bits(coding.bits);
    slice->set_version_base(coding.base);
    std::string payload;
    AppendArray(ids_, &payload);
    std::string codes(PackedVersionBytes(versions.size(), coding.bits), '\0');
    PackVersions(versions, coding, codes.data());
    payload += codes;
    if (spoil) spoil(slice, &payload);
    TANDEM_ASSIGN_OR_RETURN(
        const Bytes bytes, driver_.Start("Pull", rpc::EncodeBulk(header, Bytes(std::move(payload))))->Wait());
    v1::PullResponse response;
    Bytes rest;
    TANDEM_RETURN_IF_ERROR(rpc::DecodeBulk(bytes, &response, &rest));
    const v1::PullSliceResult& result = response.slices(0);
    Response answer{.version = result.version(), .generation = result.generation()};
    BytesReader reader(rest);
    uint8_t bitmap;
    TANDEM_CHECK(reader.Copy(&bitmap, 1));
    for (size_t i = 0; i < ids_.size(); ++i) answer.sent.push_back(bitmap >> i & 1);
    answer.rows.resize(result.num_rows() * kWireDim);
    TANDEM_CHECK(DecodeRows(values, &reader, nullptr, result.num_rows(), kWireDim, answer.rows.data()));
    TANDEM_CHECK(reader.remaining() == 0);
    return answer;
  }
  uint64_t Generation() { return Pull({0, 0, 0, 0}, 0, 0)->generation; }

  const std::vector<uint64_t> ids_ = {11, 22, 33, 44};
  Driver driver_;
};

TEST_F(ConditionalPull, SendsRowsThatWereUpdatedSinceAndWhoseCopiesAreTooOld) {
  const uint64_t generation = Generation();
  TANDEM_ASSERT_OK_AND_ASSIGN(Response answer, Pull({1, 1, 3, 0}, 0, generation));
  EXPECT_EQ(answer.version, 4);
  EXPECT_THAT(answer.sent, ElementsAre(false, true, false, true));
  EXPECT_THAT(answer.rows, ElementsAre(2, 2, 2, 4, 4, 4));
  TANDEM_ASSERT_OK_AND_ASSIGN(answer, Pull({1, 1, 1, 2}, 3, generation));  // all of them young enough
  EXPECT_THAT(answer.sent, ElementsAre(false, false, false, false));
  EXPECT_THAT(answer.rows, ElementsAre());
  EXPECT_EQ(driver_.Table("user").statistics().unchanged_rows(), 2 + 4);
}

TEST_F(ConditionalPull, SaysHowManyRowsNeededNoAsking) {
  const auto say = [this](uint64_t rows) {
    return Pull({0, 0, 0, 0}, 0, 0,
                [rows](v1::PullSlice* slice, std::string*) { slice->set_unasked_rows(rows); });
  };
  const uint64_t pulled_before = driver_.Table("user").statistics().pulled_rows();
  TANDEM_ASSERT_OK(say(7));
  TANDEM_ASSERT_OK(say(uint64_t{1} << 32));
  EXPECT_THAT(say((uint64_t{1} << 32) + 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unasked_rows is 4294967297")));
  const v1::TableStatistics statistics = driver_.Table("user").statistics();
  EXPECT_EQ(statistics.unasked_rows(), (uint64_t{1} << 32) + 7);
  EXPECT_EQ(statistics.pulled_rows(), pulled_before + 8);
}

TEST_F(ConditionalPull, LetsNoCopyOfAnotherGenerationServe) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const Response answer, Pull({4, 4, 4, 4}, 1000, Generation() + 1));
  EXPECT_THAT(answer.sent, ElementsAre(true, true, true, true));
  EXPECT_THAT(answer.rows, ElementsAre(1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4));
}

TEST_F(ConditionalPull, AnswersInEveryValueFormat) {
  for (const v1::ValueFormat values : {v1::VALUES_F16, v1::VALUES_BF16, v1::VALUES_INT8}) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const Response answer, Pull({1, 1, 3, 0}, 0, Generation(), nullptr, values));
    EXPECT_THAT(answer.sent, ElementsAre(false, true, false, true));
    EXPECT_THAT(answer.rows,
                ::testing::Pointwise(::testing::FloatNear(0.02f), {2.0f, 2.0f, 2.0f, 4.0f, 4.0f, 4.0f}));
  }
}

TEST_F(ConditionalPull, IsRefusedWithANameWhenItIsMalformed) {
  const auto refused = [&](const std::function<void(v1::PullSlice*, std::string*)>& spoil,
                           const std::string& why) {
    EXPECT_THAT(Pull({1, 2, 3, 4}, 0, 1, spoil),
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("'user'"), HasSubstr(why))));
  };
  refused([](v1::PullSlice* slice, std::string*) { slice->set_version_bits(0); }, "version_bits is 0");
  refused([](v1::PullSlice* slice, std::string*) { slice->set_version_bits(33); }, "version_bits is 33");
  refused([](v1::PullSlice* slice, std::string*) { slice->set_version_bits(32); },
          "versions of 4 copies need 16 bytes");
  refused([](v1::PullSlice*, std::string* payload) { payload->resize(payload->size() - 1); },
          "payload too short");
  refused(
      [](v1::PullSlice* slice, std::string* payload) {
        slice->set_pooling(v1::SUM);
        slice->set_num_bags(1);
        const uint32_t offsets[] = {0, 4};
        payload->insert(32, reinterpret_cast<const char*>(offsets), sizeof(offsets));
      },
      "pooled");
  EXPECT_THAT(Pull({1, 2, 3, 4}, 0, 1, [](v1::PullSlice*, std::string* payload) { payload->push_back('x'); }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too long")));
}

TEST(HeldBackPush, CountsAsNoStepAndIsRefusedWhereStepsAreAllThereIs) {
  for (const v1::UpdateMode& mode : {Bounded(1), Async(), Sync()}) {
    Driver driver;
    v1::TableConfig config = TestTable("user", 1, 1, mode, Sgd(1.0f));
    *config.mutable_initializer() = Zeros();
    TANDEM_ASSERT_OK(driver.CreateTable(config));
    TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {7}}}));
    const PushOf push = {.table = "user", .dim = 1, .ids = {7}, .gradients = {-1.0f}};
    TANDEM_ASSERT_OK(driver.Push({.step = 0}, {push}));
    v1::PushRequest header;
    header.set_epoch(1);
    header.set_sequence(2);
    header.set_step(0);
    header.set_held_back(true);
    v1::PushSlice* slice = header.add_slices();
    slice->set_table("user");
    slice->set_num_ids(1);
    slice->set_dim(1);
    std::string payload;
    AppendArray(push.ids, &payload);
    AppendArray(push.gradients, &payload);
    const absl::Status late =
        driver.Start("Push", rpc::EncodeBulk(header, Bytes(std::move(payload))))->Wait().status();
    if (mode.kind() == v1::UpdateMode::SYNC) {
      EXPECT_THAT(late, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("held back")));
      continue;
    }
    TANDEM_ASSERT_OK(late);
    TANDEM_ASSERT_OK(driver.Push({.step = 1, .sequence = 3}, {push}));  // it is still the next one
    TANDEM_ASSERT_OK_AND_ASSIGN(const Rows rows, driver.Pull(0, 2, {{"user", {7}}}));
    EXPECT_THAT(rows.slices[0], ElementsAre(3));
  }
}

}  // namespace
}  // namespace tandem::ps::testing
