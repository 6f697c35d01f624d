#include "ps/client/chunk_decoder.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "ps/wire/value_codec.h"
#include "rpc/wire/bulk_codec.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::StatusIs;

constexpr size_t kPieceDim = 7;

// An answer of two slices, of which the second's rows go to other places, and where they belong.
struct Answer {
  std::vector<uint32_t> positions;
  std::vector<float> first, second;  // as they must come out
  Bytes wire;
};

Answer MakeAnswer(size_t rows, v1::ValueFormat values) {
  Answer answer;
  answer.first.resize(rows * kPieceDim);
  answer.second.resize(rows * kPieceDim);
  std::mt19937 random(5);
  for (float& x : answer.first) x = static_cast<float>(random() % 256) - 128;
  for (float& x : answer.second) x = static_cast<float>(random() % 256) - 128;
  answer.positions.resize(rows);
  for (size_t i = 0; i < rows; ++i) answer.positions[i] = static_cast<uint32_t>(i);
  std::shuffle(answer.positions.begin(), answer.positions.end(), random);
  std::string payload(2 * rows * RowBytes(values, kPieceDim), '\0');
  EncodeRows(values, answer.first.data(), nullptr, rows, kPieceDim, payload.data());
  EncodeRows(values, answer.second.data(), answer.positions.data(), rows, kPieceDim,
             payload.data() + payload.size() / 2);
  v1::PullResponse header;
  for (int i = 0; i < 2; ++i) header.add_slices()->set_num_rows(rows);
  answer.wire = rpc::EncodeBulk(header, Bytes(std::move(payload)));
  return answer;
}

// In pieces of `piece` bytes.
void Feed(const Bytes& wire, size_t piece, size_t until, PieceDecoder* decoder) {
  for (size_t at = 0; at < until; at += piece) {
    decoder->OnPiece(at, wire.size(), wire.Sub(at, std::min(piece, wire.size() - at)));
  }
}

TEST(PieceDecoderTest, RowsAreInPlaceHoweverTheAnswerIsCut) {
  for (const v1::ValueFormat values : {v1::VALUES_F32, v1::VALUES_BF16}) {
    const Answer answer = MakeAnswer(50, values);
    for (const size_t piece : {17, 28, 29, 64, 500, 100000}) {
      std::vector<float> first(answer.first.size()), second(answer.second.size());
      int checks = 0;
      PieceDecoder decoder({{values, nullptr, 50, kPieceDim, first.data()},
                            {values, answer.positions.data(), 50, kPieceDim, second.data()}},
                           [&](const v1::PullResponse& header, size_t payload_bytes) {
                             ++checks;
                             EXPECT_EQ(header.slices_size(), 2);
                             EXPECT_EQ(payload_bytes, 2 * 50 * RowBytes(values, kPieceDim));
                             return absl::OkStatus();
                           });
      // A first try that breaks off leaves nothing behind.
      Feed(answer.wire, piece, answer.wire.size() / 2, &decoder);
      Feed(answer.wire, piece, answer.wire.size(), &decoder);
      TANDEM_ASSERT_OK_AND_ASSIGN(const auto left, decoder.Finish(Bytes()));
      EXPECT_FALSE(left.has_value());
      EXPECT_EQ(checks, 2);
      EXPECT_EQ(first, answer.first) << piece;
      EXPECT_EQ(second, answer.second) << piece;
    }
  }
}

TEST(PieceDecoderTest, WhatCannotBeReadAsItComesIsLeftToTheCaller) {
  const auto none = [](const v1::PullResponse&, size_t) -> absl::Status {
    ADD_FAILURE();
    return absl::OkStatus();
  };
  // The payload first: a form that other encoders may choose.
  const Answer answer = MakeAnswer(4, v1::VALUES_F32);
  v1::PullResponse header;
  Bytes payload;
  TANDEM_ASSERT_OK(rpc::DecodeBulk(answer.wire, &header, &payload));
  Bytes turned = rpc::EncodeBulk(v1::PullResponse(), payload);
  turned.Append(Bytes(header.SerializeAsString()));
  std::vector<float> rows(2 * 4 * kPieceDim);
  PieceDecoder decoder({{v1::VALUES_F32, nullptr, 8, kPieceDim, rows.data()}}, none);
  Feed(turned, 100, turned.size(), &decoder);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto left, decoder.Finish(Bytes()));
  ASSERT_TRUE(left.has_value());
  EXPECT_TRUE(left->Flatten() == turned.Flatten());

  // No pieces at all, or fewer than there should be.
  PieceDecoder untold({{v1::VALUES_F32, nullptr, 8, kPieceDim, rows.data()}}, none);
  TANDEM_ASSERT_OK_AND_ASSIGN(left, untold.Finish(answer.wire));
  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(left->size(), answer.wire.size());
  TANDEM_ASSERT_OK_AND_ASSIGN(left, untold.Finish(Bytes()));
  EXPECT_TRUE(left.has_value());
}

TEST(PieceDecoderTest, NothingIsWrittenOfAnAnswerThatTheCheckRefuses) {
  const Answer answer = MakeAnswer(50, v1::VALUES_F32);
  std::vector<float> rows(100 * kPieceDim, 1.5f);
  PieceDecoder decoder({{v1::VALUES_F32, nullptr, 100, kPieceDim, rows.data()}},
                       [](const v1::PullResponse&, size_t) { return absl::DataLossError("no"); });
  Feed(answer.wire, 99, answer.wire.size(), &decoder);
  EXPECT_THAT(decoder.Finish(Bytes()), StatusIs(absl::StatusCode::kDataLoss, "no"));
  EXPECT_EQ(rows, std::vector<float>(100 * kPieceDim, 1.5f));
}

}  // namespace
}  // namespace tandem::ps
