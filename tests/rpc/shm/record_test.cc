// SPDX-License-Identifier: Apache-2.0
#include "rpc/shm/record.h"

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "rpc/shm/layout.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc::shm {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr size_t kPayload = 2 << 20;

Record Example() {
  Record record;
  record.call = 77;
  record.deadline_ns = 123456789;
  record.text = "/tandem.v1.Echo/Echo";
  record.inline_bytes = "headertail";
  record.segments = {{SegmentRef::kInline, 6, 0}, {3, 5000, 3 * kPage}, {SegmentRef::kInline, 4, 0}};
  return record;
}

std::string Encode(const Record& record) {
  std::string out(kMaxRecord, '\xff');
  out.resize(EncodeRecord(record, out.data()));
  return out;
}

TEST(RecordTest, ARecordIsReadAsItWasWritten) {
  const Record sent = Example();
  const std::string bytes = Encode(sent);
  EXPECT_EQ(bytes.size() % kRecordUnit, 0u);
  Record got;
  TANDEM_ASSERT_OK(ParseRecord(bytes, kPayload, &got));
  EXPECT_EQ(got.kind, sent.kind);
  EXPECT_EQ(got.more, sent.more);
  EXPECT_EQ(got.call, sent.call);
  EXPECT_EQ(got.deadline_ns, sent.deadline_ns);
  EXPECT_EQ(got.code, sent.code);
  EXPECT_EQ(got.text, sent.text);
  EXPECT_EQ(got.inline_bytes, sent.inline_bytes);
  ASSERT_EQ(got.segments.size(), 3u);
  EXPECT_EQ(got.segments[1].block, 3u);
  EXPECT_EQ(got.segments[1].bytes, 5000u);
  EXPECT_EQ(got.segments[1].offset, 3 * kPage);
}

TEST(RecordTest, TheLargestRecordFits) {
  Record record;
  const std::string text(kMaxText, 't'), body(kMaxInline, 'b');
  record.text = text;
  record.inline_bytes = body;
  record.segments.push_back({SegmentRef::kInline, kMaxInline, 0});
  while (record.segments.size() < kMaxSegments) record.segments.push_back({0, 1, 0});
  const std::string bytes = Encode(record);
  EXPECT_EQ(bytes.size(), kMaxRecord);
  Record got;
  TANDEM_EXPECT_OK(ParseRecord(bytes, kPayload, &got));
}

TEST(RecordTest, EveryThingThatDoesNotFitIsNamed) {
  const auto expect = [](const char* what, const std::function<void(Record*)>& change) {
    Record record = Example();
    change(&record);
    Record got;
    EXPECT_THAT(ParseRecord(Encode(record), kPayload, &got),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(what)));
  };
  expect("unknown kind", [](Record* r) { r->kind = static_cast<RecordKind>(0); });
  expect("unknown kind", [](Record* r) { r->kind = static_cast<RecordKind>(200); });
  expect("code", [](Record* r) { r->code = static_cast<absl::StatusCode>(99); });
  expect("bytes of payload", [](Record* r) { r->segments[1].offset = kPayload - 4999; });
  expect("bytes of payload", [](Record* r) { r->segments[1].offset = ~uint64_t{0} - 100; });
  expect("bytes of payload", [](Record* r) { r->segments[1].bytes = ~uint32_t{0}; });
  expect("begins at page", [](Record* r) { r->segments[1].block = 4; });
  expect("empty segment", [](Record* r) { r->segments[1].bytes = 0; });
  expect("longer than", [](Record* r) { r->segments[0].bytes = 11; });
  expect("no segment", [](Record* r) { r->segments[0].bytes = 5; });
  Record got;
  const std::string bytes = Encode(Example());
  EXPECT_THAT(ParseRecord(bytes.substr(0, 39), kPayload, &got), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(ParseRecord(bytes.substr(0, 64), kPayload, &got), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(ParseRecord(bytes + std::string(64, '\0'), kPayload, &got),
              StatusIs(absl::StatusCode::kDataLoss));
}

// Accepted records lie within their bounds, whatever the bytes are.
TEST(RecordTest, RandomDamageIsRefusedOrHarmless) {
  CounterRandom random(1, 1);
  const std::string good = Encode(Example());
  int taken = 0;
  for (int round = 0; round < 200000; ++round) {
    std::string bytes = good;
    for (uint64_t i = random.Below(4) + 1; i > 0; --i) {
      bytes[random.Below(bytes.size())] = static_cast<char>(random.Below(256));
    }
    Record record;
    if (!ParseRecord(bytes, kPayload, &record).ok()) continue;
    ++taken;
    for (const SegmentRef& segment : record.segments) {
      ASSERT_GT(segment.bytes, 0u);
      if (segment.block == SegmentRef::kInline) continue;
      ASSERT_LE(segment.offset + segment.bytes, kPayload);
      ASSERT_LT(segment.block, kPayload / kPage);
    }
  }
  EXPECT_GT(taken, 1000);
}

class RingTest : public ::testing::Test {
 protected:
  static constexpr size_t kSize = 32 << 10;
  std::string ring_ = std::string(kSize, '\0');
  std::atomic<uint64_t> written_{0}, read_{0};
  RecordWriter writer_{ring_.data(), kSize, &written_, &read_};
  RecordReader reader_{ring_.data(), kSize, &written_, &read_};
};

TEST_F(RingTest, RecordsComeInOrderAroundTheRingManyTimes) {
  CounterRandom random(2, 1);
  uint64_t put = 0, got = 0;
  std::string copy;
  for (int round = 0; round < 20000; ++round) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const bool room, writer_.HasRoom());
    if (room && random.Below(2) == 0) {
      Record record;
      record.call = put++;
      const std::string body(random.Below(kMaxInline) + 1, static_cast<char>(record.call));
      record.inline_bytes = body;
      record.segments.push_back({SegmentRef::kInline, static_cast<uint32_t>(body.size()), 0});
      writer_.Put(Encode(record));
      continue;
    }
    EXPECT_EQ(reader_.HasMore(), got < put);
    TANDEM_ASSERT_OK_AND_ASSIGN(const bool any, reader_.Next(&copy));
    ASSERT_EQ(any, got < put);
    if (!any) continue;
    Record record;
    TANDEM_ASSERT_OK(ParseRecord(copy, kPayload, &record));
    ASSERT_EQ(record.call, got);
    ASSERT_EQ(record.inline_bytes.find_first_not_of(static_cast<char>(got)), absl::string_view::npos);
    ++got;
  }
  EXPECT_GT(got, 5000u);
}

TEST_F(RingTest, ImpossibleCountersAreNamed) {
  std::string copy;
  for (const uint64_t written : {uint64_t{kSize} + 64, uint64_t{65}, ~uint64_t{0}}) {
    written_ = written;
    EXPECT_THAT(reader_.Next(&copy).status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("is said to")));
  }
  written_ = 64;
  for (const uint32_t bytes : {0u, 1u, 128u, 0xffffffffu}) {
    std::memcpy(ring_.data(), &bytes, sizeof(bytes));
    EXPECT_THAT(reader_.Next(&copy).status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("record")));
  }
}

TEST_F(RingTest, AReaderThatIsAheadOrGoesBackIsNamed) {
  Record record;
  bool room = true;
  while (room) {
    writer_.Put(Encode(record));
    room = writer_.HasRoom().value();
  }
  read_ = 1 << 20;
  EXPECT_THAT(writer_.HasRoom().status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("to have been read")));
}

}  // namespace
}  // namespace tandem::rpc::shm
