// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/grpc_status.h"

#include <string>

#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::EndsWith;
using ::testing::StartsWith;

TEST(GrpcStatusTest, CodesAndMessagesGoThereAndBack) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    EXPECT_EQ(ToGrpcStatus(status).error_code(), code);
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status);
  }
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

TEST(GrpcStatusTest, AConnectionThatWasHungUpIsToldInWordsThatHelp) {
  const grpc::Status hung_up(grpc::StatusCode::UNAVAILABLE,
                             "ipv4:127.0.0.1:1: Failed to connect to remote host: FD shutdown");
  EXPECT_THAT(FromGrpcStatus(hung_up),
              StatusIs(absl::StatusCode::kUnavailable, EndsWith("Connection refused")));
}

TEST(GrpcStatusTest, LongMessagesAreCutNotLost) {
  const absl::Status cut =
      FromGrpcStatus(ToGrpcStatus(absl::DataLossError("rows: " + std::string(100000, 'x'))));
  EXPECT_THAT(cut, StatusIs(absl::StatusCode::kDataLoss, StartsWith("rows: xxx")));
  EXPECT_THAT(std::string(cut.message()), EndsWith("... (cut; 100006 bytes in all)"));
  EXPECT_LT(cut.message().size(), 6200);
  EXPECT_GT(cut.message().size(), 6000);
}

TEST(GrpcStatusTest, BytesThatTravelEscapedCountThreeAndCharactersStayWhole) {
  std::string umlauts;
  for (int i = 0; i < 2000; ++i) umlauts += "\xc3\xa4";
  const std::string cut(FromGrpcStatus(ToGrpcStatus(absl::InternalError(umlauts))).message());
  const size_t kept = cut.find("...");
  ASSERT_NE(kept, std::string::npos);
  EXPECT_EQ(kept % 2, 0);
  EXPECT_LE(kept * 3, 6144);
  EXPECT_GT(kept * 3, 6100);
}

}  // namespace
}  // namespace tandem::rpc
