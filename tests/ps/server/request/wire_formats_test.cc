// SPDX-License-Identifier: Apache-2.0
// Requests with packed ids and encoded numbers. The server refuses malformed ones, naming worker and table,
// and changes nothing.

#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/wire/id_codec.h"
#include "ps/wire/value_codec.h"
#include "tests/ps/server/driver.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr uint32_t kDim = 2;

std::string Packed(const std::vector<uint64_t>& ids) {
  IdPacker packer;
  std::string packed(packer.Plan(ids), '\0');
  packer.Write(ids, packed.data());
  return packed;
}

std::string Encoded(v1::ValueFormat format, const std::vector<float>& values) {
  std::string encoded(values.size() / kDim * RowBytes(format, kDim), '\0');
  EncodeRows(format, values.data(), nullptr, values.size() / kDim, kDim, encoded.data());
  return encoded;
}

class WireFormats : public ::testing::Test {
 protected:
  void SetUp() override {
    v1::TableConfig config = EmbeddingTable("user", kDim, Sgd(1.0f), Uniform(-1, 1));
    *config.mutable_update_mode() = Async();
    TANDEM_ASSERT_OK(driver_.CreateTable(config));
    config.set_name("item");
    TANDEM_ASSERT_OK(driver_.CreateTable(config));
    TANDEM_ASSERT_OK(driver_.Pull(0, 0, {{"user", kIds}, {"item", kIds}}));
    before_ = Snapshot();
  }
  std::vector<std::vector<float>> Snapshot() {
    absl::StatusOr<Rows> rows = driver_.Pull(0, 0, {{"user", kIds}, {"item", kIds}}, true);
    return rows.ok() ? rows->slices : std::vector<std::vector<float>>{};
  }
  // Pushes a well-formed slice of `item`, then a slice of `user` that `change` has modified.
  absl::Status Push(const std::function<void(v1::PushSlice*)>& change, const std::string& payload) {
    v1::PushRequest header;
    header.set_epoch(1);
    header.set_sequence(++sequence_);
    v1::PushSlice* good = header.add_slices();
    good->set_table("item");
    good->set_num_ids(1);
    good->set_dim(kDim);
    v1::PushSlice* slice = header.add_slices();
    slice->set_table("user");
    slice->set_num_ids(3);
    slice->set_dim(kDim);
    change(slice);
    std::string all;
    AppendArray(std::vector<uint64_t>{1}, &all);
    AppendArray(std::vector<float>{1, 1}, &all);
    absl::Status status =
        driver_.Start("Push", rpc::EncodeBulk(header, Bytes(all + payload)))->Wait().status();
    if (!status.ok()) --sequence_;
    return status;
  }
  absl::StatusOr<Bytes> Pull(const std::function<void(v1::PullSlice*)>& change, const std::string& payload) {
    v1::PullRequest header;
    v1::PullSlice* slice = header.add_slices();
    slice->set_table("user");
    slice->set_num_ids(3);
    change(slice);
    return driver_.Start("Pull", rpc::EncodeBulk(header, Bytes(payload)))->Wait();
  }
  void ExpectUnchanged() {
    EXPECT_EQ(Snapshot(), before_);
    for (const char* table : {"user", "item"}) EXPECT_EQ(driver_.Table(table).statistics().version(), 0);
  }

  const std::vector<uint64_t> kIds = {1, 2, 3};
  const std::string raw_ids_ = [this] {
    std::string ids;
    AppendArray(kIds, &ids);
    return ids;
  }();
  uint64_t sequence_ = 0;
  Driver driver_;
  std::vector<std::vector<float>> before_;
};

TEST_F(WireFormats, EveryFormatIsServed) {
  const std::vector<float> gradients = {1, 0.5f, -0.25f, 2, 4, 3};
  std::vector<float> rows = before_[0];
  for (const v1::ValueFormat format : {v1::VALUES_F32, v1::VALUES_F16, v1::VALUES_BF16, v1::VALUES_INT8}) {
    const std::string packed = Packed(kIds);
    const auto describe = [&](auto* slice) {
      slice->set_values(format);
      slice->set_ids(v1::IDS_PACKED);
      slice->set_id_bytes(packed.size());
    };
    const std::string encoded = Encoded(format, gradients);
    TANDEM_ASSERT_OK(Push(describe, packed + encoded));
    std::vector<float> sent(6);
    DecodeRows(format, encoded.data(), nullptr, 3, kDim, sent.data());
    for (size_t i = 0; i < 6; ++i) rows[i] -= sent[i];
    EXPECT_EQ(Snapshot()[0], rows) << Name(format);
    TANDEM_ASSERT_OK_AND_ASSIGN(const Bytes response, Pull(describe, packed));
    v1::PullResponse header;
    Bytes payload;
    TANDEM_ASSERT_OK(rpc::DecodeBulk(response, &header, &payload));
    EXPECT_EQ(header.slices(0).values(), format);
    EXPECT_EQ(payload.Flatten(), Encoded(format, rows)) << Name(format);
  }
}

TEST_F(WireFormats, UnknownFormatsAreRefused) {
  const auto values = [](auto* slice) { slice->set_values(static_cast<v1::ValueFormat>(7)); };
  const auto ids = [](auto* slice) { slice->set_ids(static_cast<v1::IdFormat>(2)); };
  EXPECT_THAT(Push(values, ""),
              StatusIs(kInvalid, AllOf(HasSubstr("worker 0: table 'user'"), HasSubstr("value format 7"))));
  EXPECT_THAT(Pull(values, raw_ids_), StatusIs(kInvalid, HasSubstr("value format 7")));
  EXPECT_THAT(Push(ids, ""), StatusIs(kInvalid, AllOf(HasSubstr("'user'"), HasSubstr("id format 2"))));
  EXPECT_THAT(Pull(ids, raw_ids_), StatusIs(kInvalid, HasSubstr("id format 2")));
  ExpectUnchanged();
}

TEST_F(WireFormats, PackedIdsMustBeAsManyAsIsSaid) {
  const std::string packed = Packed(kIds);
  const std::string gradients = Encoded(v1::VALUES_F32, std::vector<float>(6, 1.0f));
  const auto of = [](uint64_t count, uint64_t bytes) {
    return [count, bytes](auto* slice) {
      slice->set_ids(v1::IDS_PACKED);
      slice->set_num_ids(count);
      slice->set_id_bytes(bytes);
    };
  };
  EXPECT_THAT(Push(of(3, 1), packed + gradients), StatusIs(kInvalid, HasSubstr("id_bytes is 1")));
  EXPECT_THAT(Push(of(3, 1000), packed + gradients), StatusIs(kInvalid, HasSubstr("id_bytes is 1000")));
  EXPECT_THAT(Push(of(200, 40), packed + gradients), StatusIs(kInvalid, HasSubstr("'user'")));
  EXPECT_THAT(Push(of(3, packed.size() + 1), packed + gradients), StatusIs(kInvalid, HasSubstr("more than")));
  EXPECT_THAT(Push(of(2, packed.size()), packed + gradients), StatusIs(kInvalid));
  EXPECT_THAT(Push(of(3, 30), packed), StatusIs(kInvalid, HasSubstr("bytes are left")));
  EXPECT_THAT(
      Push(of(uint64_t{1} << 61, packed.size()), packed + gradients),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("ids need more than the message limit")));
  EXPECT_THAT(Pull(of(uint64_t{1} << 61, packed.size()), packed),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(Pull(of(~uint64_t{0}, ~uint64_t{0}), packed), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(Pull([](auto* slice) { slice->set_id_bytes(24); }, raw_ids_),
              StatusIs(kInvalid, HasSubstr("with raw ids, must be 0")));
  ExpectUnchanged();
}

TEST_F(WireFormats, CoarseNumbersThatAreNoneAreRefusedWithTheirId) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const v1::ValueFormat format : {v1::VALUES_F32, v1::VALUES_F16, v1::VALUES_BF16, v1::VALUES_INT8}) {
    const auto describe = [&](auto* slice) { slice->set_values(format); };
    for (const float wrong : {kNan, kInf, -kInf}) {
      EXPECT_THAT(Push(describe, raw_ids_ + Encoded(format, {1, 1, 1, wrong, 1, 1})),
                  StatusIs(kInvalid, AllOf(HasSubstr("worker 0: table 'user': gradient of id 2 is"),
                                           HasSubstr("push refused"))));
    }
  }
  std::string scales;
  for (const float scale : {1.0f, kInf, 1.0f}) {
    scales.append(reinterpret_cast<const char*>(&scale), 4);
    scales.append("\x01\x02", 2);
  }
  EXPECT_THAT(Push([](auto* slice) { slice->set_values(v1::VALUES_INT8); }, raw_ids_ + scales),
              StatusIs(kInvalid, AllOf(HasSubstr("id 2"), HasSubstr("int8 with scale inf"))));
  EXPECT_EQ(driver_.Table("user").statistics().refused_pushes(), 13);
  ExpectUnchanged();
}

TEST_F(WireFormats, GradientsAndRatesWithoutMeasureAreRefused) {
  EXPECT_THAT(Push([](auto*) {}, raw_ids_ + Encoded(v1::VALUES_F32, {1, 1, 1, 1, -0x1p60f, 1})),
              StatusIs(kInvalid, AllOf(HasSubstr("gradient of id 3"), HasSubstr("beyond 2^60"))));
  const std::string good = raw_ids_ + Encoded(v1::VALUES_F32, std::vector<float>(6, 1.0f));
  for (const float factor : {-1.0f, 0x1p21f, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THAT(Push([&](auto* slice) { slice->set_learning_rate_factor(factor); }, good),
                StatusIs(kInvalid, AllOf(HasSubstr("'user'"), HasSubstr("learning_rate_factor"))));
  }
  ExpectUnchanged();
}

TEST_F(WireFormats, PayloadsTooShortOrTooLongForTheFormatAreRefused) {
  for (const v1::ValueFormat format : {v1::VALUES_F16, v1::VALUES_BF16, v1::VALUES_INT8}) {
    const auto describe = [&](auto* slice) { slice->set_values(format); };
    const std::string good = raw_ids_ + Encoded(format, std::vector<float>(6, 1.0f));
    EXPECT_THAT(Push(describe, good.substr(0, good.size() - 1)), StatusIs(kInvalid, HasSubstr("too short")));
    EXPECT_THAT(Push(describe, good + '\0'), StatusIs(kInvalid, HasSubstr("too long: 1 bytes")));
  }
  ExpectUnchanged();
}

// 128 equal ids are packed in nine bytes: few bytes hold many ids, with a gradient for each.
TEST(ManyPackedIds, AreRefusedBeforeTheyTakeMoreMemoryThanAMessageMay) {
  ParameterServerOptions options;
  options.max_message_bytes = size_t{1} << 20;
  Driver driver(options);
  const auto refused =
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("message limit of 1048576 bytes"));
  // Each slice alone would be accepted.
  const auto pull = [&](const std::string& table, uint32_t ids, int slices) {
    const std::string packed = Packed(std::vector<uint64_t>(ids, 1));
    v1::PullRequest header;
    std::string payload;
    for (int s = 0; s < slices; ++s) {
      v1::PullSlice* slice = header.add_slices();
      slice->set_table(table);
      slice->set_num_ids(ids);
      slice->set_ids(v1::IDS_PACKED);
      slice->set_id_bytes(packed.size());
      slice->set_pooling(v1::SUM);
      slice->set_num_bags(1);
      payload += packed;
      AppendArray(std::vector<uint32_t>{0, ids}, &payload);
    }
    return driver.Start("Pull", rpc::EncodeBulk(header, Bytes(payload)))->Wait().status();
  };
  const auto push = [&](const std::string& table, uint32_t dim, uint32_t ids, int slices) {
    const std::string packed = Packed(std::vector<uint64_t>(ids, 1));
    v1::PushRequest header;
    header.set_epoch(1);
    header.set_sequence(1);
    std::string payload;
    for (int s = 0; s < slices; ++s) {
      v1::PushSlice* slice = header.add_slices();
      slice->set_table(table);
      slice->set_dim(dim);
      slice->set_num_ids(ids);
      slice->set_ids(v1::IDS_PACKED);
      slice->set_id_bytes(packed.size());
      slice->set_pooling(v1::SUM);
      slice->set_num_bags(1);
      payload += packed;
      AppendArray(std::vector<uint32_t>{0, ids}, &payload);
      AppendArray(std::vector<float>(dim, 1), &payload);
    }
    return driver.Start("Push", rpc::EncodeBulk(header, Bytes(payload)))->Wait().status();
  };
  for (const uint32_t dim : {1, 32}) {
    TANDEM_ASSERT_OK(driver.CreateTable(TestTable(absl::StrCat("d", dim), dim, 1, Async())));
    TANDEM_ASSERT_OK(driver.Pull(0, 0, {{absl::StrCat("d", dim), {1}}}));
  }
  EXPECT_THAT(pull("d1", 60'000, 3), refused);
  EXPECT_THAT(push("d1", 1, 60'000, 3), refused);   // for its ids
  EXPECT_THAT(push("d32", 32, 4'000, 3), refused);  // for the gradients
  EXPECT_EQ(driver.Table("d1").statistics().version(), 0);
  EXPECT_EQ(driver.Table("d32").statistics().version(), 0);
  TANDEM_EXPECT_OK(pull("d1", 60'000, 2));
  TANDEM_EXPECT_OK(push("d32", 32, 4'000, 2));
}

}  // namespace
}  // namespace tandem::ps::testing
