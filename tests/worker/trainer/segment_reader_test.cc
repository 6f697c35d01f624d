// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer/segment_reader.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace tandem::worker {
namespace {

// Delivers `batches` empty batches.
class CountedReader : public BatchReader {
 public:
  explicit CountedReader(uint64_t batches) : left_(batches) {}
  absl::StatusOr<bool> Next(Batch*) override {
    if (left_ == 0) return false;
    --left_;
    return true;
  }
  uint64_t malformed_lines() const override { return 7; }

 private:
  uint64_t left_;
};

int Read(SegmentReader& reader) {
  Batch batch;
  int batches = 0;
  while (reader.Next(&batch).value()) ++batches;
  return batches;
}

TEST(SegmentReaderTest, DeliversASegmentAtATime) {
  CountedReader source(10);
  SegmentReader reader(&source, /*begin=*/100);
  EXPECT_EQ(Read(reader), 0);
  reader.SetEnd(104);
  EXPECT_EQ(Read(reader), 4);
  EXPECT_EQ(reader.batches(), 104u);
  reader.SetEnd(107);
  EXPECT_EQ(Read(reader), 3);
  EXPECT_EQ(reader.malformed_lines(), 7u);
}

TEST(SegmentReaderTest, CountsNoBatchThatTheSourceDoesNotHave) {
  CountedReader source(3);
  SegmentReader reader(&source, 0);
  reader.SetEnd(10);
  EXPECT_EQ(Read(reader), 3);
  EXPECT_EQ(reader.batches(), 3u);
  EXPECT_EQ(reader.end(), 10u);
}

TEST(SegmentReaderTest, BlocksWhileItIsFrozenAndEndsWhereItIsTold) {
  CountedReader source(1000);
  SegmentReader reader(&source, 0);
  reader.SetEnd(1000);
  Batch batch;
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(reader.Next(&batch).value());
  EXPECT_EQ(reader.Freeze(), 5u);
  std::atomic<int> more{0};
  std::thread ahead([&] { more = Read(reader); });
  reader.Continue(8);
  ahead.join();
  EXPECT_EQ(more, 3);
  EXPECT_EQ(reader.batches(), 8u);
}

TEST(SegmentReaderTest, AtItsEndItDoesNotBlockWhileItIsFrozen) {
  CountedReader source(10);
  SegmentReader reader(&source, 0);
  reader.SetEnd(2);
  EXPECT_EQ(Read(reader), 2);
  EXPECT_EQ(reader.Freeze(), 2u);
  EXPECT_EQ(Read(reader), 0);
  reader.Continue(2);
}

}  // namespace
}  // namespace tandem::worker
