// SPDX-License-Identifier: Apache-2.0
#include "worker/data/prefetch_reader.h"

#include <atomic>
#include <set>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "tests/worker/data/test_files.h"

namespace tandem::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;
using testing::StatusIs;

// Reads batches of one example numbered 0, 1, ..., then the end or an error.
class FakeReader : public BatchReader {
 public:
  explicit FakeReader(int batches, absl::Status end = absl::OkStatus())
      : batches_(batches), end_(std::move(end)) {}

  absl::StatusOr<bool> Next(Batch* batch) override {
    if (calls != nullptr) ++*calls;
    if (gate != nullptr) gate->WaitForNotification();
    batch->Clear();
    if (next_ == batches_) {
      if (!end_.ok()) return end_;
      return false;
    }
    batch->size = 1;
    batch->labels = {0};
    batch->num_dense = 1;
    batch->dense.assign({static_cast<float>(next_++)});
    if (memory != nullptr) memory->insert(batch->dense.data());
    return true;
  }
  uint64_t malformed_lines() const override { return next_ / 2; }

  std::atomic<int>* calls = nullptr;
  absl::Notification* gate = nullptr;        // if set, every batch waits for it
  std::set<const float*>* memory = nullptr;  // addresses of the batches returned

 private:
  const int batches_;
  const absl::Status end_;
  int next_ = 0;
};

TEST(PrefetchReader, GivesTheSameBatchesInOrder) {
  for (size_t depth : {0, 1, 2, 7, 100}) {
    PrefetchReader reader(std::make_unique<FakeReader>(20), depth);
    const Seen seen = Drain(&reader);
    TANDEM_EXPECT_OK(seen.status);
    ASSERT_THAT(seen.batches, SizeIs(20));
    for (int i = 0; i < 20; ++i) EXPECT_THAT(seen.batches[i], ElementsAre(i));
    EXPECT_EQ(seen.malformed, 10);
    Batch batch;
    EXPECT_FALSE(*reader.Next(&batch)) << "the end stays the end";
  }
}

TEST(PrefetchReader, DeliversAnErrorAfterTheBatchesBeforeIt) {
  PrefetchReader reader(std::make_unique<FakeReader>(3, absl::DataLossError("bad")), 8);
  const Seen seen = Drain(&reader);
  EXPECT_THAT(seen.batches, SizeIs(3));
  EXPECT_THAT(seen.status, StatusIs(absl::StatusCode::kDataLoss, "bad"));
  Batch batch;
  EXPECT_THAT(reader.Next(&batch), StatusIs(absl::StatusCode::kDataLoss, "bad")) << "the error stays";
}

TEST(PrefetchReader, CountsMalformedLinesOfDeliveredBatchesOnly) {
  PrefetchReader reader(std::make_unique<FakeReader>(20), 20);
  Batch batch;
  for (int i = 1; i <= 4; ++i) ASSERT_TRUE(*reader.Next(&batch));
  EXPECT_EQ(reader.malformed_lines(), 2);
}

TEST(PrefetchReader, ReadsAheadOnlyAsFarAsAsked) {
  std::atomic<int> calls = 0;
  auto fake = std::make_unique<FakeReader>(100);
  fake->calls = &calls;
  {
    PrefetchReader reader(std::move(fake), 3);
    Batch batch;
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(*reader.Next(&batch));
  }
  EXPECT_GE(calls, 10);
  EXPECT_LE(calls, 13);
}

TEST(PrefetchReader, UsesMemoryAgain) {
  std::set<const float*> memory;
  auto fake = std::make_unique<FakeReader>(1000);
  fake->memory = &memory;
  {
    PrefetchReader reader(std::move(fake), 2);
    Batch batch;
    while (*reader.Next(&batch)) {
    }
  }
  EXPECT_LE(memory.size(), 4) << "depth, one being parsed and the caller's";
}

TEST(PrefetchReader, StopsAtAnyTime) {
  for (int taken = 0; taken < 6; ++taken) {
    for (int batches : {0, 1, 3, 5, 1000}) {
      PrefetchReader reader(std::make_unique<FakeReader>(batches), 2);
      Batch batch;
      for (int i = 0; i < taken; ++i) EXPECT_EQ(*reader.Next(&batch), i < batches);
    }
  }
}

TEST(PrefetchReader, StopsWhileABatchIsBeingParsed) {
  absl::Notification gate;
  std::atomic<int> calls = 0;
  auto fake = std::make_unique<FakeReader>(10);
  fake->gate = &gate;
  fake->calls = &calls;
  absl::Notification gone;
  std::thread owner([&, reader = std::make_unique<PrefetchReader>(std::move(fake), 4)]() mutable {
    reader.reset();
    gone.Notify();
  });
  gate.Notify();
  EXPECT_TRUE(gone.WaitForNotificationWithTimeout(absl::Seconds(30)));
  owner.join();
}

TEST(PrefetchReader, ReadsRealFilesAsTheirReaderDoes) {
  const testing::TempDir dir;
  DatasetOptions options = {.schema = NumberedSchema(),
                            .train_files = {WriteFile(dir, "a.csv", NumberedCsv(3000))}};
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto data, Dataset::Open(options));
  const ReadOptions read = {.batch_size = 37, .shuffle = true, .shuffle_buffer = 100};
  TANDEM_ASSERT_OK_AND_ASSIGN(auto plain, data->Read(read));
  PrefetchReader ahead(std::move(plain), 3);
  EXPECT_EQ(Drain(&ahead).batches, ReadAll(data.get(), read).batches);
}

}  // namespace
}  // namespace tandem::worker
