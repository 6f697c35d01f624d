// SPDX-License-Identifier: Apache-2.0
#include "worker/job/path_expansion.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::worker {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

std::string Expand(absl::string_view text) {
  absl::StatusOr<std::string> path = ExpandPath(text);
  return path.ok() ? *path : absl::StrCat("error: ", path.status().message());
}

TEST(PathExpansionTest, HomeAndVariablesAreFilledIn) {
  ::setenv("TANDEM_TEST_DIR", "/data", 1);
  ::unsetenv("TANDEM_TEST_UNSET");
  const std::string home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  if (home.empty()) ::setenv("HOME", "/root", 1);
  EXPECT_EQ(Expand("a/b.csv"), "a/b.csv");
  EXPECT_EQ(Expand("${TANDEM_TEST_DIR}/x${TANDEM_TEST_DIR}"), "/data/x/data");
  EXPECT_EQ(Expand("${TANDEM_TEST_UNSET:-/tmp}/x"), "/tmp/x");
  EXPECT_EQ(Expand("${TANDEM_TEST_DIR:-/tmp}/x"), "/data/x");
  EXPECT_EQ(Expand("~/x"), absl::StrCat(std::getenv("HOME"), "/x"));
  EXPECT_EQ(Expand("${TANDEM_TEST_UNSET:-~/c}/x"), absl::StrCat(std::getenv("HOME"), "/c/x"));
  EXPECT_EQ(Expand("a~/x"), "a~/x");
  EXPECT_EQ(Expand("$x $${y}"), "$x ${y}");
}

TEST(PathExpansionTest, WhatCannotBeFilledInIsRefused) {
  ::unsetenv("TANDEM_TEST_UNSET");
  EXPECT_THAT(ExpandPath("${TANDEM_TEST_UNSET}/x"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("TANDEM_TEST_UNSET, which is not set")));
  EXPECT_THAT(ExpandPath("${TANDEM"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("without '}'")));
  EXPECT_THAT(ExpandPath(""), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("empty path")));
}

TEST(PathExpansionTest, AnAddressIsNoPath) {
  ::setenv("TANDEM_TEST_BUCKET", "s3://bucket", 1);
  for (const char* text : {"s3://bucket/run", "${TANDEM_TEST_BUCKET}/run"}) {
    EXPECT_THAT(ResolvePath(text, "jobs"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("must be a path: 's3://bucket/run'")));
  }
}

TEST(PathExpansionTest, RelativePathsAreBelowTheDirectory) {
  ::setenv("TANDEM_TEST_DIR", "data", 1);
  const auto resolve = [](absl::string_view text, absl::string_view directory) {
    return ResolvePath(text, directory).value_or("error");
  };
  EXPECT_EQ(resolve("a.csv", "jobs"), "jobs/a.csv");
  EXPECT_EQ(resolve("../a.csv", "/x/jobs"), "/x/jobs/../a.csv");
  EXPECT_EQ(resolve("a.csv", "/"), "/a.csv");
  EXPECT_EQ(resolve("a.csv", ""), "a.csv");
  EXPECT_EQ(resolve("/a.csv", "jobs"), "/a.csv");
  EXPECT_EQ(resolve("~/a.csv", "jobs"), absl::StrCat(std::getenv("HOME"), "/a.csv"));
  EXPECT_EQ(resolve("${TANDEM_TEST_DIR}/a.csv", "jobs"), "data/a.csv");
  EXPECT_EQ(resolve("x/${TANDEM_TEST_DIR}", "jobs"), "jobs/x/data");
  EXPECT_EQ(resolve("", "jobs"), "error");
  EXPECT_EQ(DirectoryOf("x.yaml"), "");
  EXPECT_EQ(DirectoryOf("jobs/x.yaml"), "jobs");
  EXPECT_EQ(DirectoryOf("/x.yaml"), "/");
}

TEST(PathExpansionTest, EscapedPathsComeBack) {
  for (const char* path : {"a", "${x}", "a${", "$${x}", "a$b", "/~/x"})
    EXPECT_EQ(Expand(EscapePath(path)), path);
}

}  // namespace
}  // namespace tandem::worker
