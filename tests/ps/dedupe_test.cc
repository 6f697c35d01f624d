// SPDX-License-Identifier: Apache-2.0
#include "ps/dedupe.h"

#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Deduped {
  std::vector<uint64_t> unique;
  std::vector<uint32_t> index;
};

// The simple implementation to compare with.
Deduped Model(const std::vector<uint64_t>& ids) {
  Deduped result;
  std::map<uint64_t, uint32_t> seen;
  for (const uint64_t id : ids) {
    const auto [it, is_new] = seen.emplace(id, static_cast<uint32_t>(result.unique.size()));
    if (is_new) result.unique.push_back(id);
    result.index.push_back(it->second);
  }
  return result;
}

void ExpectMatchesModel(Deduper* deduper, const std::vector<uint64_t>& ids) {
  Deduped got;
  deduper->Run(ids, &got.unique, &got.index);
  const Deduped want = Model(ids);
  EXPECT_EQ(got.unique, want.unique);
  EXPECT_EQ(got.index, want.index);
}

TEST(DeduperTest, KeepsTheOrderOfFirstAppearance) {
  Deduper deduper;
  Deduped got;
  deduper.Run({7, 3, 7, 0, 3}, &got.unique, &got.index);
  EXPECT_THAT(got.unique, ElementsAre(7, 3, 0));
  EXPECT_THAT(got.index, ElementsAre(0, 1, 0, 2, 1));
}

TEST(DeduperTest, NoIdsGiveNothingAndForgetEarlierResults) {
  Deduper deduper;
  Deduped got{{1, 2}, {0, 1}};
  deduper.Run({}, &got.unique, &got.index);
  EXPECT_THAT(got.unique, IsEmpty());
  EXPECT_THAT(got.index, IsEmpty());
}

TEST(DeduperTest, AllEqualIdsAreOne) {
  Deduper deduper;
  Deduped got;
  deduper.Run(std::vector<uint64_t>(1000, 42), &got.unique, &got.index);
  EXPECT_THAT(got.unique, ElementsAre(42));
  EXPECT_EQ(got.index, std::vector<uint32_t>(1000, 0));
}

TEST(DeduperTest, TheSmallestAndLargestIdsAreIdsLikeOthers) {
  Deduper deduper;
  ExpectMatchesModel(&deduper,
                     {0, std::numeric_limits<uint64_t>::max(), 0, 1, std::numeric_limits<uint64_t>::max()});
}

TEST(DeduperTest, MatchesTheModelWhenReusedForCallsOfEverySize) {
  Deduper deduper;
  CounterRandom random(/*seed=*/1, /*stream=*/0);
  for (int call = 0; call < 300; ++call) {
    std::vector<uint64_t> ids(random.Below(2000));
    const uint64_t range = 1 + random.Below(3000);  // from nearly all equal to nearly all distinct
    const uint64_t stride = random() | 1;
    for (uint64_t& id : ids) id = random.Below(range) * stride;
    ExpectMatchesModel(&deduper, ids);
  }
}

TEST(DeduperTest, IdsThatHashToTheSameCellsStayApart) {
  // Ids whose hashes agree in their low 10 bits all start probing at one cell of a table of up to 1024 cells.
  std::vector<uint64_t> ids;
  for (uint64_t id = 0; ids.size() < 400; ++id) {
    if ((Mix64(id) & 1023) == 5) ids.push_back(id);
  }
  ids.insert(ids.end(), ids.begin(), ids.end());
  Deduper deduper;
  ExpectMatchesModel(&deduper, ids);
}

TEST(DeduperTest, IdsOfOldRunsAreForgottenWhenGenerationsRunOut) {
  // Generations are 32 bits; starting near their end stands for four billion earlier calls.
  Deduper deduper(/*first_generation=*/~uint32_t{0} - 3);
  for (int call = 0; call < 8; ++call) {
    ExpectMatchesModel(&deduper, {1, 2, 3, 1});
    ExpectMatchesModel(&deduper, {3, 4, 3});
  }
}

TEST(DeduperTest, AFewIdsAreNotSampled) {
  std::vector<uint64_t> ids(Deduper::kMinToSample - 1);
  std::iota(ids.begin(), ids.end(), 0);
  EXPECT_TRUE(Deduper().SampleRepeats(ids));
}

TEST(DeduperTest, ASampleOfDistinctIdsHasNoRepeat) {
  std::vector<uint64_t> ids(100'000);
  std::iota(ids.begin(), ids.end(), 0);
  Deduper deduper;
  for (const size_t count : {Deduper::kMinToSample, size_t{4096}, ids.size()}) {
    EXPECT_FALSE(deduper.SampleRepeats(absl::MakeConstSpan(ids).subspan(0, count))) << count;
  }
}

TEST(DeduperTest, ASampleFindsIdsThatAppearTwice) {
  CounterRandom random(/*seed=*/1, /*stream=*/0);
  for (const size_t count : {Deduper::kMinToSample, size_t{4096}, size_t{100'000}}) {
    std::vector<uint64_t> ids(count);
    for (size_t i = 0; i < count; ++i) ids[i] = i / 2;
    for (size_t i = count; i > 1; --i) std::swap(ids[i - 1], ids[random() % i]);
    EXPECT_TRUE(Deduper().SampleRepeats(ids)) << count;
  }
}

TEST(DeduperTest, ARunAfterASampleIsRight) {
  std::vector<uint64_t> ids(5000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i * 7 % 4999;
  Deduper deduper;
  deduper.SampleRepeats(ids);
  ExpectMatchesModel(&deduper, ids);
}

}  // namespace
}  // namespace tandem::ps
