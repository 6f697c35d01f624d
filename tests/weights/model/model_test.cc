// SPDX-License-Identifier: Apache-2.0
#include "weights/model/model.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/weights/models.h"

namespace tandem::weights {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;

TEST(Model, KeepsACopyOfItsTensors) {
  std::vector<float> weight = {1, 2, 3, 4}, bias = {5, 6}, scale = {7};
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const std::shared_ptr<Model> model,
      MakeModel({{"weight", {2, 2}, weight}, {"bias", {2}, bias}, {"scale", {}, scale}, {"none", {0}, {}}}));
  weight = bias = {};
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto found, model->Find("weight"));
  EXPECT_THAT(found, ElementsAre(1, 2, 3, 4));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto last, model->Find("scale"));
  EXPECT_THAT(last, ElementsAre(7));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto empty, model->Find("none"));
  EXPECT_TRUE(empty.empty());
  EXPECT_THAT(model->Find("gain"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("weight, bias, scale")));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(model->data.get()) % 64, 0u);
}

TEST(Model, RefusesTensorsThatAreNone) {
  const std::vector<float> two = {1, 2};
  EXPECT_THAT(MakeModel({}), StatusIs(kInvalidArgument, HasSubstr("has 0 tensors")));
  EXPECT_THAT(MakeModel({{"", {2}, two}}), StatusIs(kInvalidArgument, HasSubstr("0 bytes")));
  EXPECT_THAT(MakeModel({{"x", {2}, two}, {"x", {2}, two}}),
              StatusIs(kInvalidArgument, HasSubstr("'x' is given twice")));
  EXPECT_THAT(MakeModel({{"x", {3}, two}}), StatusIs(kInvalidArgument, HasSubstr("its shape [3] has 3")));
  EXPECT_THAT(MakeModel({{"x", {-2}, two}}), StatusIs(kInvalidArgument, HasSubstr("[-2]")));
  const int64_t huge = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(MakeModel({{"x", {huge, huge}, two}}),
              StatusIs(kInvalidArgument, HasSubstr("fit into memory")));
  EXPECT_THAT(CheckTensors(std::vector<TensorInfo>{{"x", {huge / 8}}, {"y", {huge / 8}}, {"z", {huge / 8}}}),
              StatusIs(kInvalidArgument, HasSubstr("fit into memory")));
}

TEST(Model, HasADigestOfNamesShapesAndValues) {
  const std::vector<float> values = {1, 2, 3, 4}, other = {1, 2, 3, 5};
  const auto digest = [](const NamedTensor& tensor) {
    const auto model = MakeModel({tensor});
    TANDEM_CHECK(model.ok());
    return (*model)->info.digest;
  };
  const uint64_t first = digest({"x", {4}, values});
  EXPECT_EQ(digest({"x", {4}, values}), first);
  EXPECT_NE(digest({"x", {4}, other}), first);
  EXPECT_NE(digest({"y", {4}, values}), first);
  EXPECT_NE(digest({"x", {2, 2}, values}), first);
  // The digest travels between processes and must not change.
  const std::shared_ptr<const Model> model = testing::Uniform({}, 1.5f);
  EXPECT_EQ(model->info.digest_kind, DigestKind::kPieces);
  EXPECT_EQ(model->info.digest, 17822924789846197926u);
  EXPECT_EQ(DigestOf(DigestKind::kSerial, model->info.tensors, model->values()), 3161354333583139442u);
}

TEST(Model, TheMemoryOfALargeModelIsUsedAgain) {
  constexpr size_t kCount = 1'000'000;
  std::shared_ptr<float> first = AllocateValues(kCount);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first.get()) % 64, 0u);
  const std::shared_ptr<float> other = AllocateValues(kCount);
  EXPECT_NE(other, first);
  const float* const memory = first.get();
  first.reset();
  EXPECT_EQ(AllocateValues(kCount).get(), memory);
}

TEST(Model, MoreValuesThanFitIntoMemoryAreNoCrash) {
  EXPECT_EQ(AllocateValues(std::numeric_limits<size_t>::max()), nullptr);
}

}  // namespace
}  // namespace tandem::weights
