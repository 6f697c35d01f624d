// SPDX-License-Identifier: Apache-2.0
#include "ps/wire/id_codec.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::string Pack(const std::vector<uint64_t>& ids) {
  IdPacker packer;
  std::string packed(packer.Plan(ids), '\0');
  // Exactly as much memory as was planned, so that a sanitizer sees a byte too many.
  auto exact = std::make_unique<char[]>(packed.size());
  packer.Write(ids, exact.get());
  std::memcpy(packed.data(), exact.get(), packed.size());
  return packed;
}

absl::StatusOr<std::vector<uint64_t>> Unpack(const std::string& packed, size_t count) {
  auto exact = std::make_unique<char[]>(packed.size());
  std::memcpy(exact.get(), packed.data(), packed.size());
  std::vector<uint64_t> ids(count);
  TANDEM_RETURN_IF_ERROR(UnpackIds(absl::string_view(exact.get(), packed.size()), count, ids.data()));
  return ids;
}

void ExpectComesBack(const std::vector<uint64_t>& ids) {
  const std::string packed = Pack(ids);
  EXPECT_GE(packed.size(), MinPackedBytes(ids.size()));
  EXPECT_LE(packed.size(), MaxPackedBytes(ids.size()));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<uint64_t> back, Unpack(packed, ids.size()));
  ASSERT_EQ(back, ids);
}

TEST(IdCodecTest, IdsOfEveryWidthAndNumberComeBackInTheirOrder) {
  CounterRandom random(1, 0);
  for (const size_t count : {0, 1, 2, 7, 127, 128, 129, 255, 256, 300, 1000}) {
    for (int width = 0; width <= 64; ++width) {
      const uint64_t mask = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
      const uint64_t base = random();
      std::vector<uint64_t> ids(count);
      for (uint64_t& id : ids) id = base + (random() & mask);  // may wrap around
      ExpectComesBack(ids);
      for (uint64_t& id : ids) id = random() & mask;
      ExpectComesBack(ids);
      std::sort(ids.begin(), ids.end());
      ExpectComesBack(ids);
      std::reverse(ids.begin(), ids.end());
      ExpectComesBack(ids);
    }
  }
}

TEST(IdCodecTest, TheExtremesComeBack) {
  ExpectComesBack({0});
  ExpectComesBack({~uint64_t{0}});
  ExpectComesBack({0, ~uint64_t{0}, 0, 1, ~uint64_t{0} - 1});
  ExpectComesBack(std::vector<uint64_t>(500, 42));
}

TEST(IdCodecTest, IdsThatLieCloseTogetherTakeAsManyBitsAsTheirDistances) {
  std::vector<uint64_t> row(1024);
  for (size_t i = 0; i < row.size(); ++i) row[i] = 1'000'000'000'000 + i;
  EXPECT_EQ(Pack(row).size(), 8 * (9 + 128 / 8));  // deltas of one bit
  CounterRandom random(2, 0);
  for (uint64_t& id : row) id = random.Below(20'000'000);
  EXPECT_LE(Pack(row).size(), 8 * (9 + 128 * 25 / 8));
  EXPECT_TRUE(PackingPays(Pack(row).size(), row.size()));
  for (uint64_t& id : row) id = random();
  EXPECT_EQ(Pack(row).size(), MaxPackedBytes(row.size()));
  EXPECT_FALSE(PackingPays(Pack(row).size(), row.size()));
}

// The layout that the header promises, written out by hand.
TEST(IdCodecTest, TheBytesAreThoseOfTheHeader) {
  const std::vector<uint64_t> ids = {0x1005, 0x1000, 0x1007};  // base 0x1000, values 5, 0, 7 of 3 bits
  const std::string packed = Pack(ids);
  const std::string expected("\x03\x00\x10\x00\x00\x00\x00\x00\x00\xc5\x01", 11);
  EXPECT_EQ(packed, expected);
}

TEST(IdCodecTest, WhatDoesNotHoldTheCountIsRefused) {
  std::vector<uint64_t> ids(300);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = Mix64(i) % 5000;
  const std::string packed = Pack(ids);
  for (const size_t count : {0, 1, 128, 172, 256, 299, 301, 384, 1000}) {
    // The last block is filled up to a whole byte: a count that needs as many bytes cannot be told apart.
    EXPECT_THAT(Unpack(packed, count), StatusIs(kInvalid)) << count;
  }
  for (size_t size = 0; size < packed.size(); ++size) {
    EXPECT_THAT(Unpack(packed.substr(0, size), ids.size()), StatusIs(kInvalid)) << size;
  }
  EXPECT_THAT(Unpack(packed + '\0', ids.size()), StatusIs(kInvalid, HasSubstr("1 bytes more")));
}

TEST(IdCodecTest, AWidthThatNobodyWritesIsRefused) {
  for (int head = 0; head < 256; ++head) {
    std::string packed = Pack({1, 2, 3});
    packed[0] = static_cast<char>(head);
    packed.resize(9 + (3 * (head & 0x7f) + 7) / 8);
    const int width = head & 0x7f;
    if (width <= 56 || width == 64) {
      TANDEM_EXPECT_OK(Unpack(packed, 3));
    } else {
      EXPECT_THAT(Unpack(packed, 3), StatusIs(kInvalid, HasSubstr("width")));
    }
  }
}

TEST(IdCodecTest, NoBytesMakeItReadOrWriteElsewhere) {
  CounterRandom random(3, 0);
  for (int round = 0; round < 20000; ++round) {
    std::string packed(random.Below(200), '\0');
    for (char& c : packed) c = static_cast<char>(random());
    // Heads of plausible width, so that decoding goes on.
    if (!packed.empty() && random.Below(2) == 0) packed[0] = static_cast<char>(random.Below(24));
    const size_t count = random.Below(300);
    std::vector<uint64_t> ids(count + 1, 0x5555);
    (void)UnpackIds(packed, count, ids.data());
    ASSERT_EQ(ids.back(), 0x5555u);
  }
}

}  // namespace
}  // namespace tandem::ps
