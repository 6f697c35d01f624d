#include "ps/client/push_encoder.h"

#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::ps {
namespace {

TEST(PushEncoderTest, TheWireHoldsIdsThenGradientsOfEachPart) {
  const ShardMap map = ShardMap::Even(1);
  const std::vector<uint64_t> ids = {7, 9};
  const std::vector<float> gradients = {1, 2, 3, 4};
  const std::vector<uint64_t> versions = {42};
  BufferPool pool;
  std::vector<EncodedPush> requests = EncodePush(
      map, {{.table = "t", .ids = ids, .gradients = gradients.data(), .pulled_versions = versions}}, {2},
      &pool);
  ASSERT_EQ(requests.size(), 1u);
  const v1::PushSlice& slice = requests[0].header.slices(0);
  EXPECT_EQ(slice.table(), "t");
  EXPECT_EQ(slice.num_ids(), 2u);
  EXPECT_EQ(slice.dim(), 2u);
  EXPECT_EQ(slice.pulled_version(), 42u);
  const std::string payload = requests[0].payload.Flatten();
  ASSERT_EQ(payload.size(), 2 * 8 + 4 * 4u);
  EXPECT_EQ(std::memcmp(payload.data(), ids.data(), 16), 0);
  EXPECT_EQ(std::memcmp(payload.data() + 16, gradients.data(), 16), 0);
}

TEST(PushEncoderTest, AServerThatOwnsNoneOfTheIdsStillHearsOfTheStep) {
  const ShardMap map = ShardMap::Even(2);
  uint64_t id = 0;
  while (map.OwnerOf(id) != 0) ++id;
  const std::vector<uint64_t> ids = {id};
  const std::vector<float> gradients = {1};
  BufferPool pool;
  std::vector<EncodedPush> requests =
      EncodePush(map, {{.table = "t", .ids = ids, .gradients = gradients.data()}}, {1}, &pool);
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].header.slices(0).num_ids(), 1u);
  ASSERT_EQ(requests[1].header.slices_size(), 1);
  EXPECT_EQ(requests[1].header.slices(0).num_ids(), 0u);
  EXPECT_TRUE(requests[1].payload.empty());
}

TEST(ClipGlobalNormsTest, ScalesATablesPartsTogetherAndLeavesOthersAlone) {
  const std::vector<uint64_t> ids = {1, 2};
  const std::vector<float> a = {3, 0}, b = {0, 4}, c = {30, 40};
  std::vector<PushPart> parts = {{.table = "t", .ids = ids, .gradients = a.data()},
                                 {.table = "t", .ids = ids, .gradients = b.data()},
                                 {.table = "other", .ids = ids, .gradients = c.data()}};
  std::vector<std::vector<float>> scaled;
  ClipGlobalNorms({1, 1, 1}, {1.0f, 1.0f, 0.0f}, &parts, &scaled);
  EXPECT_FLOAT_EQ(parts[0].gradients[0], 0.6f);
  EXPECT_FLOAT_EQ(parts[1].gradients[1], 0.8f);
  EXPECT_EQ(parts[2].gradients, c.data());
  parts[0].gradients = a.data();
  parts[1].gradients = b.data();
  ClipGlobalNorms({1, 1, 1}, {5.0f, 5.0f, 0.0f}, &parts, &scaled);
  EXPECT_EQ(parts[0].gradients, a.data());  // 5 is not above 5: the same bits
}

}  // namespace
}  // namespace tandem::ps
