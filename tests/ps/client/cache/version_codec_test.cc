// SPDX-License-Identifier: Apache-2.0
#include "ps/wire/version_codec.h"

#include <bit>
#include <string>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::ps {
namespace {

std::vector<uint32_t> RoundTrip(const std::vector<uint32_t>& versions, const VersionCoding& coding) {
  const uint64_t bytes = PackedVersionBytes(versions.size(), coding.bits);
  std::string packed(bytes + 1, '#');
  PackVersions(versions, coding, packed.data());
  EXPECT_EQ(packed[bytes], '#') << "written past its end";
  std::vector<uint32_t> back(versions.size());
  UnpackVersions(packed.data(), back.size(), coding, back.data());
  return back;
}

TEST(VersionCodec, GivesBackVersionsInTheBitsTheirSpreadNeeds) {
  CounterRandom random(1, 2);
  for (const uint32_t newest : {5000u, 40u, 0x80000010u, 0xffffffffu}) {
    for (const uint32_t spread : {1u, 2u, 100u, 30u}) {
      std::vector<uint32_t> versions(random.Below(200) + 2);
      for (uint32_t& version : versions) {
        version = random.Below(5) == 0 ? 0 : newest - static_cast<uint32_t>(random.Below(spread));
      }
      versions[0] = newest;
      versions[1] = newest - spread + 1;
      const VersionCoding coding = ChooseVersionCoding(versions, 1 << 20);
      EXPECT_EQ(coding.base, newest);
      EXPECT_EQ(coding.bits, std::bit_width(spread));
      EXPECT_EQ(RoundTrip(versions, coding), versions);
    }
  }
}

TEST(VersionCodec, VersionsThatPassedTwoToThe32AreNearThoseThatDidNot) {
  const std::vector<uint32_t> versions = {3, 0xfffffffe, 0, 1};
  const VersionCoding coding = ChooseVersionCoding(versions, 64);
  EXPECT_EQ(coding.base, 3u);
  EXPECT_EQ(coding.bits, 3u);
  EXPECT_EQ(RoundTrip(versions, coding), versions);
}

TEST(VersionCodec, AFewVeryOldCopiesAreGivenUp) {
  std::vector<uint32_t> versions(1000, 1 << 20);
  versions[7] = 1;
  const VersionCoding coding = ChooseVersionCoding(versions, 64);
  EXPECT_EQ(coding.bits, 1u);
  EXPECT_EQ(RoundTrip(versions, coding)[7], 0u);
  EXPECT_EQ(RoundTrip(versions, coding)[6], 1u << 20);
}

TEST(VersionCodec, NoCopiesAtAllTakeABitEach) {
  EXPECT_EQ(ChooseVersionCoding({}, 64).bits, 1u);
  const std::vector<uint32_t> none(9, 0);
  const VersionCoding coding = ChooseVersionCoding(none, 64);
  EXPECT_EQ(PackedVersionBytes(9, coding.bits), 2u);
  EXPECT_EQ(RoundTrip(none, coding), none);
}

TEST(VersionCodec, AnyBytesAreSomeVersions) {
  CounterRandom random(3, 4);
  for (uint32_t bits = 1; bits <= 32; ++bits) {
    const VersionCoding coding{.bits = bits, .base = static_cast<uint32_t>(random())};
    std::string packed(PackedVersionBytes(77, bits), '\0');
    for (char& c : packed) c = static_cast<char>(random());
    std::vector<uint32_t> versions(77);
    UnpackVersions(packed.data(), versions.size(), coding, versions.data());
    // All versions except 0, which means "none" and is code base + 1.
    std::string again(packed.size(), '\0');
    PackVersions(versions, coding, again.data());
    std::vector<uint32_t> once_more(77);
    UnpackVersions(again.data(), once_more.size(), coding, once_more.data());
    EXPECT_EQ(once_more, versions);
  }
  EXPECT_EQ(PackedVersionBytes(~uint64_t{0} / 32, 32),
            (~uint64_t{0} / 32) / 8 * 32 + (~uint64_t{0} / 32 % 8 * 32 + 7) / 8);
}

}  // namespace
}  // namespace tandem::ps
