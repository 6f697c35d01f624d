// SPDX-License-Identifier: Apache-2.0
// `tandem ps subscribe` follows real servers, while their primaries and the subscriber itself are killed. In
// the end its directory has the servers' rows.

#include <signal.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/subscription/directory_follower.h"
#include "ps/table.h"
#include "tests/cli/commands/shard_copies.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;
using testing::kTestTimeout;
using testing::TandemProcess;
using testing::TempDir;

constexpr uint32_t kServers = 2;
constexpr uint64_t kIds = 500;

// Buckets of rows, as a directory has them.
using TableCopy = std::map<uint32_t, std::map<uint64_t, float>>;

class PsSubscribeTest : public ::testing::Test {
 protected:
  PsSubscribeTest() : copies_(kServers, /*followers=*/1) {}
  void SetUp() override {
    TANDEM_ASSERT_OK_AND_ASSIGN(client_, copies_.Connect(0, 2 * kTestTimeout));
    ps::v1::TableConfig table = ps::EmbeddingTable("t", 1, ps::Sgd(1), ps::Zeros());
    *table.mutable_update_mode() = ps::Async();
    TANDEM_ASSERT_OK(client_->CreateTable(table));
  }
  void Push(uint64_t step) {
    CounterRandom random(1, step);
    std::vector<uint64_t> ids;
    for (uint64_t id = random.Below(20); id < kIds; id += 1 + random.Below(20)) ids.push_back(id);
    const std::vector<float> gradients(ids.size(), -1);
    TANDEM_ASSERT_OK(client_->Push(step, {{.table = "t", .ids = ids, .gradients = gradients.data()}}));
  }
  std::vector<std::string> Command(bool once) const {
    std::vector<std::string> args = {"ps",       "subscribe", "--store", copies_.store_address(),
                                     "--out",    dir_.path(), "--every", "0.05",
                                     "--deltas", "10"};
    if (once) args.push_back("--once");
    return args;
  }
  std::map<uint64_t, float> Scan() {
    std::map<uint64_t, float> rows;
    for (ps::ScanPosition at;;) {
      const absl::StatusOr<ps::ScannedRows> scanned = client_->ScanRows("t", at, 1000);
      TANDEM_CHECK_MSG(scanned.ok(), scanned.status().message());
      for (size_t i = 0; i < scanned->ids.size(); ++i) rows[scanned->ids[i]] = scanned->states.row(i)[0];
      if (scanned->at_end) return rows;
      at = scanned->next;
    }
  }

  ShardCopies copies_;
  const TempDir dir_;
  std::unique_ptr<ps::Client> client_;
};

// Reads what is new in the directory.
void ReadOn(ps::DirectoryFollower& follower, TableCopy* copy) {
  while (true) {
    const absl::StatusOr<bool> more =
        follower.Next([&](const ps::v1::TableConfig&, const ps::RowChanges& changes) {
          auto& bucket = (*copy)[changes.bucket];
          if (changes.whole) bucket.clear();
          for (const uint64_t id : changes.removed) bucket.erase(id);
          for (size_t i = 0; i < changes.ids.size(); ++i) bucket[changes.ids[i]] = changes.rows[i];
        });
    TANDEM_ASSERT_OK(more.status());
    if (!*more) return;
  }
}

std::map<uint64_t, float> RowsIn(const TableCopy& copy) {
  std::map<uint64_t, float> rows;
  for (const auto& [number, bucket] : copy) rows.insert(bucket.begin(), bucket.end());
  return rows;
}

TEST_F(PsSubscribeTest, TheDirectoryHasTheServersRowsAfterDeathsOnBothSides) {
  ps::DirectoryFollower follower(dir_.path());
  TableCopy copy;
  auto subscriber = std::make_unique<TandemProcess>(Command(/*once=*/false));
  ASSERT_TRUE(subscriber->WaitForOutput("step-")) << subscriber->err();
  std::atomic<bool> stop{false};
  std::thread pushes([this, &stop] {
    for (uint64_t step = 0; !stop && !HasFailure(); ++step) Push(step);
  });
  const absl::Cleanup join = [&] {
    stop = true;
    if (pushes.joinable()) pushes.join();
  };
  for (int round = 0; round < 3; ++round) {
    subscriber->Signal(SIGKILL);
    ASSERT_EQ(subscriber->Wait(), 128 + SIGKILL);
    subscriber = std::make_unique<TandemProcess>(Command(/*once=*/false));
    ASSERT_TRUE(subscriber->WaitForOutput("step-")) << subscriber->err();
    const uint32_t shard = round % kServers;
    const int primary = copies_.AwaitRedundant(shard);
    ASSERT_GE(primary, 0);
    copies_.Kill(shard, static_cast<uint32_t>(primary));
    copies_.Start(shard, static_cast<uint32_t>(primary));
    ASSERT_GE(copies_.AwaitRedundant(shard), 0) << copies_.Describe();
    ReadOn(follower, &copy);
  }
  stop = true;
  pushes.join();
  subscriber->Signal(SIGTERM);
  EXPECT_EQ(subscriber->Wait(), 0) << subscriber->err();
  const testing::Finished last = testing::RunTandem(Command(/*once=*/true));
  EXPECT_EQ(last.exit_code, 0) << last.err;
  ReadOn(follower, &copy);
  EXPECT_EQ(RowsIn(copy), Scan());
  TableCopy late;
  ps::DirectoryFollower anew(dir_.path());
  ReadOn(anew, &late);
  EXPECT_EQ(RowsIn(late), RowsIn(copy));
  const testing::Finished verified = testing::RunTandem({"ckpt", "verify", dir_.path()});
  EXPECT_EQ(verified.exit_code, 0) << verified.err;
}

TEST_F(PsSubscribeTest, ATableThatDoesNotExistIsNamed) {
  std::vector<std::string> args = Command(/*once=*/true);
  args.insert(args.end(), {"--table", "nobody"});
  const testing::Finished finished = testing::RunTandem(args);
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("nobody"));
}

}  // namespace
}  // namespace tandem::cli
