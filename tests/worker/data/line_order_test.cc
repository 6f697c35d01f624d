// SPDX-License-Identifier: Apache-2.0
#include "worker/data/line_order.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "tests/worker/data/test_files.h"

namespace tandem::worker {
namespace {

using Tail = ReadOptions::Tail;

std::vector<int> Iota(int n) {
  std::vector<int> numbers(n);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// A file with the lines 0 .. n-1, and the orders in which workers read it.
class Numbers {
 public:
  explicit Numbers(int n) {
    std::string text;
    for (int i = 0; i < n; ++i) absl::StrAppend(&text, i, "\n");
    if (text.empty()) text = "\n";
    source_ = *LineSource::Open({WriteFile(dir_, "numbers", text)}, {});
  }

  // Checks that the order is the same with an index and without.
  std::vector<int> Order(const ReadOptions& options, const SplitRule& rule = {}) const {
    const std::vector<int> scanned = Order(options, rule, nullptr);
    EXPECT_EQ(Order(options, rule, Index(rule)), scanned);
    return scanned;
  }
  const LineSource& source() const { return *source_; }

 private:
  std::vector<int> Order(const ReadOptions& options, const SplitRule& rule,
                         std::shared_ptr<const SplitIndex> index) const {
    LineOrder order(*source_, rule, options, std::move(index));
    std::vector<int> numbers;
    uint64_t position = 0;
    while (order.Next(&position)) numbers.push_back(std::stoi(std::string(source_->LineAt(position))));
    EXPECT_FALSE(order.Next(&position)) << "the end stays the end";
    return numbers;
  }
  std::shared_ptr<const SplitIndex> Index(const SplitRule& rule) const {
    auto index = std::make_shared<SplitIndex>();
    LineSource::Cursor cursor(*source_);
    uint64_t position = 0;
    absl::string_view line;
    for (uint64_t lines = 0; cursor.Next(&position, &line); ++lines)
      index->Add(rule.Of(line, lines), position);
    return index;
  }

  testing::TempDir dir_;
  std::unique_ptr<LineSource> source_;
};

// Returns the lines that torch's DistributedSampler gives to `rank`, from the order of a single worker.
std::vector<int> Model(const std::vector<int>& order, int rank, int world, Tail tail) {
  std::vector<int> all = order;
  const size_t rounds = tail == Tail::kDrop ? order.size() / world : (order.size() + world - 1) / world;
  if (tail == Tail::kDrop) all.resize(rounds * world);
  if (tail == Tail::kPad && !order.empty()) {
    for (size_t i = 0; all.size() < rounds * world; ++i) all.push_back(order[i % order.size()]);
  }
  std::vector<int> mine;
  for (size_t i = rank; i < all.size(); i += world) mine.push_back(all[i]);
  return mine;
}

TEST(LineOrder, ShardsAsTheDistributedSamplerDoes) {
  for (int n : {0, 1, 2, 3, 7, 20, 23}) {
    const Numbers numbers(n);
    for (const bool shuffle : {false, true}) {
      ReadOptions options = {.shuffle = shuffle, .seed = 7, .epoch = 3, .shuffle_buffer = 6};
      const std::vector<int> global = numbers.Order(options);
      for (int world = 1; world <= 5; ++world) {
        for (Tail tail : {Tail::kPad, Tail::kDrop, Tail::kExact}) {
          std::multiset<int> seen;
          std::set<size_t> sizes;
          for (int rank = 0; rank < world; ++rank) {
            options.rank = rank;
            options.world_size = world;
            options.tail = tail;
            const std::vector<int> mine = numbers.Order(options);
            EXPECT_EQ(mine, Model(global, rank, world, tail))
                << n << " lines, rank " << rank << " of " << world << ", tail " << static_cast<int>(tail);
            seen.insert(mine.begin(), mine.end());
            sizes.insert(mine.size());
          }
          if (tail != Tail::kExact) {
            EXPECT_EQ(sizes.size(), 1) << "all workers see the same number";
          }
          if (tail == Tail::kExact) {
            EXPECT_LE(*sizes.rbegin() - *sizes.begin(), 1);
            EXPECT_EQ(std::vector<int>(seen.begin(), seen.end()), Iota(n)) << "each exactly once";
          }
          const std::set<int> distinct(seen.begin(), seen.end());
          if (tail == Tail::kPad) {
            EXPECT_EQ(distinct.size(), n) << "padding loses nothing";
          }
          if (tail == Tail::kDrop) {
            EXPECT_EQ(distinct.size(), seen.size()) << "dropping repeats nothing";
            EXPECT_EQ(seen.size(), n / world * world);
          }
        }
        options.rank = 0;
        options.world_size = 1;
        options.tail = Tail::kPad;
      }
    }
  }
}

TEST(LineOrder, ShuffledOrderIsAPermutationForEveryBufferSize) {
  const Numbers numbers(100);
  for (size_t buffer : {1, 2, 10, 99, 100, 101, 100000}) {
    const std::vector<int> order = numbers.Order({.shuffle = true, .shuffle_buffer = buffer});
    EXPECT_TRUE(std::is_permutation(order.begin(), order.end(), Iota(100).begin())) << buffer;
    EXPECT_EQ(order == Iota(100), buffer == 1) << buffer;
    for (size_t i = 0; i < order.size(); ++i) {
      EXPECT_LT(order[i], i + buffer) << "a line cannot leave before it came in";
    }
  }
}

TEST(LineOrder, IsAFunctionOfSeedEpochAndBuffer) {
  const Numbers numbers(200);
  const ReadOptions base = {.shuffle = true, .seed = 1, .epoch = 0, .shuffle_buffer = 50};
  const std::vector<int> order = numbers.Order(base);
  EXPECT_EQ(numbers.Order(base), order);
  for (int change = 0; change < 3; ++change) {
    ReadOptions other = base;
    if (change == 0) other.seed = 2;
    if (change == 1) other.epoch = 1;
    if (change == 2) other.shuffle_buffer = 51;
    EXPECT_NE(numbers.Order(other), order) << change;
  }
}

TEST(LineOrder, FullBufferShufflesUniformly) {
  // Each of n lines must be equally often at each of n positions: chi-square with (n-1)^2 degrees of freedom.
  constexpr int kLines = 8;
  constexpr int kRounds = 8000;
  const Numbers numbers(kLines);
  std::vector<std::vector<int>> counts(kLines, std::vector<int>(kLines));
  std::map<std::vector<int>, int> first_three;
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<int> order = numbers.Order(
        {.shuffle = true, .seed = 11, .epoch = static_cast<uint64_t>(round), .shuffle_buffer = 100});
    for (int place = 0; place < kLines; ++place) ++counts[place][order[place]];
    ++first_three[{order[0], order[1], order[2]}];
  }
  const double expected = static_cast<double>(kRounds) / kLines;
  double chi_square = 0;
  for (const auto& row : counts) {
    for (int count : row) chi_square += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(chi_square, 85.4) << "49 degrees of freedom: 1 in 1000 lies above";
  ASSERT_EQ(first_three.size(), 8 * 7 * 6);
  chi_square = 0;
  for (const auto& [triple, count] : first_three) {
    chi_square += (count - kRounds / 336.0) * (count - kRounds / 336.0) / (kRounds / 336.0);
  }
  EXPECT_LT(chi_square, 420) << "335 degrees of freedom: 1 in 1000 lies above";
}

TEST(LineOrder, SplitsAreDisjointCompleteAndOfTheRightSize) {
  constexpr int kLines = 20000;
  const Numbers numbers(kLines);
  const SplitRule rule = {.seed = 3, .valid_fraction = 0.2, .test_fraction = 0.1};
  std::vector<int> all;
  std::map<Split, size_t> sizes;
  for (Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
    const std::vector<int> part = numbers.Order({.split = split}, rule);
    sizes[split] = part.size();
    all.insert(all.end(), part.begin(), part.end());
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, Iota(kLines));
  EXPECT_NEAR(sizes[Split::kValid], 0.2 * kLines, 4 * std::sqrt(kLines * 0.2 * 0.8));
  EXPECT_NEAR(sizes[Split::kTest], 0.1 * kLines, 4 * std::sqrt(kLines * 0.1 * 0.9));
}

TEST(SplitRule, IsAFunctionOfSeedAndLine) {
  const SplitRule rule = {.seed = 3, .valid_fraction = 0.2, .test_fraction = 0.1};
  SplitRule other = rule;
  other.seed = 4;
  int moved = 0;
  for (int i = 0; i < 1000; ++i) moved += rule.Of(absl::StrCat(i), 0) != other.Of(absl::StrCat(i), 0) ? 1 : 0;
  EXPECT_GT(moved, 200);
  // A larger validation split takes lines from the training split only: the test split does not change.
  other = rule;
  other.valid_fraction = 0.5;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(rule.Of(absl::StrCat(i), 0) == Split::kTest, other.Of(absl::StrCat(i), 0) == Split::kTest);
  }
  // Results are compared between runs and machines, so the splits must never change.
  std::string splits;
  for (int i = 0; i < 40; ++i) splits += "tvT"[static_cast<int>(rule.Of(absl::StrCat("row ", i), 0))];
  EXPECT_EQ(splits, "ttvttttttttvvtttvtTtttttvttvtttvvttttttt");
}

}  // namespace
}  // namespace tandem::worker
