// SPDX-License-Identifier: Apache-2.0
#include "rpc/wire/bulk_codec.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "google/protobuf/stubs/logging.h"
#include "tandem/v1/echo.pb.h"
#include "tandem/v1/parameter_server.pb.h"
#include "tests/rpc/echo_service.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Pattern;

v1::EchoMessage EchoHeader() {
  v1::EchoMessage header;
  header.set_text("a header");
  for (uint64_t number : {0ull, 1ull, 300ull, ~0ull}) header.add_numbers(number);
  return header;
}

// Returns `text` split into slices of 1, 2, 3, ... bytes, as a network may deliver it.
Bytes InChunks(const std::string& text) {
  Bytes bytes;
  for (size_t begin = 0, length = 1; begin < text.size(); begin += length, ++length) {
    bytes.Append(Slice::FromString(text.substr(begin, length)));
  }
  return bytes;
}

TEST(BulkCodecTest, WritesTheBytesThatProtobufWrites) {
  for (size_t size : {size_t{0}, size_t{1}, size_t{127}, size_t{128}, size_t{65536}, size_t{1} << 21}) {
    const std::string payload = Pattern(size);
    v1::EchoMessage whole = EchoHeader();
    whole.set_payload(payload);
    EXPECT_TRUE(EncodeBulk(EchoHeader(), Bytes(payload)).Flatten() == whole.SerializeAsString()) << size;
  }
  EXPECT_EQ(EncodeBulk(v1::EchoMessage(), Bytes()).size(), 0);
}

TEST(BulkCodecTest, ProtobufReadsWhatItWrites) {
  v1::EchoMessage message;
  ASSERT_TRUE(message.ParseFromString(EncodeBulk(EchoHeader(), InChunks(Pattern(1000))).Flatten()));
  EXPECT_EQ(message.payload(), Pattern(1000));
  message.clear_payload();
  EXPECT_EQ(message.SerializeAsString(), EchoHeader().SerializeAsString());
}

TEST(BulkCodecTest, CopiesNoPayloadByte) {
  const std::string payload = Pattern(100000);
  Bytes wire = EncodeBulk(EchoHeader(), Bytes(Slice::Unowned(payload.data(), payload.size())));
  v1::EchoMessage header;
  Bytes decoded;
  TANDEM_ASSERT_OK(DecodeBulk(wire, &header, &decoded));
  ASSERT_EQ(decoded.slices().size(), 1);
  EXPECT_EQ(decoded.slices()[0].data(), payload.data());
  EXPECT_EQ(decoded.size(), payload.size());
}

TEST(BulkCodecTest, ReadsMessagesCutIntoAnyPieces) {
  for (size_t size : {0, 1, 100, 20000}) {
    v1::EchoMessage header;
    Bytes payload;
    TANDEM_ASSERT_OK(
        DecodeBulk(InChunks(EncodeBulk(EchoHeader(), Bytes(Pattern(size))).Flatten()), &header, &payload));
    EXPECT_EQ(header.SerializeAsString(), EchoHeader().SerializeAsString());
    EXPECT_EQ(payload.Flatten(), Pattern(size));
  }
}

TEST(BulkCodecTest, ThePayloadMayComeBeforeAndBetweenOtherFieldsAndTheLastOneWins) {
  v1::EchoMessage text, numbers, first, last;
  text.set_text("text");
  numbers.add_numbers(5);
  first.set_payload("first");
  last.set_payload("last");
  const std::string wire = first.SerializeAsString() + text.SerializeAsString() + last.SerializeAsString() +
                           numbers.SerializeAsString();
  v1::EchoMessage header;
  Bytes payload;
  TANDEM_ASSERT_OK(DecodeBulk(Bytes(wire), &header, &payload));
  EXPECT_EQ(header.text(), "text");
  ASSERT_EQ(header.numbers_size(), 1);
  EXPECT_EQ(header.numbers(0), 5);
  EXPECT_TRUE(header.payload().empty());
  EXPECT_EQ(payload.Flatten(), "last");
}

TEST(BulkCodecTest, FieldsOfAnotherVersionAreSkipped) {
  std::string wire = EchoHeader().SerializeAsString();
  wire += std::string("\xa0\x01\x07", 3);                    // field 20, varint
  wire += std::string("\xa9\x01", 2) + std::string(8, 'x');  // field 21, 64 bits
  wire += std::string("\xb5\x01", 2) + std::string(4, 'x');  // field 22, 32 bits
  wire += std::string("\xbb\x01\x7a\x01g\xbc\x01", 7);       // group 23, with a field 15 inside
  wire += EncodeBulk(v1::EchoMessage(), Bytes(std::string("payload"))).Flatten();
  v1::EchoMessage header;
  Bytes payload;
  TANDEM_ASSERT_OK(DecodeBulk(Bytes(wire), &header, &payload));
  EXPECT_EQ(header.text(), "a header");
  EXPECT_EQ(payload.Flatten(), "payload");
}

TEST(BulkCodecTest, MalformedMessagesAreNamedWithTheOffset) {
  const google::protobuf::LogSilencer no_complaints_about_utf8;
  const struct {
    std::string wire;
    const char* what;
  } kCases[] = {
      {std::string("\x0a", 1), "length is cut off"},
      {std::string("\x0a\x05hi", 4), "longer than what is left"},
      {std::string("\x7a\x05hi", 4), "longer than what is left"},
      {std::string("\x7a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11), "longer than what is left"},
      {std::string("\x7a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12), "cut off or too long"},
      {std::string("\x00\x00", 2), "number 0"},
      {std::string("\x10\xff", 2), "varint is cut off"},
      {std::string("\x11\x01", 2), "longer than what is left"},
      {std::string("\x14", 1), "never began"},
      {std::string("\x16", 1), "unknown wire type"},
      {std::string("\x80\x80\x80\x80\x80\x01", 6), "tag is too large"},
      {std::string(200, '\x0b'), "nested too deeply"},
      {std::string("\x0a\x01\xff", 3), "do not parse"},  // not UTF-8
  };
  for (const auto& c : kCases) {
    v1::EchoMessage header;
    Bytes payload(std::string("before"));
    const std::string prefix = "\x10\x07";  // a valid field first, so that the offset is not 0
    const absl::Status status = DecodeBulk(Bytes(prefix + c.wire), &header, &payload);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("tandem.v1.EchoMessage"), HasSubstr(c.what),
                                       HasSubstr(absl::StrCat(" of ", prefix.size() + c.wire.size())))));
    EXPECT_EQ(payload.Flatten(), "before");
  }
  v1::EchoMessage header;
  Bytes payload;
  EXPECT_THAT(DecodeBulk(Bytes(std::string("\x10\x07\x7a\x05hi", 6)), &header, &payload),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at byte 2 of 6")));
}

TEST(BulkCodecTest, EveryTruncationIsRefusedOrReadAsProtobufReadsIt) {
  v1::PushRequest push;
  push.set_worker(3);
  push.set_sequence(1 << 20);
  for (int i = 0; i < 3; ++i) {
    v1::PushSlice* slice = push.add_slices();
    slice->set_table(absl::StrCat("table", i));
    slice->set_num_ids(1000 * i);
  }
  const std::string wire = EncodeBulk(push, Bytes(Pattern(100))).Flatten();
  for (size_t length = 0; length <= wire.size(); ++length) {
    const std::string part = wire.substr(0, length);
    v1::PushRequest expected, header;
    Bytes payload;
    const bool parses = expected.ParseFromString(part);
    const absl::Status status = DecodeBulk(InChunks(part), &header, &payload);
    EXPECT_EQ(status.ok(), parses) << length;
    if (!parses) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument)) << length;
      continue;
    }
    EXPECT_EQ(payload.Flatten(), expected.payload()) << length;
    expected.clear_payload();
    EXPECT_EQ(header.SerializeAsString(), expected.SerializeAsString()) << length;
  }
}

TEST(BulkCodecTest, RandomAndDamagedBytesAreReadAsProtobufReadsThem) {
  const google::protobuf::LogSilencer no_complaints_about_utf8;
  CounterRandom random(1, 2);
  const std::string good = EncodeBulk(EchoHeader(), Bytes(Pattern(40))).Flatten();
  int accepted = 0;
  for (int round = 0; round < 50000; ++round) {
    std::string wire;
    if (round % 2 == 0) {
      wire.resize(random.Below(24));
      for (char& c : wire) c = static_cast<char>(random.Below(256));
    } else {
      wire = good;
      for (uint64_t i = 1 + random.Below(3); i > 0; --i) {
        wire[random.Below(wire.size())] = static_cast<char>(random.Below(256));
      }
    }
    v1::EchoMessage expected, header;
    Bytes payload;
    const bool parses = expected.ParseFromString(wire);
    const absl::Status status = DecodeBulk(Bytes(wire), &header, &payload);
    // Protobuf drops the upper bits of a tag that does not fit. No encoder writes such a tag, so here it is
    // an error.
    if (status.message().find("tag is too large") == absl::string_view::npos) {
      ASSERT_EQ(status.ok(), parses) << round << ": " << status;
    }
    if (!status.ok()) continue;
    ++accepted;
    ASSERT_EQ(payload.Flatten(), expected.payload()) << round;
    expected.clear_payload();
    ASSERT_EQ(header.SerializeAsString(), expected.SerializeAsString()) << round;
  }
  EXPECT_GT(accepted, 1000);  // the comparison above has seen valid and invalid messages
}

}  // namespace
}  // namespace tandem::rpc
