// SPDX-License-Identifier: Apache-2.0
#include "base/copy_bytes.h"

#include <cstddef>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace tandem {
namespace {

// Distances modulo a page select the way of copying.
TEST(CopyBytesTest, CopiesAllBytesAndNoOthersAtAnyDistanceOfTheArrays) {
  constexpr size_t kPage = 4096;
  std::vector<unsigned char> from(4 * kPage);
  std::iota(from.begin(), from.end(), 1);
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{2047}, size_t{2048}, size_t{2049}, size_t{4096}, size_t{7001}}) {
    for (size_t distance = 0; distance < kPage; distance += distance < 32 || distance > kPage - 32 ? 1 : 61) {
      std::vector<unsigned char> to(4 * kPage, 0);
      const size_t base =
          (kPage + reinterpret_cast<size_t>(from.data()) - reinterpret_cast<size_t>(to.data()) % kPage) %
          kPage;
      const size_t at = base + distance;
      ASSERT_EQ((reinterpret_cast<size_t>(to.data() + at) - reinterpret_cast<size_t>(from.data())) % kPage,
                distance);
      CopyBytes(to.data() + at, from.data(), bytes);
      for (size_t i = 0; i < to.size(); ++i) {
        const bool inside = i >= at && i < at + bytes;
        ASSERT_EQ(to[i], inside ? from[i - at] : 0)
            << bytes << " bytes at distance " << distance << ", byte " << i;
      }
    }
  }
}

}  // namespace
}  // namespace tandem
