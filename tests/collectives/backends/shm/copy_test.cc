// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/shm/copy.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

namespace tandem::collectives::shm {
namespace {

TEST(CopyTest, StreamedBytesArriveAtEveryAlignmentAndLength) {
  std::vector<char> from(5000), to(5200);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 31 + 1);
  for (const size_t length : {0, 1, 63, 255, 256, 257, 320, 1000, 4096, 4999}) {
    for (const size_t offset : {0, 1, 16, 63}) {
      std::fill(to.begin(), to.end(), 0);
      Copy(to.data() + offset, from.data() + offset % 2, length, WriteHint::kStream);
      StreamFence();
      ASSERT_EQ(std::memcmp(to.data() + offset, from.data() + offset % 2, length), 0) << length;
      ASSERT_EQ(to[offset + length], 0);
    }
  }
}

}  // namespace
}  // namespace tandem::collectives::shm
