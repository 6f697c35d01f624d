// SPDX-License-Identifier: Apache-2.0
#include "weights/server/uploads.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "weights/wire/messages.h"

namespace tandem::weights {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kDropped = absl::StatusCode::kNotFound;
constexpr auto kNoWholePieces = absl::StatusCode::kInvalidArgument;

// A version of two and a half pieces of the digest.
constexpr size_t kBytes = kDigestPieceBytes * 5 / 2;

ModelInfo Info(const std::string& model, uint64_t number, size_t bytes = kBytes) {
  ModelInfo info;
  info.model = model;
  info.version = {1, number};
  info.tensors = {{"x", {static_cast<int64_t>(bytes / sizeof(float))}}};
  return info;
}

Bytes Zeros(size_t bytes) { return Bytes(std::string(bytes, '\0')); }

class UploadsTest : public ::testing::Test {
 protected:
  SimulatedClock clock_;
  Uploads uploads_{/*max_bytes=*/0, &clock_};
};

TEST_F(UploadsTest, AnUploadIsTakenOnceAndWhole) {
  TANDEM_ASSERT_OK(uploads_.Begin(7, Info("policy", 1)));
  TANDEM_ASSERT_OK(uploads_.Put(7, 2 * kDigestPieceBytes, Zeros(kDigestPieceBytes / 2)));
  TANDEM_ASSERT_OK(uploads_.Begin(7, Info("policy", 1)));  // a repeated request
  TANDEM_ASSERT_OK(uploads_.Put(7, 0, Zeros(2 * kDigestPieceBytes)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto model, uploads_.Take(7));
  EXPECT_EQ(model->values().size(), kBytes / sizeof(float));
  EXPECT_EQ(model->computed_digest, DigestOf(DigestKind::kPieces, model->info.tensors, model->values()));
  EXPECT_THAT(uploads_.Put(7, 0, Zeros(kDigestPieceBytes)), StatusIs(kDropped));
  EXPECT_THAT(uploads_.Take(7), StatusIs(kDropped));
}

TEST_F(UploadsTest, MissingPiecesAreFound) {
  TANDEM_ASSERT_OK(uploads_.Begin(7, Info("policy", 1)));
  TANDEM_ASSERT_OK(uploads_.Put(7, 0, Zeros(2 * kDigestPieceBytes)));
  EXPECT_THAT(uploads_.Take(7), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("missing")));
}

TEST_F(UploadsTest, ValuesMustBeWholePiecesOfTheModel) {
  TANDEM_ASSERT_OK(uploads_.Begin(7, Info("policy", 1)));
  EXPECT_THAT(uploads_.Put(7, 1, Zeros(kDigestPieceBytes)), StatusIs(kNoWholePieces));
  EXPECT_THAT(uploads_.Put(7, 0, Zeros(kDigestPieceBytes - 1)), StatusIs(kNoWholePieces));
  EXPECT_THAT(uploads_.Put(7, 2 * kDigestPieceBytes, Zeros(kDigestPieceBytes)), StatusIs(kNoWholePieces));
  EXPECT_THAT(uploads_.Put(7, ~uint64_t{0} - kDigestPieceBytes + 1, Zeros(kDigestPieceBytes)),
              StatusIs(kNoWholePieces));
  EXPECT_THAT(uploads_.Put(8, 0, Zeros(kDigestPieceBytes)), StatusIs(kDropped));
  EXPECT_THAT(uploads_.Begin(0, Info("policy", 2)), StatusIs(kNoWholePieces));
  EXPECT_THAT(uploads_.Begin(9, ModelInfo()), StatusIs(kNoWholePieces, HasSubstr("0 tensors")));
  EXPECT_THAT(uploads_.Begin(9, Info("policy", 2, kMaxBytesInPieces + 4)),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(UploadsTest, ANewerVersionReplacesTheOneThatIsOnItsWay) {
  TANDEM_ASSERT_OK(uploads_.Begin(7, Info("policy", 2)));
  EXPECT_THAT(uploads_.Begin(8, Info("policy", 1)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("older")));
  TANDEM_ASSERT_OK(uploads_.Begin(9, Info("value", 1)));
  TANDEM_ASSERT_OK(uploads_.Begin(10, Info("policy", 3)));
  EXPECT_THAT(uploads_.Put(7, 0, Zeros(kDigestPieceBytes)), StatusIs(kDropped));
  TANDEM_EXPECT_OK(uploads_.Put(9, 0, Zeros(kDigestPieceBytes)));
  TANDEM_EXPECT_OK(uploads_.Put(10, 0, Zeros(kDigestPieceBytes)));
}

TEST_F(UploadsTest, IdleUploadsAndTheOldestOnesAreDropped) {
  TANDEM_ASSERT_OK(uploads_.Begin(100, Info("idle", 1)));
  clock_.Advance(absl::Seconds(61));
  for (uint64_t i = 1; i <= Uploads::kMost; ++i) {
    TANDEM_ASSERT_OK(uploads_.Begin(i, Info(absl::StrCat("model", i), 1)));
    clock_.Advance(absl::Milliseconds(1));
  }
  EXPECT_THAT(uploads_.Put(100, 0, Zeros(kDigestPieceBytes)), StatusIs(kDropped));
  TANDEM_EXPECT_OK(uploads_.Put(1, 0, Zeros(kDigestPieceBytes)));  // now the second one is the oldest
  TANDEM_ASSERT_OK(uploads_.Begin(101, Info("another", 1)));
  TANDEM_EXPECT_OK(uploads_.Put(1, 0, Zeros(kDigestPieceBytes)));
  EXPECT_THAT(uploads_.Put(2, 0, Zeros(kDigestPieceBytes)), StatusIs(kDropped));
}

TEST_F(UploadsTest, IdleUploadsAreDroppedThoughNoOtherBegins) {
  EXPECT_EQ(uploads_.DropIdle(), absl::InfiniteFuture());
  const absl::Time begin = clock_.Now();
  TANDEM_ASSERT_OK(uploads_.Begin(1, Info("idle", 1)));
  TANDEM_ASSERT_OK(uploads_.Begin(2, Info("busy", 1)));
  EXPECT_EQ(uploads_.DropIdle(), begin + Uploads::kIdle);
  clock_.Advance(Uploads::kIdle / 2);
  TANDEM_ASSERT_OK(uploads_.Put(2, 0, Zeros(kDigestPieceBytes)));
  EXPECT_EQ(uploads_.state().count, 2u);
  EXPECT_EQ(uploads_.state().bytes, 2 * kBytes);
  clock_.Advance(Uploads::kIdle / 2);
  EXPECT_EQ(uploads_.DropIdle(), begin + Uploads::kIdle * 3 / 2);
  EXPECT_EQ(uploads_.state().count, 1u);
  EXPECT_EQ(uploads_.state().bytes, kBytes);
  EXPECT_EQ(uploads_.state().dropped, 1u);
  EXPECT_THAT(uploads_.Put(1, 0, Zeros(kDigestPieceBytes)), StatusIs(kDropped));
  TANDEM_EXPECT_OK(uploads_.Put(2, 0, Zeros(kDigestPieceBytes)));
}

TEST_F(UploadsTest, AnUploadThatIsTakenIsNotCountedAsDropped) {
  TANDEM_ASSERT_OK(uploads_.Begin(1, Info("policy", 1)));
  TANDEM_ASSERT_OK(uploads_.Put(1, 0, Zeros(kBytes)));
  TANDEM_ASSERT_OK(uploads_.Take(1));
  EXPECT_EQ(uploads_.state().count, 0u);
  EXPECT_EQ(uploads_.state().dropped, 0u);
  TANDEM_ASSERT_OK(uploads_.Begin(2, Info("policy", 2)));
  TANDEM_ASSERT_OK(uploads_.Begin(3, Info("policy", 3)));
  EXPECT_EQ(uploads_.state().count, 1u);
  EXPECT_EQ(uploads_.state().dropped, 1u);
}

TEST_F(UploadsTest, StayWithinTheirMemory) {
  Uploads limited(/*max_bytes=*/2 * kBytes + 8, &clock_);
  EXPECT_THAT(limited.Begin(1, Info("policy", 1, 3 * kBytes)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  TANDEM_ASSERT_OK(limited.Begin(1, Info("a", 1)));
  clock_.Advance(absl::Milliseconds(1));
  TANDEM_ASSERT_OK(limited.Begin(2, Info("b", 1)));
  clock_.Advance(absl::Milliseconds(1));
  TANDEM_ASSERT_OK(limited.Begin(3, Info("c", 1)));
  EXPECT_THAT(limited.Put(1, 0, Zeros(kDigestPieceBytes)), StatusIs(kDropped));
  TANDEM_EXPECT_OK(limited.Put(2, 0, Zeros(kDigestPieceBytes)));
}

}  // namespace
}  // namespace tandem::weights
