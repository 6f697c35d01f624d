// SPDX-License-Identifier: Apache-2.0
#include "weights/model/digest.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "weights/model/model.h"

namespace tandem::weights {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

// The definition in digest.h, word for word.
uint64_t Simple(absl::Span<const TensorInfo> tensors, absl::Span<const float> values) {
  uint64_t layout = 0;
  for (const TensorInfo& tensor : tensors) {
    layout = HashBytes(tensor.name, layout);
    for (const int64_t d : tensor.shape) layout = Mix64(layout, static_cast<uint64_t>(d));
    layout = Mix64(layout, tensor.shape.size());
  }
  const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  uint64_t digest = Mix64(layout, bytes.size());
  for (size_t begin = 0; begin < bytes.size(); begin += kDigestPieceBytes) {
    std::string piece = bytes.substr(begin, kDigestPieceBytes);
    uint64_t hash = Mix64(layout, piece.size());
    piece.resize((piece.size() + 63) / 64 * 64);
    uint64_t lanes[8];
    for (size_t j = 0; j < 8; ++j) lanes[j] = Mix64(layout, j);
    for (size_t i = 0; i < piece.size() / 8; ++i) {
      uint64_t word;
      std::memcpy(&word, piece.data() + 8 * i, 8);
      const uint64_t h = (lanes[i % 8] ^ word) * 0x9e3779b97f4a7c15ull;
      lanes[i % 8] = h ^ (h >> 32);
    }
    for (const uint64_t lane : lanes) hash = Mix64(hash ^ lane);
    digest = Mix64(digest ^ hash);
  }
  return digest;
}

std::vector<float> Values(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i);
  return values;
}

std::vector<TensorInfo> Vector(size_t count) { return {{"x", {static_cast<int64_t>(count)}}}; }

TEST(Digest, OfPiecesIsTheOneThatIsDefined) {
  constexpr size_t kPiece = kDigestPieceBytes / sizeof(float);
  for (const size_t count : {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{17}, kPiece - 1, kPiece,
                             kPiece + 1, 70 * kPiece + 3}) {
    EXPECT_EQ(DigestOf(DigestKind::kPieces, Vector(count), Values(count)),
              Simple(Vector(count), Values(count)))
        << count;
  }
  // It travels between processes and must not change. This one needs several threads.
  EXPECT_EQ(DigestOf(DigestKind::kPieces, Vector(1'200'000), Values(1'200'000)), 5410892801411997945u);
}

TEST(Digest, ACopyOfPartsHasTheValuesAndTheirDigest) {
  CounterRandom random(5, 0);
  for (const size_t count : {size_t{0}, size_t{100}, size_t{40'000}, size_t{3'000'000}}) {
    const std::vector<float> values = Values(count);
    const absl::string_view bytes(reinterpret_cast<const char*>(values.data()), count * sizeof(float));
    std::vector<absl::string_view> parts = {""};
    for (size_t begin = 0; begin < bytes.size();) {  // parts of a message begin anywhere
      parts.push_back(bytes.substr(begin, 1 + random.Below(count)));
      begin += parts.back().size();
      if (random.Below(4) == 0) parts.emplace_back();
    }
    std::vector<float> copy(count);
    EXPECT_EQ(CopyWithDigest(Vector(count), parts, copy.data()),
              DigestOf(DigestKind::kPieces, Vector(count), values));
    EXPECT_EQ(copy, values);
  }
}

TEST(Digest, PiecesMayBecomeKnownInAnyOrder) {
  constexpr size_t kCount = 5 * kDigestPieceBytes / sizeof(float) + 7, kBytes = kCount * sizeof(float);
  const std::vector<float> values = Values(kCount);
  const char* const bytes = reinterpret_cast<const char*>(values.data());
  PiecesDigest digest(Vector(kCount), kBytes);
  std::vector<float> copy(kCount);
  for (const size_t piece : {4, 1, 5, 3, 0, 1, 2}) {  // one of them twice, as in a repeated request
    EXPECT_FALSE(digest.complete());
    const size_t offset = piece * kDigestPieceBytes, size = std::min(kDigestPieceBytes, kBytes - offset);
    const absl::string_view parts[] = {{bytes + offset, size / 3},
                                       {bytes + offset + size / 3, size - size / 3}};
    PartsReader reader(parts);
    digest.Copy(reinterpret_cast<char*>(copy.data()), offset, size, &reader);
  }
  EXPECT_TRUE(digest.complete());
  EXPECT_EQ(digest.Digest(), DigestOf(DigestKind::kPieces, Vector(kCount), values));
  EXPECT_EQ(copy, values);
  EXPECT_TRUE(digest.IsWhole(kDigestPieceBytes, 2 * kDigestPieceBytes));
  EXPECT_TRUE(digest.IsWhole(4 * kDigestPieceBytes, kDigestPieceBytes + 28));
  EXPECT_FALSE(digest.IsWhole(4 * kDigestPieceBytes, kDigestPieceBytes + 27));
  EXPECT_FALSE(digest.IsWhole(64, kDigestPieceBytes));
  EXPECT_FALSE(digest.IsWhole(5 * kDigestPieceBytes, kDigestPieceBytes));
  EXPECT_FALSE(digest.IsWhole(~uint64_t{0} / kDigestPieceBytes * kDigestPieceBytes, kDigestPieceBytes));
}

TEST(Digest, EachBitOfEachValueCounts) {
  std::vector<float> values = Values(50'000);
  const std::vector<TensorInfo> tensors = Vector(50'000);
  const uint64_t digest = DigestOf(DigestKind::kPieces, tensors, values);
  for (size_t i = 0; i < values.size(); i += 997) {
    for (const uint32_t bit : {0u, 31u}) {
      uint32_t word;
      std::memcpy(&word, &values[i], 4);
      const uint32_t damaged = word ^ (1u << bit);
      std::memcpy(&values[i], &damaged, 4);
      EXPECT_NE(DigestOf(DigestKind::kPieces, tensors, values), digest);
      std::memcpy(&values[i], &word, 4);
    }
  }
}

TEST(Digest, IsComputedAlsoIfNoThreadCanBeStarted) {
  constexpr size_t kCount = 4 << 20;  // enough for several threads
  const std::vector<float> values = Values(kCount);
  const std::vector<TensorInfo> tensors = Vector(kCount);
  const uint64_t digest = DigestOf(DigestKind::kPieces, tensors, values);
  // No address space has room for such a stack.
  pthread_attr_t normal, huge;
  ASSERT_EQ(pthread_getattr_default_np(&normal), 0);
  ASSERT_EQ(pthread_getattr_default_np(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 47), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  EXPECT_THROW(std::thread([] {}).join(), std::system_error);
  const uint64_t alone = DigestOf(DigestKind::kPieces, tensors, values);
  ASSERT_EQ(pthread_setattr_default_np(&normal), 0);
  EXPECT_EQ(alone, digest);
}

TEST(Digest, KindsOfLaterReleasesAreRefused) {
  TANDEM_EXPECT_OK(CheckDigestKind(DigestKind::kSerial));
  TANDEM_EXPECT_OK(CheckDigestKind(DigestKind::kPieces));
  EXPECT_THAT(CheckDigestKind(static_cast<DigestKind>(2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("kind 2")));
}

}  // namespace
}  // namespace tandem::weights
