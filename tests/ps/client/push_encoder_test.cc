// SPDX-License-Identifier: Apache-2.0
#include "ps/client/push_encoder.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/wire/occurrence_codec.h"

namespace tandem::ps {
namespace {

std::vector<EncodedPush> EncodeAll(const ShardMap& map, std::vector<ResolvedPushPart> parts,
                                   bool in_place = false) {
  BufferPool pool;
  Deduper deduper;
  PushEncoder encoder(map, std::move(parts), &deduper, &pool);
  std::vector<EncodedPush> requests;
  const auto memory = [&](size_t bytes) { return pool.Get(bytes); };
  for (uint32_t server = 0; server < map.num_servers(); ++server) {
    requests.push_back(encoder.Encode(server, {.memory = memory, .reads_in_place = in_place}));
  }
  return requests;
}

TEST(PushEncoderTest, TheWireHoldsIdsThenGradientsOfEachPart) {
  const std::vector<uint64_t> ids = {7, 9};
  const std::vector<float> gradients = {1, 2, 3, 4};
  const std::vector<uint64_t> versions = {42};
  const std::vector<EncodedPush> requests = EncodeAll(
      ShardMap::Even(1),
      {{.part = {.table = "t", .ids = ids, .gradients = gradients.data(), .pulled_versions = versions},
        .dim = 2,
        .wire = {.pack_ids = PackIds::kNever}}});
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

TEST(PushEncoderTest, AnIdThatRepeatsBelongsToItsFirstSegment) {
  const std::vector<uint64_t> ids = {7, 9, 7, 7, 9, 8, 5};
  const std::vector<float> gradients(7, 1.0f);
  const std::vector<uint32_t> segments = {0, 2, 5, 5, 7};
  const std::vector<EncodedPush> requests = EncodeAll(
      ShardMap::Even(1),
      {{.part = {.table = "t", .ids = ids, .gradients = gradients.data(), .segments = segments}, .dim = 1}});
  EXPECT_EQ(requests[0].header.slices(0).num_ids(), 4u);  // 7, 9, 8, 5
  EXPECT_THAT(requests[0].header.slices(0).segment_ends(), ::testing::ElementsAre(0, 2, 2, 2, 4));
}

TEST(PushEncoderTest, AServerThatOwnsNoneOfTheIdsStillHearsOfTheStep) {
  const ShardMap map = ShardMap::Even(2);
  uint64_t id = 0;
  while (map.OwnerOf(id) != 0) ++id;
  const std::vector<uint64_t> ids = {id};
  const std::vector<float> gradients = {1};
  const std::vector<EncodedPush> requests =
      EncodeAll(map, {{.part = {.table = "t", .ids = ids, .gradients = gradients.data()}, .dim = 1}});
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].header.slices(0).num_ids(), 1u);
  ASSERT_EQ(requests[1].header.slices_size(), 1);
  EXPECT_EQ(requests[1].header.slices(0).num_ids(), 0u);
  EXPECT_TRUE(requests[1].payload.empty());
}

TEST(PushEncoderTest, GradientsOfAnIdThatRepeatsAreAddedUpInTheirOrder) {
  const std::vector<uint64_t> ids = {7, 9, 7, 9, 7};
  const std::vector<float> gradients = {1, 2, 3, 4, 10, 20, 30, 40, 100, 200};
  ResolvedPushPart push{.part = {.table = "t", .ids = ids, .gradients = gradients.data()},
                        .dim = 2,
                        .wire = {.pack_ids = PackIds::kNever}};
  const std::vector<EncodedPush> merged = EncodeAll(ShardMap::Even(1), {push});
  ASSERT_EQ(merged[0].header.slices(0).num_ids(), 2u);
  const std::vector<float> sums = {111, 222, 33, 44};
  EXPECT_EQ(std::memcmp(merged[0].payload.Flatten().data() + 2 * 8, sums.data(), 16), 0);
  push.part.repeats = false;
  EXPECT_EQ(EncodeAll(ShardMap::Even(1), {push})[0].header.slices(0).num_ids(), 5u);
}

// Returns the numbers of occurrences that a request to the only server has behind its gradients.
std::vector<uint32_t> OccurrencesOf(const EncodedPush& request, size_t dim) {
  const v1::PushSlice& slice = request.header.slices(0);
  const std::string payload = request.payload.Flatten();
  const size_t before = slice.num_ids() * (sizeof(uint64_t) + dim * sizeof(float));
  EXPECT_EQ(payload.size(), before + PackedOccurrenceBytes(slice.num_ids(), slice.occurrence_bytes()));
  if (slice.occurrence_bytes() == 0) return {};
  std::vector<uint32_t> occurrences(slice.num_ids());
  UnpackOccurrences(payload.data() + before, occurrences.size(), slice.occurrence_bytes(),
                    occurrences.data());
  return occurrences;
}

TEST(PushEncoderTest, OccurrencesAreSentForTablesThatCountThem) {
  const std::vector<uint64_t> ids = {7, 9, 7, 9, 7, 8};
  const std::vector<float> gradients(6);
  const std::vector<uint32_t> given = {1, 300, 2, ~0u, 1, 5};
  ResolvedPushPart push{.part = {.table = "t", .ids = ids, .gradients = gradients.data()},
                        .dim = 1,
                        .wire = {.pack_ids = PackIds::kNever}};
  const auto sent = [&](bool counts, bool repeats, absl::Span<const uint32_t> occurrences) {
    push.counts_occurrences = counts;
    push.part.repeats = repeats;
    push.part.occurrences = occurrences;
    return OccurrencesOf(EncodeAll(ShardMap::Even(1), {push})[0], 1);
  };
  EXPECT_THAT(sent(true, true, {}), ::testing::ElementsAre(3, 2, 1));
  EXPECT_THAT(sent(true, true, given), ::testing::ElementsAre(4, ~0u, 5));
  EXPECT_THAT(sent(true, false, {}), ::testing::ElementsAre());
  EXPECT_THAT(sent(true, false, given), ::testing::ElementsAreArray(given));
  EXPECT_THAT(sent(true, false, std::vector<uint32_t>(6, 1)), ::testing::ElementsAre());
  EXPECT_THAT(sent(false, true, given), ::testing::ElementsAre());
  EXPECT_THAT(sent(false, false, given), ::testing::ElementsAre());
}

TEST(PushEncoderTest, IdsArePackedWhereTheyCrossASocketAndItPays) {
  std::vector<uint64_t> near(256), far(256);
  for (size_t i = 0; i < near.size(); ++i) near[i] = i;
  for (size_t i = 0; i < far.size(); ++i) far[i] = Mix64(i);
  const std::vector<float> gradients(256);
  const auto format = [&](const std::vector<uint64_t>& ids, PackIds pack, bool in_place) {
    return EncodeAll(ShardMap::Even(1),
                     {{.part = {.table = "t", .ids = ids, .gradients = gradients.data()},
                       .dim = 1,
                       .wire = {.pack_ids = pack}}},
                     in_place)[0]
        .header.slices(0)
        .ids();
  };
  EXPECT_EQ(format(near, PackIds::kAuto, false), v1::IDS_PACKED);
  EXPECT_EQ(format(far, PackIds::kAuto, false), v1::IDS_RAW);
  EXPECT_EQ(format(near, PackIds::kAuto, true), v1::IDS_RAW);
  EXPECT_EQ(format(far, PackIds::kAlways, true), v1::IDS_PACKED);
  EXPECT_EQ(format(near, PackIds::kNever, false), v1::IDS_RAW);
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
  EXPECT_EQ(parts[0].gradients, a.data());  // 5 is not above 5: unchanged
}

TEST(PushEncoderTest, GradientsWithAnOwnerAreSentFromWhereTheyLie) {
  constexpr uint32_t kDim = 64;
  std::vector<uint64_t> ids(256);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  const auto gradients = std::make_shared<std::vector<float>>(ids.size() * kDim, 0.5f);
  const auto part = [&](std::shared_ptr<const void> owner) {
    return ResolvedPushPart{.part = {.table = "t",
                                     .ids = ids,
                                     .gradients = gradients->data(),
                                     .repeats = false,
                                     .owner = std::move(owner)},
                            .dim = kDim,
                            .wire = {.pack_ids = PackIds::kNever}};
  };
  const auto refers = [&](const EncodedPush& request) {
    return std::any_of(
        request.payload.slices().begin(), request.payload.slices().end(),
        [&](const Slice& slice) { return slice.data() == reinterpret_cast<const char*>(gradients->data()); });
  };
  const std::vector<EncodedPush> owned = EncodeAll(ShardMap::Even(1), {part(gradients)});
  const std::vector<EncodedPush> copied = EncodeAll(ShardMap::Even(1), {part(nullptr)});
  EXPECT_TRUE(refers(owned[0]));
  EXPECT_FALSE(refers(copied[0]));
  EXPECT_EQ(owned[0].payload.Flatten(), copied[0].payload.Flatten());
  EXPECT_GT(gradients.use_count(), 1);  // the request refers to them
  // Shared memory needs a copy in it; several servers need separate copies.
  EXPECT_FALSE(refers(EncodeAll(ShardMap::Even(1), {part(gradients)}, /*in_place=*/true)[0]));
  for (uint32_t server = 0; server < 2; ++server) {
    EXPECT_EQ(EncodeAll(ShardMap::Even(2), {part(gradients)})[server].payload.Flatten(),
              EncodeAll(ShardMap::Even(2), {part(nullptr)})[server].payload.Flatten());
  }
}

}  // namespace
}  // namespace tandem::ps
