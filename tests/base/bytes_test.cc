// SPDX-License-Identifier: Apache-2.0
#include "base/bytes.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

// Returns `text` split at random positions, including empty slices.
Bytes Cut(const std::string& text, CounterRandom& random) {
  Bytes bytes;
  for (size_t begin = 0; begin < text.size();) {
    const size_t length = random.Below(std::min<size_t>(7, text.size() - begin) + 1);
    bytes.Append(Slice::FromString(text.substr(begin, length)));
    begin += length;
  }
  return bytes;
}

TEST(SliceTest, KeepsItsOwnerAlive) {
  auto owner = std::make_shared<const std::string>("some bytes");
  Slice part;
  {
    const Slice slice(owner, owner->data(), owner->size());
    part = slice.Sub(5, 5);
  }
  EXPECT_EQ(owner.use_count(), 2);
  EXPECT_EQ(part.view(), "bytes");
  part = Slice();
  EXPECT_EQ(owner.use_count(), 1);
}

TEST(SliceTest, FromStringTakesTheMemoryOver) {
  std::string text(1000, 'x');
  const char* data = text.data();
  const Slice slice = Slice::FromString(std::move(text));
  EXPECT_EQ(slice.data(), data);
  EXPECT_EQ(slice.size(), 1000);
}

TEST(SliceTest, UnownedCopiesNothing) {
  const uint32_t numbers[] = {1, 2, 3};
  const Slice slice = Slice::Unowned(numbers, sizeof(numbers));
  EXPECT_EQ(static_cast<const void*>(slice.data()), numbers);
  EXPECT_EQ(slice.owner(), nullptr);
}

TEST(BytesTest, AppendsSlicesAndBytesAndSkipsEmptyOnes) {
  Bytes bytes;
  EXPECT_TRUE(bytes.empty());
  bytes.Append(Slice());
  EXPECT_EQ(bytes.slices().size(), 0);
  bytes.Append(Slice::FromString("ab"));
  bytes.Append(Bytes(std::string("cd")));
  EXPECT_EQ(bytes.size(), 4);
  EXPECT_EQ(bytes.slices().size(), 2);
  EXPECT_EQ(bytes.Flatten(), "abcd");
}

TEST(BytesTest, SubIsSubstringWithoutCopies) {
  CounterRandom random(1, 1);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (uint64_t i = random.Below(40); i > 0; --i) text += static_cast<char>('a' + random.Below(26));
    const Bytes bytes = Cut(text, random);
    const size_t offset = random.Below(text.size() + 1);
    const size_t length = random.Below(text.size() - offset + 1);
    const Bytes part = bytes.Sub(offset, length);
    ASSERT_EQ(part.Flatten(), text.substr(offset, length));
    ASSERT_EQ(part.size(), length);
    if (length > 0) {
      bool shared = false;
      for (const Slice& slice : bytes.slices()) shared |= slice.owner() == part.slices()[0].owner();
      EXPECT_TRUE(shared);
    }
  }
}

TEST(BytesDeathTest, SubBeyondTheEndIsOurBug) {
  const Bytes bytes(std::string("abc"));
  EXPECT_DEATH(bytes.Sub(1, 3), "CHECK failed");
  EXPECT_DEATH(bytes.Sub(4, 0), "CHECK failed");
  EXPECT_DEATH(bytes.Sub(1, ~size_t{0}), "CHECK failed");  // offset + length would overflow
}

// Compares every way of reading with a string and a position.
TEST(BytesReaderTest, ReadsLikeAString) {
  CounterRandom random(2, 2);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (uint64_t i = random.Below(60); i > 0; --i) text += static_cast<char>('a' + random.Below(26));
    const Bytes bytes = Cut(text, random);
    BytesReader reader(bytes);
    size_t position = 0;
    std::string scratch;
    while (true) {
      const size_t left = text.size() - position;
      ASSERT_EQ(reader.remaining(), left);
      const size_t size = random.Below(12);
      switch (random.Below(4)) {
        case 0: {
          std::string out(size, '?');
          ASSERT_EQ(reader.Copy(out.data(), size), size <= left);
          if (size <= left) {
            ASSERT_EQ(out, text.substr(position, size));
            position += size;
          }
          break;
        }
        case 1:
          ASSERT_EQ(reader.Skip(size), size <= left);
          if (size <= left) position += size;
          break;
        case 2: {
          const absl::string_view run = reader.Next(size);
          ASSERT_LE(run.size(), size);
          ASSERT_EQ(run.empty(), left == 0 || size == 0);
          ASSERT_EQ(run, text.substr(position, run.size()));
          position += run.size();
          break;
        }
        default: {
          const size_t align = size_t{1} << random.Below(4);
          const char* run = reader.Contiguous(size, align, &scratch);
          ASSERT_EQ(run != nullptr, size <= left);
          if (run == nullptr) break;
          ASSERT_EQ(absl::string_view(run, size), text.substr(position, size));
          if (size > 0) {
            EXPECT_EQ(reinterpret_cast<uintptr_t>(run) % align, 0);
          }
          position += size;
        }
      }
      if (position == text.size()) break;
    }
    EXPECT_EQ(reader.remaining(), 0);
  }
}

TEST(BytesReaderTest, ContiguousStaysInPlaceWhenItCan) {
  alignas(16) char memory[64] = {};
  Bytes bytes;
  bytes.Append(Slice::Unowned(memory, 32));
  bytes.Append(Slice::Unowned(memory + 32, 32));
  std::string scratch;
  BytesReader reader(bytes);
  EXPECT_EQ(reader.Contiguous(16, 16, &scratch), memory);
  EXPECT_EQ(reader.Contiguous(4, 4, &scratch), memory + 16);
  const char* across = reader.Contiguous(16, 4, &scratch);
  EXPECT_EQ(across, scratch.data());
  EXPECT_EQ(reader.Contiguous(4, 4, &scratch), memory + 36);
  ASSERT_TRUE(reader.Skip(1));
  const char* unaligned = reader.Contiguous(8, 8, &scratch);
  EXPECT_EQ(unaligned, scratch.data());
  EXPECT_EQ(reader.Contiguous(100, 1, &scratch), nullptr);
  EXPECT_EQ(reader.remaining(), 64 - 16 - 4 - 16 - 4 - 1 - 8);
}

}  // namespace
}  // namespace tandem
