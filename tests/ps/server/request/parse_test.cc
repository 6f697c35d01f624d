// SPDX-License-Identifier: Apache-2.0
// Parsing alone: what a request says, before any table is known.

#include "ps/server/request/parse.h"

#include <sys/resource.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/server/driver.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsNan;

class Parse : public ::testing::Test {
 protected:
  BufferPool buffers_;
  const ParseOptions options_{.buffers = buffers_, .max_message_bytes = 1000};
};

TEST_F(Parse, APullOfTablesThatNobodyKnows) {
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const ParsedRequest request,
      ParsePull(PullRequestBytes(3, 7, {{"a", {1, 2}}, {"b", {5, 6, 7}, v1::MEAN, {0, 1, 3}}}, true),
                options_));
  EXPECT_EQ(request.worker, 3);
  EXPECT_EQ(request.step, 7);
  EXPECT_TRUE(request.read_only);
  ASSERT_EQ(request.slices.size(), 2);
  EXPECT_EQ(request.slices[0].table_name, "a");
  EXPECT_THAT(request.slices[0].ids, ElementsAre(1, 2));
  EXPECT_EQ(request.slices[0].rows(), 2);
  EXPECT_EQ(request.slices[0].wire_bytes, 16);
  EXPECT_EQ(request.slices[1].table_name, "b");
  EXPECT_THAT(request.slices[1].offsets, ElementsAre(0, 1, 3));
  EXPECT_EQ(request.slices[1].rows(), 2);
  EXPECT_EQ(request.memory_bytes, 2 * request.payload.size() + 4);  // and padding
}

TEST_F(Parse, APushWithItsLargestGradient) {
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const ParsedRequest request,
      ParsePush(PushRequestBytes({.worker = 1, .step = 4},
                                 {{"a", 2, {1, 2}, {1, -3, 2, 0}},
                                  {"b", 1, {9}, {std::numeric_limits<float>::quiet_NaN()}}}),
                options_));
  EXPECT_EQ(request.epoch, 1);
  EXPECT_EQ(request.sequence, 5);
  EXPECT_EQ(request.learning_rate_factor, 1.0f);
  ASSERT_EQ(request.slices.size(), 2);
  EXPECT_EQ(request.slices[0].dim, 2);
  EXPECT_THAT(request.slices[0].gradients, ElementsAre(1, -3, 2, 0));
  EXPECT_EQ(request.slices[0].largest_gradient, 3.0f);
  EXPECT_THAT(request.slices[1].largest_gradient, IsNan());
}

// As from a client that forgets to set the field.
TEST_F(Parse, GradientsOfDimZeroAreRefused) {
  for (const std::vector<float>& gradients : {std::vector<float>(), std::vector<float>(4)}) {
    EXPECT_THAT(ParsePush(PushRequestBytes({}, {{"a", 0, {1, 2}, gradients}}), options_),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("table 'a': gradients of dim 0")));
  }
}

TEST_F(Parse, ADimBeyondAnyPayloadIsRefused) {
  constexpr uint32_t kHuge = std::numeric_limits<uint32_t>::max();
  EXPECT_THAT(ParsePush(PushRequestBytes({}, {{"a", kHuge, {1}, {1}}}), options_),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("limit of 1000 bytes")));
  TANDEM_EXPECT_OK(ParsePush(PushRequestBytes({}, {{"a", kHuge, {}, {}}}), options_));
}

TEST_F(Parse, SegmentsMustCoverTheIdsInOrder) {
  const auto parse = [&](std::vector<uint64_t> ends) {
    return ParsePush(PushRequestBytes({}, {{.table = "a",
                                            .dim = 1,
                                            .ids = {1, 2, 3},
                                            .gradients = {1, 1, 1},
                                            .segment_ends = std::move(ends)}}),
                     options_);
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(const ParsedRequest request, parse({0, 2, 2, 3}));
  EXPECT_THAT(request.slices[0].segment_ends, ElementsAre(0, 2, 2, 3));
  TANDEM_EXPECT_OK(parse({}));
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(parse({2, 1, 3}), StatusIs(kInvalid, HasSubstr("segment_ends[1] is 1, must be in 2 .. 3")));
  EXPECT_THAT(parse({1, 4}), StatusIs(kInvalid, HasSubstr("segment_ends[1] is 4")));
  EXPECT_THAT(parse({~uint64_t{0}}), StatusIs(kInvalid, HasSubstr("must be in 0 .. 3")));
  EXPECT_THAT(parse({1, 2}), StatusIs(kInvalid, HasSubstr("must be num_ids, 3")));
  EXPECT_THAT(parse(std::vector<uint64_t>(70000, 3)), StatusIs(kInvalid, HasSubstr("at most 65536")));
}

TEST_F(Parse, OccurrencesFollowTheGradients) {
  const auto parse = [&](uint32_t width, std::string packed) {
    return ParsePush(PushRequestBytes({}, {{.table = "a",
                                            .dim = 1,
                                            .ids = {4, 5, 6},
                                            .gradients = {1, 2, 3},
                                            .occurrence_bytes = width,
                                            .occurrences = std::move(packed)},
                                           {.table = "b", .dim = 1, .ids = {7}, .gradients = {9}}}),
                     options_);
  };
  const std::vector<std::pair<uint32_t, std::string>> packed = {
      {1, std::string("\1\2\xff\7", 4)},  // what pads the numbers may be anything
      {2, std::string("\1\0\2\0\xff\0\0\0", 8)},
      {4, std::string("\1\0\0\0\2\0\0\0\xff\0\0\0", 12)}};
  for (const auto& [width, bytes] : packed) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const ParsedRequest request, parse(width, bytes));
    EXPECT_THAT(request.slices[0].occurrences, ElementsAre(1, 2, 255));
    EXPECT_THAT(request.slices[0].gradients, ElementsAre(1, 2, 3));
    EXPECT_EQ(request.slices[0].wire_bytes, 3 * (8 + 4) + bytes.size());
    EXPECT_THAT(request.slices[1].occurrences, ElementsAre());
    EXPECT_THAT(request.slices[1].ids, ElementsAre(7));
    EXPECT_THAT(request.slices[1].gradients, ElementsAre(9));
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(const ParsedRequest most, parse(4, std::string(12, '\xff')));
  EXPECT_THAT(most.slices[0].occurrences, ElementsAre(~0u, ~0u, ~0u));
}

TEST_F(Parse, OccurrencesThatCannotBeAreRefused) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto parse = [&](const PushOf& push) { return ParsePush(PushRequestBytes({}, {push}), options_); };
  PushOf push = {.table = "a", .dim = 1, .ids = {4, 5, 6}, .gradients = {1, 2, 3}};
  for (const uint32_t width : {3u, 5u, 8u, ~0u}) {
    push.occurrence_bytes = width;
    push.occurrences = std::string(40, '\1');
    EXPECT_THAT(parse(push), StatusIs(kInvalid, HasSubstr("occurrence_bytes is"))) << width;
  }
  push.occurrence_bytes = 2;
  push.occurrences = std::string("\1\0\0\0\1\0\0\0", 8);
  EXPECT_THAT(parse(push), StatusIs(kInvalid, HasSubstr("table 'a': id 5 has 0 occurrences")));
  for (size_t size = 0; size < 8; ++size) {
    push.occurrences = std::string(size, '\1');
    EXPECT_THAT(parse(push), StatusIs(kInvalid, HasSubstr("the occurrences of 3 ids need 8 bytes")));
  }
  push.occurrences = std::string(9, '\1');
  EXPECT_THAT(parse(push), StatusIs(kInvalid, HasSubstr("payload too long")));
  push.occurrence_bytes = 0;
  push.occurrences = std::string(4, '\1');
  EXPECT_THAT(parse(push), StatusIs(kInvalid, HasSubstr("payload too long")));
  push = {.table = "a",
          .dim = 1,
          .ids = {4, 5},
          .gradients = {1},
          .pooling = v1::SUM,
          .offsets = {0, 2},
          .occurrence_bytes = 1,
          .occurrences = std::string(4, '\1')};
  EXPECT_THAT(parse(push), StatusIs(kInvalid, HasSubstr("with pooling, must be 0")));
  // No ids, no numbers.
  TANDEM_EXPECT_OK(parse({.table = "a", .dim = 1, .occurrence_bytes = 4}));
}

TEST_F(Parse, TheShareOfAGlobalBatchIsAFraction) {
  const auto parse = [&](float share) {
    return ParsePush(PushRequestBytes({.batch_share = share}, {{"a", 1, {1}, {1}}}), options_);
  };
  for (const float share : {1.5f, -0.5f, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THAT(parse(share), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("batch_share")));
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(const ParsedRequest half, parse(0.5f));
  EXPECT_EQ(half.batch_share, 0.5f);
  TANDEM_ASSERT_OK_AND_ASSIGN(const ParsedRequest absent, parse(0));
  EXPECT_EQ(absent.batch_share, 1.0f);
}

// 64 MiB of empty slices, two bytes each, took 10 GB once they were parsed.
TEST_F(Parse, AMessageOfMillionsOfEmptySlicesIsRefusedBeforeItIsParsed) {
  struct rusage before, after;
  // The tags of field 4 of PullRequest and field 5 of PushRequest.
  for (const char tag : {'\x22', '\x2a'}) {
    std::string wire(size_t{64} << 20, '\0');
    for (size_t i = 0; i < wire.size(); i += 2) wire[i] = tag;
    const Bytes request(std::move(wire));
    ASSERT_EQ(getrusage(RUSAGE_SELF, &before), 0);
    const absl::Status status =
        tag == '\x22' ? ParsePull(request, options_).status() : ParsePush(request, options_).status();
    ASSERT_EQ(getrusage(RUSAGE_SELF, &after), 0);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("a header of more than")));
    EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 32 << 10) << "KiB";
  }
}

TEST_F(Parse, TheNumberOfSlicesIsLimited) {
  std::vector<PullOf> slices(kMaxSlices, PullOf{"a", {}});
  TANDEM_EXPECT_OK(ParsePull(PullRequestBytes(3, 7, slices), options_));
  slices.push_back({"a", {}});
  EXPECT_THAT(ParsePull(PullRequestBytes(3, 7, slices), options_),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("worker 3: pull of 1025 slices")));
}

TEST(Bind, ADimThatIsNotTheTablesIsRefused) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(TestTable("user", 2, 1, Async())));
  for (const uint32_t dim : {1u, std::numeric_limits<uint32_t>::max()}) {
    EXPECT_THAT(driver.Push({}, {{"user", dim, {}, {}}}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("but its dim is 2")));
  }
  TANDEM_EXPECT_OK(driver.Push({}, {{"user", 2, {}, {}}}));
}

}  // namespace
}  // namespace tandem::ps::testing
