// SPDX-License-Identifier: Apache-2.0
// The limiter's inequality under concurrent inserts and samples.

#include <atomic>
#include <map>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "replay/table/table.h"
#include "tests/replay/items.h"
#include "tests/testing/status_matchers.h"

namespace tandem::replay {
namespace {

TEST(LimiterUnderThreads, TheInequalityHoldsAtEverySerialNumber) {
  constexpr int kWriters = 3, kSamplers = 3, kItems = 2000;
  const RateLimit limit = {.samples_per_insert = 2, .min_diff = 1, .max_diff = 12, .min_size = 2};
  TableOptions options = TableOptions::Uniform("replay", 50, 2);
  options.limit = limit;
  auto created = Table::Create(options);
  TANDEM_ASSERT_OK(created);
  const std::shared_ptr<Table> table = *created;

  absl::Mutex mutex;
  std::map<uint64_t, uint64_t>
      inserts_before;  // by the number of samples: the number of inserts before the last one
  std::atomic<uint64_t> sampled{0};
  std::vector<std::thread> threads;
  for (int w = 0; w < kWriters; ++w) {
    threads.emplace_back([&, w] {
      for (int i = 0; i < kItems; ++i) {
        TANDEM_ASSERT_OK(table->Insert(testing::IdItems(w * kItems + i, 1)));
        if (i % 50 == 0) {
          const TableInfo info = table->Info();
          EXPECT_TRUE(info.diff <= limit.max_diff || info.items <= limit.min_size) << info.diff;
          EXPECT_TRUE(info.diff >= limit.min_diff || info.samples == 0) << info.diff;
          // No call waits that could run.
          EXPECT_TRUE(info.waiting_inserts == 0 || !info.why_no_insert.empty());
          EXPECT_TRUE(info.waiting_samples == 0 || !info.why_no_sample.empty());
        }
      }
    });
  }
  const uint64_t total = 2 * kWriters * kItems - 12;  // always permitted in the end
  for (int s = 0; s < kSamplers; ++s) {
    threads.emplace_back([&, s] {
      const auto batch = static_cast<uint32_t>(s + 1);
      while (sampled.fetch_add(batch) + batch <= total) {
        const auto sample = table->SampleItems({.batch = batch});
        ASSERT_TRUE(sample.ok());
        ASSERT_EQ(sample->items.size(), batch);
        absl::MutexLock lock(&mutex);
        inserts_before[sample->samples] = sample->inserts;
      }
    });
  }
  // The writers end only if the samplers take enough; the last inserts may have to wait for samples that
  // nobody takes any more, so this thread takes them.
  for (size_t t = kWriters; t < threads.size(); ++t) threads[t].join();
  const uint64_t all = kWriters * kItems;
  while (table->Info().inserts < all) {
    const auto sample = table->SampleItems({.batch = 1}, "", absl::InfinitePast());
    if (sample.ok()) inserts_before[sample->samples] = sample->inserts;
    std::this_thread::yield();
  }
  for (size_t t = 0; t < kWriters; ++t) threads[t].join();

  // Inserts and samples in the order in which they happened, as their counts give it.
  uint64_t samples = 0, inserts = 0;
  const auto diff = [&] { return 2.0 * static_cast<double>(inserts) - static_cast<double>(samples); };
  for (const auto& [after, before] : inserts_before) {
    for (; inserts < before; ++inserts) {
      ASSERT_TRUE(inserts < limit.min_size || diff() + 2 <= limit.max_diff) << "insert " << inserts + 1;
    }
    samples = after;
    ASSERT_GE(inserts, limit.min_size);
    ASSERT_GE(diff(), limit.min_diff) << "sample " << samples;
  }
  EXPECT_GT(inserts_before.size(), 1000u);
  for (; inserts < all; ++inserts) ASSERT_LE(diff() + 2, limit.max_diff);
}

}  // namespace
}  // namespace tandem::replay
