// SPDX-License-Identifier: Apache-2.0
// A store on a disk: what it has acknowledged survives the process, whatever it was killed in.

#include "cluster/store/store_disk.h"
#include "cluster/join.h"

#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/read_file.h"
#include "cluster/store/remote_store.h"
#include "cluster/store/store_server.h"
#include "tests/cluster/store/killed_store.h"
#include "tests/testing/processes/processes.h"
#include "tests/testing/random_seed.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A store in memory with its disk.
struct OnDisk {
  explicit OnDisk(const std::string& directory, const StoreLimits& limits = {}) : store(limits) {
    auto opened = StoreDisk::Open(directory, &store, nullptr);
    TANDEM_EXPECT_OK(opened);
    if (opened.ok()) disk = *std::move(opened);
  }
  void AwaitSynced() {
    absl::Notification synced;
    disk->WhenSynced([&](const absl::Status& status) {
      TANDEM_EXPECT_OK(status);
      synced.Notify();
    });
    synced.WaitForNotification();
  }
  MemoryStore store;
  std::unique_ptr<StoreDisk> disk;
};

// Everything in a store, in an order that does not depend on hashing.
struct Everything {
  std::map<std::string, std::string> values;
  std::map<std::string, std::vector<std::string>> queues;
  bool operator==(const Everything&) const = default;
};
Everything EverythingIn(const MemoryStore& store) {
  Everything all;
  const StoreContents contents = store.Contents([] {});
  all.values.insert(contents.values.begin(), contents.values.end());
  for (const auto& [queue, item] : contents.items) all.queues[queue].push_back(item);
  return all;
}

TEST(StoreDiskTest, ARestartedStoreHasWhatEveryKindOfChangeHasLeft) {
  const uint64_t seed = testing::RandomSeed();
  CounterRandom random(seed, 1);
  TempDir directory;
  Everything model;
  for (int life = 0; life < 12; ++life) {
    OnDisk one(directory.File("d"));
    ASSERT_NE(one.disk, nullptr);
    EXPECT_EQ(EverythingIn(one.store), model) << "life " << life;
    MemoryStore& store = one.store;
    for (int change = 0; change < 50; ++change) {
      const std::string key = absl::StrCat("k", random.Below(6)), queue = absl::StrCat("q", random.Below(2));
      // Large values make the log outgrow its content, so that it is rewritten.
      const std::string value = absl::StrCat(change, std::string(random.Below(60000), 'v'));
      switch (random.Below(7)) {
        case 0:
          TANDEM_ASSERT_OK(store.Set(key, value));
          model.values[key] = value;
          break;
        case 1: {
          TANDEM_ASSERT_OK_AND_ASSIGN(const int64_t sum, store.Add("count", change));
          model.values["count"] = absl::StrCat(sum);
          break;
        }
        case 2: {
          const bool equal = random.Below(2) == 0;
          const std::string held = model.values.count(key) > 0 ? model.values[key] : "";
          TANDEM_ASSERT_OK(store.CompareSet(key, equal ? held : held + "!", value));
          if (equal) model.values[key] = value;
          break;
        }
        case 3:
          TANDEM_ASSERT_OK(store.Append("appended", "xy"));
          model.values["appended"] += "xy";
          break;
        case 4:
          TANDEM_ASSERT_OK(store.MultiSet({"a" + key, "b" + key}, {value, key}));
          model.values["a" + key] = value;
          model.values["b" + key] = key;
          break;
        case 5:
          TANDEM_ASSERT_OK(store.Delete(key));
          model.values.erase(key);
          break;
        default:
          if (random.Below(2) == 0 || model.queues[queue].empty()) {
            TANDEM_ASSERT_OK(store.Push(queue, value));
            model.queues[queue].push_back(value);
          } else {
            EXPECT_EQ(store.Pop(queue, testing::kTestTimeout).value(), model.queues[queue].front());
            model.queues[queue].erase(model.queues[queue].begin());
          }
          if (model.queues[queue].empty()) model.queues.erase(queue);
      }
    }
  }
  // 600 changes of up to 60 kB each: the log was rewritten.
  EXPECT_LT(std::filesystem::file_size(directory.File("d/log")), 12u << 20);
}

TEST(StoreDiskTest, ARepeatedRequestIsNotAppliedAgainAfterARestart) {
  TempDir directory;
  {
    OnDisk one(directory.File("d"));
    EXPECT_EQ(one.store.Add("n", 5, "r1").value(), 5);
    EXPECT_EQ(one.store.CompareSet("k", "", "mine", "r2").value(), "mine");
    EXPECT_EQ(one.store.Append("a", "xyz", "r3").value(), 3);
    TANDEM_ASSERT_OK(one.store.Push("q", "1", "r4"));
    TANDEM_ASSERT_OK(one.store.Push("q", "2", "r5"));
    EXPECT_EQ(one.store.TryPop("q", "r6").value(), "1");
    TANDEM_ASSERT_OK(one.store.Set("gone", "", "r7"));
    EXPECT_TRUE(one.store.Delete("gone", "r8").value());
    // An item that is pushed for a popper which waits is in no queue.
    uint64_t id = 0;
    std::string item;
    TANDEM_ASSERT_OK(
        one.store.StartPop("w", {nullptr, [&](std::string i) { item = std::move(i); }, "r9"}, &id));
    TANDEM_ASSERT_OK(one.store.Push("w", "handed", "r10"));
    EXPECT_EQ(item, "handed");
  }
  for (int life = 0; life < 2; ++life) {
    OnDisk one(directory.File("d"));
    EXPECT_EQ(one.store.Add("n", 5, "r1").value(), 5);
    EXPECT_EQ(one.store.CompareSet("k", "", "mine", "r2").value(), "mine");
    EXPECT_EQ(one.store.Append("a", "xyz", "r3").value(), 3);
    TANDEM_ASSERT_OK(one.store.Push("q", "1", "r4"));
    TANDEM_ASSERT_OK(one.store.Push("q", "2", "r5"));
    EXPECT_EQ(one.store.Length("q").value(), 1);
    EXPECT_EQ(one.store.AnswerTo("r6").value(), "1");
    TANDEM_ASSERT_OK(one.store.Set("gone", "", "r7"));
    EXPECT_TRUE(one.store.Delete("gone", "r8").value());
    EXPECT_FALSE(one.store.Check({"gone"}).value());
    EXPECT_EQ(one.store.AnswerTo("r9").value(), "handed");
    TANDEM_ASSERT_OK(one.store.Push("w", "handed", "r10"));
    EXPECT_EQ(one.store.Length("w").value(), 0);
    // Grows the log until it is rewritten: the answers move along.
    for (int i = 0; life == 0 && i < 8; ++i)
      TANDEM_ASSERT_OK(one.store.Set("big", std::string(1 << 20, 'b')));
    const absl::Time deadline = MonotonicNow() + testing::kTestTimeout;
    while (life == 0 && one.disk->log_bytes() > (4u << 20) && MonotonicNow() < deadline) one.AwaitSynced();
    EXPECT_LE(one.disk->log_bytes(), 4u << 20);
  }
}

TEST(StoreDiskTest, TheIncarnationStaysWithTheDirectory) {
  TempDir directory;
  const uint64_t first = OnDisk(directory.File("a")).disk->incarnation();
  EXPECT_NE(first, 0u);
  EXPECT_EQ(OnDisk(directory.File("a")).disk->incarnation(), first);
  EXPECT_NE(OnDisk(directory.File("b")).disk->incarnation(), first);
}

TEST(StoreDiskTest, ATornEndIsCutOffWhereverItIsTorn) {
  TempDir directory;
  std::string whole;
  {
    OnDisk one(directory.File("d"));
    TANDEM_ASSERT_OK(one.store.Set("a", "1"));
  }
  const std::string log = directory.File("d/log");
  const size_t before = std::filesystem::file_size(log);
  {
    OnDisk one(directory.File("d"));
    TANDEM_ASSERT_OK(one.store.Set("b", "2"));
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(whole, ReadFile(log));
  const auto rewrite = [&](const std::string& bytes) { std::ofstream(log, std::ios::binary) << bytes; };
  for (size_t size = before; size < whole.size(); ++size) {
    for (const std::string& zeros : {std::string(), std::string(9000, '\0')}) {
      rewrite(whole.substr(0, size) + zeros);
      OnDisk one(directory.File("d"));
      ASSERT_NE(one.disk, nullptr) << "cut to " << size << " of " << whole.size();
      EXPECT_EQ(EverythingIn(one.store).values, (std::map<std::string, std::string>{{"a", "1"}}));
      TANDEM_ASSERT_OK(one.store.Set("c", "3"));
    }
  }
  OnDisk last(directory.File("d"));
  EXPECT_EQ(last.store.TryGet("c"), "3");
}

TEST(StoreDiskTest, DamageIsRefusedAndTheFileNamed) {
  TempDir directory;
  {
    OnDisk one(directory.File("d"));
    for (int i = 0; i < 5; ++i) TANDEM_ASSERT_OK(one.store.Set(absl::StrCat("key ", i), "value"));
  }
  const std::string log = directory.File("d/log");
  TANDEM_ASSERT_OK_AND_ASSIGN(std::string bytes, ReadFile(log));
  bytes[bytes.find("key 1")] ^= 1;
  std::ofstream(log, std::ios::binary) << bytes;
  MemoryStore store;
  EXPECT_THAT(StoreDisk::Open(directory.File("d"), &store, nullptr),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(log), HasSubstr("is damaged at byte"))));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string left, ReadFile(log));
  EXPECT_EQ(left, bytes) << "the damaged file must stay as it is";
}

TEST(StoreDiskTest, ALinkInADirectoryOfSomebodyElseIsNotWrittenTo) {
  TempDir directory;
  std::filesystem::create_directory(directory.File("d"));
  std::ofstream(directory.File("victim"));  // an empty file would be taken for a new log
  std::filesystem::create_symlink(directory.File("victim"), directory.File("d/log"));
  MemoryStore store;
  EXPECT_THAT(StoreDisk::Open(directory.File("d"), &store, nullptr),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("d/log' is a symbolic link")));
  EXPECT_EQ(std::filesystem::file_size(directory.File("victim")), 0u);
}

TEST(StoreDiskTest, ADirectoryThatIsUsedIsRefusedWithTheProcessThatUsesIt) {
  TempDir directory;
  const OnDisk one(directory.File("d"));
  MemoryStore store;
  EXPECT_THAT(StoreDisk::Open(directory.File("d"), &store, nullptr),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr(directory.File("d")), HasSubstr(absl::StrCat("process ", getpid())))));
}

TEST(StoreDiskTest, AContentBeyondTheLimitsIsRefusedAndTheFileNamed) {
  TempDir directory;
  {
    OnDisk one(directory.File("d"));
    for (int i = 0; i < 5; ++i) TANDEM_ASSERT_OK(one.store.Set(absl::StrCat(i), ""));
  }
  MemoryStore store({.keys = 3});
  EXPECT_THAT(StoreDisk::Open(directory.File("d"), &store, nullptr),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr(directory.File("d/log")), HasSubstr("--max-keys"))));
}

TEST(StoreDiskTest, AFullDiskIsAnErrorOfTheCallAndChangesNothing) {
  TempDir directory;
  if (mount("none", directory.path().c_str(), "tmpfs", 0, "size=512k") != 0) {
    GTEST_SKIP() << "may not mount a small file system here: run as root to test a full disk";
  }
  {
    OnDisk one(directory.File("d"));
    if (one.disk != nullptr) {
      const std::string large(1 << 20, 'x');
      TANDEM_EXPECT_OK(one.store.Set("a", "1"));
      TANDEM_EXPECT_OK(one.store.Push("q", "1"));
      const Everything before = EverythingIn(one.store);
      const auto full = StatusIs(absl::StatusCode::kResourceExhausted,
                                 AllOf(HasSubstr(directory.File("d/log")), HasSubstr("No space left")));
      EXPECT_THAT(one.store.Set("a", large, "r1"), full);
      EXPECT_THAT(one.store.CompareSet("a", "1", large, "r2").status(), full);
      EXPECT_THAT(one.store.Append("a", large, "r3").status(), full);
      EXPECT_THAT(one.store.MultiSet({"b", "c"}, {large, ""}, "r4"), full);
      EXPECT_THAT(one.store.Push("q", large, "r5"), full);
      // Fills what is left, so that not even a Pop can be written.
      int added = 0;
      while (one.store.Set("fill", std::string(4000, 'f')).ok()) ++added;
      EXPECT_GT(added, 50);
      for (int i = 0; i < 200; ++i) (void)one.store.Set("fill", "f");
      EXPECT_THAT(one.store.TryPop("q", "r6").status(), full);
      Everything after = EverythingIn(one.store);
      after.values.erase("fill");
      EXPECT_EQ(after, before);
      absl::Notification synced;
      one.disk->WhenSynced([&](const absl::Status& status) {
        TANDEM_EXPECT_OK(status);
        synced.Notify();
      });
      synced.WaitForNotification();
      // There is room again.
      TANDEM_EXPECT_OK(mount("none", directory.path().c_str(), "tmpfs", MS_REMOUNT, "size=4m") == 0
                           ? absl::OkStatus()
                           : absl::InternalError("remount"));
      TANDEM_EXPECT_OK(one.store.Set("a", large, "r1"));
      EXPECT_EQ(one.store.TryPop("q", "r6").value(), "1");
    }
  }
  {
    OnDisk again(directory.File("d"));
    EXPECT_EQ(again.store.TryGet("a").value_or("").size(), 1u << 20);
    EXPECT_EQ(again.store.Length("q").value(), 0);
  }
  umount(directory.path().c_str());
}

// Clients call a server that is killed again and again. Each repeats a call whose answer was lost, as
// RemoteStore does, so every call counts exactly once.
TEST(StoreDiskTest, AStoreThatIsKilledAgainAndAgainAppliesEveryCallOnce) {
  // TANDEM_STORE_KILLS=100 is the long form.
  const char* const more = std::getenv("TANDEM_STORE_KILLS");
  const int kKills = more == nullptr ? 8 : std::atoi(more);
  constexpr int kClients = 4;
  TempDir directory;
  KilledStore server(directory.File("d"));
  const std::string& address = server.address();
  absl::Mutex mutex;
  bool stop = false;
  int64_t calls = 0;  // of all clients that were answered
  struct Client {
    int64_t adds = 0, pushes = 0, popped = 0;
    std::string appended;
    std::string error;
  };
  std::vector<Client> clients(kClients);
  std::vector<std::thread> threads;
  for (int c = 0; c < kClients; ++c) {
    threads.emplace_back([&, c] {
      Client& me = clients[c];
      RemoteStore store(ConnectStore(address).value(), testing::kTestTimeout);
      const std::string list = absl::StrCat("list/", c), own = absl::StrCat("own/", c);
      std::string held;
      for (int64_t i = 0;; ++i) {
        absl::Status status;
        const absl::StatusOr<int64_t> sum = store.Add("sum", 1);
        status.Update(sum.status());
        if (status.ok()) ++me.adds;
        const std::string next = absl::StrCat(c, ":", i);
        if (status.ok()) {
          const auto now = store.CompareSet(own, held, next);
          status.Update(now.status());
          // Only this client changes the key, so its compare-and-set always succeeds, once.
          if (now.ok() && *now != next) status = absl::InternalError(absl::StrCat(own, " is ", *now));
          held = next;
        }
        if (status.ok()) {
          const auto length = store.Append(list, "ab");
          status.Update(length.status());
          me.appended += "ab";
          if (length.ok() && *length != static_cast<int64_t>(me.appended.size())) {
            status = absl::InternalError(absl::StrCat(list, " has ", *length, " bytes"));
          }
        }
        if (status.ok()) {
          status = store.Push("work", next);
          ++me.pushes;
        }
        if (status.ok() && i % 2 == 0) {
          status = store.Pop("work", testing::kTestTimeout).status();
          ++me.popped;
        }
        absl::MutexLock lock(&mutex);
        if (!status.ok()) me.error = status.ToString();
        ++calls;
        if (stop || !status.ok()) return;
      }
    });
  }
  CounterRandom random(testing::RandomSeed(), 2);
  for (int kill = 0; kill < kKills; ++kill) {
    const auto enough = [&, target = calls + 4 + static_cast<int64_t>(random.Below(20))] {
      return calls >= target;
    };
    {
      absl::MutexLock lock(&mutex);
      ASSERT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&enough), testing::kTestTimeout)) << "kill " << kill;
    }
    server.KillAndRestart();
  }
  {
    absl::MutexLock lock(&mutex);
    stop = true;
  }
  for (std::thread& thread : threads) thread.join();
  RemoteStore store(ConnectStore(address).value(), testing::kTestTimeout);
  int64_t adds = 0, left = 0;
  for (int c = 0; c < kClients; ++c) {
    EXPECT_EQ(clients[c].error, "") << "client " << c;
    adds += clients[c].adds;
    left += clients[c].pushes - clients[c].popped;
    EXPECT_EQ(store.Get(absl::StrCat("list/", c), testing::kTestTimeout).value(), clients[c].appended);
  }
  EXPECT_EQ(store.Get("sum", testing::kTestTimeout).value(), absl::StrCat(adds));
  EXPECT_EQ(store.Length("work").value(), left);
}

}  // namespace
}  // namespace tandem::cluster
