// SPDX-License-Identifier: Apache-2.0
// Pushes whose payload arrives as from a socket: in chunks that are cut anywhere, at any alignment.

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/server/driver.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kPushedDim = 5;
constexpr size_t kIds = 3000;  // more gradients than the server checks at a time

// Returns the same bytes in owned chunks of at most `longest` bytes, each at an odd address.
Bytes Cut(const Bytes& whole, size_t longest, uint64_t seed) {
  const std::string flat = whole.Flatten();
  CounterRandom random(seed, 1);
  Bytes cut;
  for (size_t at = 0; at < flat.size();) {
    const size_t size = std::min<size_t>(1 + random.Below(longest), flat.size() - at);
    auto memory = std::make_shared<std::vector<char>>(size + 1);
    char* const begin = memory->data() + 1;
    std::memcpy(begin, flat.data() + at, size);
    cut.Append(Slice(std::move(memory), begin, size));
    at += size;
  }
  return cut;
}

PushOf SomePush() {
  PushOf push{.table = "user", .dim = kPushedDim};
  for (size_t i = 0; i < kIds; ++i) {
    push.ids.push_back(i * 7 + 1);
    for (uint32_t d = 0; d < kPushedDim; ++d)
      push.gradients.push_back(0.001f * static_cast<float>(i) - 0.5f * d);
  }
  return push;
}

class PushInChunks : public ::testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    for (Driver* driver : {&whole_, &cut_}) {
      TANDEM_ASSERT_OK(driver->CreateTable(TestTable("user", kPushedDim, 1, Async())));
      TANDEM_ASSERT_OK(driver->Pull(0, 0, {{"user", SomePush().ids}}));  // makes the rows
    }
  }
  absl::Status Push(const PushTag& tag, const PushOf& push) {
    return cut_.Start("Push", Cut(PushRequestBytes(tag, {push}), GetParam(), tag.step))->Wait().status();
  }
  static std::vector<std::vector<float>> RowsOf(Driver& driver) {
    return driver.Pull(0, 0, {{"user", SomePush().ids}}, /*read_only=*/true).value().slices;
  }

  Driver whole_, cut_;
};

TEST_P(PushInChunks, DoesWhatItDoesInOnePiece) {
  for (uint64_t step = 0; step < 3; ++step) {
    TANDEM_ASSERT_OK(whole_.Push({.step = step}, {SomePush()}));
    TANDEM_ASSERT_OK(Push({.step = step}, SomePush()));
    EXPECT_EQ(RowsOf(whole_), RowsOf(cut_));
  }
}

TEST_P(PushInChunks, IsRefusedByTheIdOfItsOneBadNumberWhereverThatStands) {
  const std::vector<std::vector<float>> before = RowsOf(cut_);
  for (const size_t bad : {size_t{0}, kIds / 2, kIds - 1}) {
    PushOf push = SomePush();
    push.gradients[bad * kPushedDim + kPushedDim - 1] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_THAT(
        Push({.step = 0}, push),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("'user'"), HasSubstr(absl::StrCat("id ", push.ids[bad], " is NaN")))));
  }
  EXPECT_EQ(RowsOf(cut_), before);
}

TEST_P(PushInChunks, IsRefusedWhenItsEndIsMissing) {
  const Bytes whole = PushRequestBytes({}, {SomePush()});
  const std::vector<std::vector<float>> before = RowsOf(cut_);
  for (const size_t missing : {size_t{1}, size_t{4}, kPushedDim * sizeof(float)}) {
    const Bytes part = Cut(whole.Sub(0, whole.size() - missing), GetParam(), missing);
    EXPECT_THAT(cut_.Start("Push", part)->Wait(), StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_EQ(RowsOf(cut_), before);
}

INSTANTIATE_TEST_SUITE_P(Longest, PushInChunks, ::testing::Values(3, 100, 8192, 1 << 20));

}  // namespace
}  // namespace tandem::ps::testing
