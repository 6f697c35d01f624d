// What a process group computes, against an obvious model, for worlds of one to four.

#include "collectives/process_group.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "tests/collectives/group_fixture.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax};

// What rank `rank` puts in. Every rank can compute every other's.
template <typename T>
std::vector<T> Input(int rank, size_t count) {
  CounterRandom random(/*seed=*/count, /*stream=*/rank);
  std::vector<T> values(count);
  for (T& value : values) {
    value = std::is_integral_v<T> ? static_cast<T>(random() >> 20)
                                  : static_cast<T>(random.UniformDouble() * 2 - 1);
  }
  return values;
}

template <typename T>
std::vector<T> Model(ReduceOp op, int world, size_t count) {
  std::vector<T> result = Input<T>(0, count);
  for (int rank = 1; rank < world; ++rank) {
    const std::vector<T> more = Input<T>(rank, count);
    for (size_t i = 0; i < count; ++i) {
      if (op == ReduceOp::kMin) {
        result[i] = std::min(result[i], more[i]);
      } else if (op == ReduceOp::kMax) {
        result[i] = std::max(result[i], more[i]);
      } else {
        result[i] += more[i];
      }
    }
  }
  if (op == ReduceOp::kAvg) {
    for (T& value : result) value /= static_cast<T>(world);
  }
  return result;
}

template <typename T>
void AllReduceIsTheModel(ProcessGroup& group, size_t count) {
  for (ReduceOp op : kOps) {
    std::vector<T> values = Input<T>(group.rank(), count);
    TANDEM_ASSERT_OK(group.AllReduce(absl::MakeSpan(values), op));
    // The model adds in rank order as well: not a bit may differ, on any rank.
    const std::vector<T> expected = Model<T>(op, group.world_size(), count);
    EXPECT_TRUE(count == 0 || std::memcmp(values.data(), expected.data(), count * sizeof(T)) == 0)
        << "op " << static_cast<int>(op) << ", count " << count << ", rank " << group.rank();
  }
}

class ProcessGroupTest : public ::testing::TestWithParam<int> {
 protected:
  void Run(const std::function<void(ProcessGroup&)>& body) { RunRanks(GetParam(), body); }
};

TEST_P(ProcessGroupTest, AllReduceIsTheModelToTheBit) {
  Run([](ProcessGroup& group) {
    // Nothing, one, odd; around the one-shot limit; around what fits into the first message; many.
    for (size_t count : {0, 1, 2, 3, 7, 1000, 5461, 16384, 16385, 131073, 524287, 1 << 20}) {
      AllReduceIsTheModel<float>(group, count);
    }
    for (size_t count : {0, 1, 5, 8193, 300001}) {
      AllReduceIsTheModel<double>(group, count);
      AllReduceIsTheModel<int64_t>(group, count);
    }
  });
}

TEST_P(ProcessGroupTest, BroadcastGivesEveryRankTheRootsBytes) {
  Run([](ProcessGroup& group) {
    for (int root = 0; root < group.world_size(); ++root) {
      for (size_t bytes : {0, 1, 1000, 256 << 10, (256 << 10) + 1, 3 << 20}) {
        std::string data(bytes, static_cast<char>('a' + group.rank()));
        TANDEM_ASSERT_OK(group.Broadcast(data.data(), bytes, root));
        EXPECT_EQ(data, std::string(bytes, static_cast<char>('a' + root)));
      }
    }
  });
}

TEST_P(ProcessGroupTest, ABadRootIsRefusedByAllAndHarmsNothing) {
  Run([](ProcessGroup& group) {
    char byte = 0;
    EXPECT_THAT(group.Broadcast(&byte, 1, group.world_size()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("root")));
    TANDEM_EXPECT_OK(group.Barrier());
  });
}

TEST_P(ProcessGroupTest, AllGatherPutsTheRanksInOrder) {
  Run([](ProcessGroup& group) {
    for (size_t bytes : {0, 1, 17, 256 << 10, (256 << 10) + 1, 1 << 20}) {
      const std::string in(bytes, static_cast<char>('a' + group.rank()));
      std::string out(bytes * group.world_size(), '?'), expected;
      TANDEM_ASSERT_OK(group.AllGather(in.data(), bytes, out.data()));
      for (int rank = 0; rank < group.world_size(); ++rank)
        expected.append(bytes, static_cast<char>('a' + rank));
      EXPECT_EQ(out, expected);
      // In place as well.
      std::string in_place = expected;
      TANDEM_ASSERT_OK(group.AllGather(in_place.data() + group.rank() * bytes, bytes, in_place.data()));
      EXPECT_EQ(in_place, expected);
    }
  });
}

TEST_P(ProcessGroupTest, AllGatherBytesTakesAnySizes) {
  Run([](ProcessGroup& group) {
    // Rank r's size in each round: empty ones, small ones, one past the first message, in every mixture.
    const std::vector<std::vector<size_t>> kRounds = {{0, 0, 0, 0}, {5, 0, 1000, 1}, {1 << 20, 3, 0, 700000}};
    for (const std::vector<size_t>& sizes : kRounds) {
      auto bytes_of = [&](int rank) { return std::string(sizes[rank], static_cast<char>('0' + rank)); };
      auto all = group.AllGatherBytes(bytes_of(group.rank()));
      TANDEM_ASSERT_OK(all);
      ASSERT_EQ(all->size(), group.world_size());
      for (int rank = 0; rank < group.world_size(); ++rank) EXPECT_EQ((*all)[rank], bytes_of(rank));
    }
  });
}

TEST_P(ProcessGroupTest, ALongMixtureOfOperationsStaysInStep) {
  Run([](ProcessGroup& group) {
    CounterRandom random(7, 7);  // the same choices on every rank
    for (int i = 0; i < 100; ++i) {
      const size_t count = random.Below(random.Below(10) == 0 ? 200000 : 2000);
      switch (random.Below(4)) {
        case 0: {
          std::vector<float> values(count, 1.0f);
          TANDEM_ASSERT_OK(group.AllReduce(absl::MakeSpan(values), ReduceOp::kSum));
          EXPECT_TRUE(
              std::all_of(values.begin(), values.end(), [&](float v) { return v == group.world_size(); }));
          break;
        }
        case 1: {
          const int root = static_cast<int>(random.Below(group.world_size()));
          std::vector<char> data(count, static_cast<char>(group.rank() == root ? i : -1));
          TANDEM_ASSERT_OK(group.Broadcast(data.data(), data.size(), root));
          EXPECT_TRUE(
              std::all_of(data.begin(), data.end(), [&](char c) { return c == static_cast<char>(i); }));
          break;
        }
        case 2: {
          const int64_t mine = group.rank() + i;
          std::vector<int64_t> all(group.world_size());
          TANDEM_ASSERT_OK(group.AllGather(&mine, sizeof(mine), all.data()));
          for (int rank = 0; rank < group.world_size(); ++rank) EXPECT_EQ(all[rank], rank + i);
          break;
        }
        default:
          TANDEM_ASSERT_OK(group.Barrier());
      }
    }
  });
}

TEST_P(ProcessGroupTest, GroupsOfOneStoreDoNotDisturbEachOther) {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (const char* name : {"dense", "metrics"}) {
    for (int rank = 0; rank < GetParam(); ++rank) {
      threads.emplace_back([&, name, rank] {
        ProcessGroupOptions options;
        options.name = name;
        options.rank = rank;
        options.world_size = GetParam();
        TANDEM_ASSERT_OK_AND_ASSIGN(auto group, InitProcessGroup(&store, options));
        for (int i = 0; i < 50; ++i) {
          std::vector<double> one(100, name[0]);
          TANDEM_ASSERT_OK(group->AllReduce(absl::MakeSpan(one), ReduceOp::kAvg));
          EXPECT_EQ(one[99], name[0]);
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(Worlds, ProcessGroupTest, ::testing::Values(1, 2, 3, 4),
                         [](const auto& info) { return absl::StrCat("Of", info.param); });

}  // namespace
}  // namespace tandem::collectives
