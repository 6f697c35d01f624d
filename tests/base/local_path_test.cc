// SPDX-License-Identifier: Apache-2.0
#include "base/local_path.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

TEST(LocalPathTest, AddressesAreRefusedByTheirScheme) {
  for (const char* address : {"s3://bucket/run", "gs://b", "hdfs://host:8020/x", "abfss://c@a/x", "HTTPS://x",
                              "s3a://", "viewfs+x://y"}) {
    const std::string scheme(address, std::string(address).find("://") + 3);
    EXPECT_THAT(CheckLocalPath(address),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(address), HasSubstr(scheme), HasSubstr("mount"))));
  }
  EXPECT_THAT(CheckLocalPath("file:///data/x"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("write the path without 'file://'")));
}

TEST(LocalPathTest, PathsAreNot) {
  for (const char* path : {"", "run", "/data/run", "./s3://bucket", "runs/s3://x", "a:b", "s3:/bucket",
                           "C:/x", "://x", "1s://x", "a b://x", "day_*.csv", "latest"}) {
    TANDEM_EXPECT_OK(CheckLocalPath(path)) << path;
  }
}

}  // namespace
}  // namespace tandem
