// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <memory>
#include <string>

#include "absl/strings/cord.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(AnnotateTest, PutsTheContextBeforeTheMessageAndKeepsTheRest) {
  absl::Status status = absl::NotFoundError("no row 7");
  status.SetPayload("tandem/row", absl::Cord("7"));
  const absl::Status annotated = Annotate(status, "table user");
  EXPECT_THAT(annotated, StatusIs(absl::StatusCode::kNotFound, "table user: no row 7"));
  EXPECT_EQ(annotated.GetPayload("tandem/row"), absl::Cord("7"));
  EXPECT_TRUE(Annotate(absl::OkStatus(), "table user").ok());
}

TEST(StatusMacroTest, ReturnIfErrorLeavesWithTheFirstError) {
  int steps = 0;
  const auto run = [&steps](const absl::Status& first) -> absl::Status {
    TANDEM_RETURN_IF_ERROR(first);
    ++steps;
    TANDEM_RETURN_IF_ERROR(absl::StatusOr<int>(absl::DataLossError("second")));
    ++steps;
    return absl::OkStatus();
  };
  EXPECT_THAT(run(absl::AbortedError("first")), StatusIs(absl::StatusCode::kAborted, "first"));
  EXPECT_EQ(steps, 0);
  EXPECT_THAT(run(absl::OkStatus()), StatusIs(absl::StatusCode::kDataLoss, "second"));
  EXPECT_EQ(steps, 1);
}

TEST(StatusMacroTest, AssignOrReturnMovesTheValueOut) {
  const auto run = [](absl::StatusOr<std::unique_ptr<int>> made) -> absl::StatusOr<int> {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<int> value, std::move(made));
    return *value;
  };
  EXPECT_EQ(*run(std::make_unique<int>(5)), 5);
  EXPECT_THAT(run(absl::CancelledError("stop")), StatusIs(absl::StatusCode::kCancelled, HasSubstr("stop")));
}

TEST(CheckDeathTest, SaysWhereAndWhat) {
  TANDEM_CHECK(1 + 1 == 2);
  EXPECT_DEATH(TANDEM_CHECK(1 + 1 == 3), "status_test.cc:[0-9]+: CHECK failed: 1 \\+ 1 == 3");
  EXPECT_DEATH(TANDEM_CHECK_MSG(false, "the shelf is empty"), "the shelf is empty");
}

TEST(StatusMatcherTest, TellsGoodFromBad) {
  EXPECT_THAT(absl::OkStatus(), IsOk());
  EXPECT_THAT(absl::StatusOr<int>(3), IsOk());
  EXPECT_THAT(absl::UnknownError("?"), Not(IsOk()));
  EXPECT_THAT(absl::UnknownError("?"), Not(StatusIs(absl::StatusCode::kInternal)));
  EXPECT_THAT(absl::UnknownError("?"), Not(StatusIs(absl::StatusCode::kUnknown, "!")));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto text, absl::StatusOr<std::string>("value"));
  EXPECT_EQ(text, "value");
}

TEST(TempDirTest, IsUniqueAndRemovedAtTheEnd) {
  std::string path;
  {
    const testing::TempDir one, two;
    EXPECT_NE(one.path(), two.path());
    path = one.path();
    std::filesystem::create_directories(one.File("a/b"));
    EXPECT_TRUE(std::filesystem::exists(path + "/a/b"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace tandem
