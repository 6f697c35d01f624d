// SPDX-License-Identifier: Apache-2.0
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

constexpr size_t kChunkDim = 7;

// A response of two slices, the second of which has rows that go to other positions, and the expected result.
struct Response {
  std::vector<uint32_t> positions;
  std::vector<float> first, second;  // the expected rows
  Bytes wire;
};

Response MakeResponse(size_t rows, v1::ValueFormat values) {
  Response response;
  response.first.resize(rows * kChunkDim);
  response.second.resize(rows * kChunkDim);
  std::mt19937 random(5);
  for (float& x : response.first) x = static_cast<float>(random() % 256) - 128;
  for (float& x : response.second) x = static_cast<float>(random() % 256) - 128;
  response.positions.resize(rows);
  for (size_t i = 0; i < rows; ++i) response.positions[i] = static_cast<uint32_t>(i);
  std::shuffle(response.positions.begin(), response.positions.end(), random);
  std::string payload(2 * rows * RowBytes(values, kChunkDim), '\0');
  EncodeRows(values, response.first.data(), nullptr, rows, kChunkDim, payload.data());
  EncodeRows(values, response.second.data(), response.positions.data(), rows, kChunkDim,
             payload.data() + payload.size() / 2);
  v1::PullResponse header;
  for (int i = 0; i < 2; ++i) header.add_slices()->set_num_rows(rows);
  response.wire = rpc::EncodeBulk(header, Bytes(std::move(payload)));
  return response;
}

// Passes the response in chunks of `piece` bytes.
void Feed(const Bytes& wire, size_t chunk, size_t until, ChunkDecoder* decoder) {
  for (size_t at = 0; at < until; at += chunk) {
    decoder->OnChunk(at, wire.size(), wire.Sub(at, std::min(chunk, wire.size() - at)));
  }
}

TEST(ChunkDecoderTest, RowsAreInPlaceHoweverTheAnswerIsCut) {
  for (const v1::ValueFormat values : {v1::VALUES_F32, v1::VALUES_BF16}) {
    const Response response = MakeResponse(50, values);
    for (const size_t chunk : {17, 28, 29, 64, 500, 100000}) {
      std::vector<float> first(response.first.size()), second(response.second.size());
      int checks = 0;
      ChunkDecoder decoder({{values, nullptr, 50, kChunkDim, first.data()},
                            {values, response.positions.data(), 50, kChunkDim, second.data()}},
                           [&](const v1::PullResponse& header, size_t payload_bytes) {
                             ++checks;
                             EXPECT_EQ(header.slices_size(), 2);
                             EXPECT_EQ(payload_bytes, 2 * 50 * RowBytes(values, kChunkDim));
                             return absl::OkStatus();
                           });
      // A first attempt that breaks off has no effect.
      Feed(response.wire, chunk, response.wire.size() / 2, &decoder);
      Feed(response.wire, chunk, response.wire.size(), &decoder);
      TANDEM_ASSERT_OK_AND_ASSIGN(const auto left, decoder.Finish(Bytes()));
      EXPECT_FALSE(left.has_value());
      EXPECT_EQ(checks, 2);
      EXPECT_EQ(first, response.first) << chunk;
      EXPECT_EQ(second, response.second) << chunk;
    }
  }
}

TEST(ChunkDecoderTest, WhatCannotBeReadAsItComesIsLeftToTheCaller) {
  const auto none = [](const v1::PullResponse&, size_t) -> absl::Status {
    ADD_FAILURE();
    return absl::OkStatus();
  };
  // The payload first: a form that other encoders may choose.
  const Response response = MakeResponse(4, v1::VALUES_F32);
  v1::PullResponse header;
  Bytes payload;
  TANDEM_ASSERT_OK(rpc::DecodeBulk(response.wire, &header, &payload));
  Bytes turned = rpc::EncodeBulk(v1::PullResponse(), payload);
  turned.Append(Bytes(header.SerializeAsString()));
  std::vector<float> rows(2 * 4 * kChunkDim);
  ChunkDecoder decoder({{v1::VALUES_F32, nullptr, 8, kChunkDim, rows.data()}}, none);
  Feed(turned, 100, turned.size(), &decoder);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto left, decoder.Finish(Bytes()));
  ASSERT_TRUE(left.has_value());
  EXPECT_TRUE(left->Flatten() == turned.Flatten());

  // No chunks at all, or fewer than there should be.
  ChunkDecoder untold({{v1::VALUES_F32, nullptr, 8, kChunkDim, rows.data()}}, none);
  TANDEM_ASSERT_OK_AND_ASSIGN(left, untold.Finish(response.wire));
  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(left->size(), response.wire.size());
  TANDEM_ASSERT_OK_AND_ASSIGN(left, untold.Finish(Bytes()));
  EXPECT_TRUE(left.has_value());
}

TEST(ChunkDecoderTest, NothingIsWrittenOfAnAnswerThatTheCheckRefuses) {
  const Response response = MakeResponse(50, v1::VALUES_F32);
  std::vector<float> rows(100 * kChunkDim, 1.5f);
  ChunkDecoder decoder({{v1::VALUES_F32, nullptr, 100, kChunkDim, rows.data()}},
                       [](const v1::PullResponse&, size_t) { return absl::DataLossError("no"); });
  Feed(response.wire, 99, response.wire.size(), &decoder);
  EXPECT_THAT(decoder.Finish(Bytes()), StatusIs(absl::StatusCode::kDataLoss, "no"));
  EXPECT_EQ(rows, std::vector<float>(100 * kChunkDim, 1.5f));
}

}  // namespace
}  // namespace tandem::ps
