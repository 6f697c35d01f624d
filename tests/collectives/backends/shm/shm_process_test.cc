// SPDX-License-Identifier: Apache-2.0
// Ranks as processes: memory passed by descriptor, deaths, descriptors, few processors, peers that damage
// memory.

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cluster/store/file_store.h"
#include "collectives/backends/shm/segment.h"
#include "collectives/backends/shm/shm_backend.h"
#include "tests/collectives/backends/backend_fixture.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

int OpenDescriptors() {
  int count = 0;
  DIR* const directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count - 3;  // ".", ".." and the directory itself
}

// The address ranges of groups' memory that this process has mapped, from /proc/self/maps.
struct Mapping {
  uintptr_t begin, end;
  unsigned long inode;
};
std::vector<Mapping> MappedSegments() {
  std::vector<Mapping> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    Mapping one;
    if (!absl::StrContains(line, "memfd:tandem-shm") ||
        std::sscanf(line.c_str(), "%lx-%lx %*s %*s %*s %lu", &one.begin, &one.end, &one.inode) != 3) {
      continue;
    }
    // Chunks with different advice have lines of their own.
    if (!found.empty() && found.back().inode == one.inode && found.back().end == one.begin) {
      found.back().end = one.end;
    } else {
      found.push_back(one);
    }
  }
  return found;
}

// Children that each run a body, forked while this process has one thread. Their failures are the test's.
class Children {
 public:
  Children() : path_(absl::StrCat(::testing::TempDir(), "/shm_process_test.", getpid(), ".", Next())) {}
  ~Children() {
    for (const pid_t pid : pids_) {
      if (pid > 0) kill(pid, SIGKILL), waitpid(pid, nullptr, 0);
    }
    unlink(path_.c_str());
  }
  // `body(options)` gets the options of `rank`.
  void Start(int rank, int world, const std::function<void(BackendOptions&)>& body) {
    std::fflush(nullptr);  // not to be printed twice
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid > 0) {
      pids_.push_back(pid);
      return;
    }
    pids_.clear();
    RunChild(rank, world, body);
    std::fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  void StartAll(int world, const std::function<void(Backend&, int)>& body) {
    for (int rank = 0; rank < world; ++rank) {
      Start(rank, world, [&, rank](BackendOptions& options) {
        auto backend = ShmBackendFactory().make(options);
        TANDEM_ASSERT_OK(backend);
        body(**backend, rank);
      });
    }
  }
  void Kill(int rank) {
    kill(pids_[rank], SIGKILL);
    waitpid(pids_[rank], nullptr, 0);
    pids_[rank] = -1;
  }
  // Waits for the children that live.
  void ExpectAllSucceed() {
    for (pid_t& pid : pids_) {
      if (pid <= 0) continue;
      int status = -1;
      waitpid(pid, &status, 0);
      pid = -1;
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "wait status " << status;
    }
  }

 private:
  static int Next() {
    static int next = 0;
    return next++;
  }
  void RunChild(int rank, int world, const std::function<void(BackendOptions&)>& body) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto store, cluster::FileStore::Open(path_));
    BackendOptions options = OptionsOf(store.get(), rank, std::vector<std::string>(world, "host"));
    TANDEM_ASSERT_OK(store->Set(absl::StrCat("pid/", rank), absl::StrCat(getpid())));
    for (int s = 0; s < world; ++s) {
      TANDEM_ASSERT_OK_AND_ASSIGN(const std::string pid,
                                  store->Get(absl::StrCat("pid/", s), absl::Seconds(30)));
      ASSERT_TRUE(absl::SimpleAtoi(pid, &options.peers[s].pid));
    }
    body(options);
  }

  const std::string path_;
  std::vector<pid_t> pids_;
};

TEST(ShmProcessTest, AKilledRankEndsA64MiBAllReduceOnAllOthers) {
  for (const int world : {2, 3}) {
    for (const int victim : {0, world - 1}) {  // the one that made the memory, and one that did not
      int begun[2];
      ASSERT_EQ(pipe(begun), 0);
      Children children;
      children.StartAll(world, [&](Backend& backend, int rank) {
        std::vector<float> values(16 << 20, 0.0f);
        absl::Status status;
        for (uint64_t round = 0; status.ok(); ++round) {
          status = backend.Run(AllReduceOf(&values, round));
          if (rank == victim) {
            ASSERT_EQ(write(begun[1], "x", 1), 1);
          }
        }
        const std::string death = absl::StrCat("rank ", victim, " of group 'test' died");
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr(death)));
        EXPECT_EQ(backend.Run(MakeBarrier(0)), status);
      });
      char token;
      for (int round = 0; round < 2; ++round) ASSERT_EQ(read(begun[0], &token, 1), 1);
      children.Kill(victim);
      children.ExpectAllSucceed();
      close(begun[0]);
      close(begun[1]);
    }
  }
}

TEST(ShmProcessTest, AKilledRankEndsWaitsThatSleepAndReceives) {
  Children children;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  children.StartAll(4, [&](Backend& backend, int rank) {
    TANDEM_ASSERT_OK(backend.Run(MakeBarrier(0)));
    if (rank == 3) {
      ASSERT_EQ(write(ready[1], "x", 1), 1);
      pause();
    }
    std::vector<float> values(10);
    const absl::Status status = rank == 0   ? backend.RunPointToPoint(RecvOf(&values, 3)).status()
                                : rank == 1 ? backend.RunPointToPoint(RecvOf(&values, kAnySource)).status()
                                            : backend.Run(MakeBarrier(1));
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 3 of group 'test' died")));
  });
  char token;
  ASSERT_EQ(read(ready[0], &token, 1), 1);
  children.Kill(3);
  children.ExpectAllSucceed();
  close(ready[0]);
  close(ready[1]);
}

// A rank may have forked a helper, such as a data loader, which keeps the rank's sockets open.
TEST(ShmProcessTest, AKilledRankIsNoticedThoughItsChildLives) {
  for (const int victim : {0, 2}) {
    Children children;
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    children.StartAll(3, [&](Backend& backend, int rank) {
      TANDEM_ASSERT_OK(backend.Run(MakeBarrier(0)));
      if (rank == victim) {
        const pid_t helper = fork();
        ASSERT_GE(helper, 0);
        if (helper == 0) {
          pause();
          _exit(0);
        }
        ASSERT_EQ(write(ready[1], &helper, sizeof(helper)), static_cast<ssize_t>(sizeof(helper)));
        pause();
      }
      EXPECT_THAT(backend.Run(MakeBarrier(1)),
                  StatusIs(absl::StatusCode::kUnavailable,
                           HasSubstr(absl::StrCat("rank ", victim, " of group 'test' died"))));
    });
    pid_t helper = 0;
    ASSERT_EQ(read(ready[0], &helper, sizeof(helper)), static_cast<ssize_t>(sizeof(helper)));
    children.Kill(victim);
    children.ExpectAllSucceed();
    kill(helper, SIGKILL);
    close(ready[0]);
    close(ready[1]);
  }
}

TEST(ShmProcessTest, NoDescriptorAndNoMappingStaysBehind) {
  Children children;
  for (int rank = 0; rank < 3; ++rank) {
    children.Start(rank, 3, [&](BackendOptions& options) {
      const int before = OpenDescriptors();
      for (int round = 0; round < 5; ++round) {
        auto backend = ShmBackendFactory().make(options);
        TANDEM_ASSERT_OK(backend);
        EXPECT_LE(OpenDescriptors(), before + 5);  // a connection and a pidfd for each peer, and an event
        EXPECT_EQ(MappedSegments().size(), 1u);
        TANDEM_EXPECT_OK((*backend)->Run(MakeBarrier(0)));
        // The round ends with a synchronisation, because the next one uses the same keys.
        std::vector<float> token(1);
        const Operation recv = RecvOf(&token, options.rank);
        TANDEM_EXPECT_OK((*backend)->RunPointToPoint(MakeSend(token, options.rank)));
        TANDEM_EXPECT_OK((*backend)->RunPointToPoint(recv));
        TANDEM_EXPECT_OK((*backend)->Run(MakeBarrier(1)));
        backend->reset();
        EXPECT_EQ(OpenDescriptors(), before);
        EXPECT_EQ(MappedSegments().size(), 0u);
      }
    });
  }
  children.ExpectAllSucceed();
}

TEST(ShmProcessTest, MoreRanksThanProcessorsSleepAndAreWoken) {
  for (const int world : {4, 7}) {
    Children children;
    for (int rank = 0; rank < world; ++rank) {
      children.Start(rank, world, [&, rank](BackendOptions& options) {
        cpu_set_t one;  // the first that this process may use
        ASSERT_EQ(sched_getaffinity(0, sizeof(one), &one), 0);
        int cpu = 0;
        while (!CPU_ISSET(cpu, &one)) ++cpu;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
        auto backend = ShmBackendFactory().make(options);
        TANDEM_ASSERT_OK(backend);
        for (uint64_t i = 0; i < 300; ++i) {
          std::vector<float> values(i % 10 == 0 ? 20000 : 5, static_cast<float>(rank));
          TANDEM_ASSERT_OK((*backend)->Run(AllReduceOf(&values, i)));
          ASSERT_EQ(values.back(), world * (world - 1) / 2);
        }
        // A token is passed around: all ranks but one wait long enough to sleep.
        std::vector<float> token(1);
        for (int lap = 0; lap < 20; ++lap) {
          if (rank > 0 || lap > 0) {
            TANDEM_ASSERT_OK((*backend)->RunPointToPoint(RecvOf(&token, (rank + world - 1) % world)));
          }
          token[0] += 1;
          TANDEM_ASSERT_OK((*backend)->RunPointToPoint(MakeSend(token, (rank + 1) % world)));
        }
        if (rank == 0) {
          TANDEM_ASSERT_OK((*backend)->RunPointToPoint(RecvOf(&token, world - 1)));
          EXPECT_EQ(token[0], 20 * world);
        }
        TANDEM_ASSERT_OK((*backend)->Run(MakeBarrier(300)));
      });
    }
    children.ExpectAllSucceed();
  }
}

TEST(ShmProcessTest, ARankInAnotherNetworkNamespaceIsReportedToAllRanks) {
  Children children;
  for (int rank = 0; rank < 3; ++rank) {
    children.Start(rank, 3, [rank](BackendOptions& options) {
      const bool elsewhere = rank == 2 && unshare(CLONE_NEWNET) == 0;
      if (rank == 2 && !elsewhere) {  // not allowed here: then this rank only says so
        TANDEM_ASSERT_OK(options.store->Set("not allowed", ""));
        return;
      }
      options.deadline = absl::Now() + absl::Seconds(rank == 2 ? 30 : 15);
      const absl::Status status = ShmBackendFactory().make(options).status();
      if (const auto skipped = options.store->Check({"not allowed"}); skipped.ok() && *skipped) return;
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("rank 2 cannot reach rank 0's unix socket")));
    });
  }
  children.ExpectAllSucceed();
}

// Two processes of two ranks each.
TEST(ShmProcessTest, ThreadsOfAProcessShareOneMapping) {
  Children children;
  for (const int process : {0, 1}) {
    children.Start(process, 2, [&, process](BackendOptions& options) {
      std::vector<std::thread> ranks;
      for (int rank = 2 * process; rank < 2 * process + 2; ++rank) {
        ranks.emplace_back([&, rank] {
          BackendOptions mine = options;
          mine.rank = rank;
          mine.world_size = 4;
          mine.peers = {options.peers[0], options.peers[0], options.peers[1], options.peers[1]};
          auto backend = ShmBackendFactory().make(mine);
          TANDEM_ASSERT_OK(backend);
          EXPECT_EQ(MappedSegments().size(), 1u);
          for (const size_t count : {5, 50000}) {
            std::vector<float> values(count, 1.0f);
            TANDEM_ASSERT_OK((*backend)->Run(AllReduceOf(&values, count)));
            EXPECT_EQ(values, std::vector<float>(count, 4.0f));
          }
        });
      }
      for (std::thread& rank : ranks) rank.join();
    });
  }
  children.ExpectAllSucceed();
}

// Overwrites all of the shared memory with random bytes, except the word that says that the group has failed.
void DamageSharedMemory() {
  const std::vector<Mapping> maps = MappedSegments();
  ASSERT_EQ(maps.size(), 1u);
  uint64_t x = 88172645463325252u;
  for (int round = 0; round < 3; ++round) {
    for (uintptr_t at = maps[0].begin + sizeof(shm::GroupHeader); at < maps[0].end; at += sizeof(uint64_t)) {
      x ^= x << 13, x ^= x >> 7, x ^= x << 17;
      // Atomic, because a watching thread of this process reads it.
      std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at)).store(x, std::memory_order_relaxed);
    }
  }
}

TEST(ShmProcessTest, APeerThatDamagesTheMemoryCrashesNoRank) {
  Children children;
  children.StartAll(3, [&](Backend& backend, int rank) {
    (void)backend.Run(MakeBarrier(0));  // rank 2 may be done with it, and begin, before the others
    if (rank == 2) {
      DamageSharedMemory();
      _exit(0);
    }
    // Any result is allowed; the test only requires that the call returns.
    const absl::Duration timeout = absl::Milliseconds(300);
    std::thread messages([&] {
      std::vector<float> values(5000);
      for (int i = 0; i < 1000; ++i) {
        const auto status = rank == 0 ? backend.RunPointToPoint(MakeSend(values, 1, 0, timeout))
                                      : backend.RunPointToPoint(RecvOf(&values, kAnySource, 0, timeout));
        if (!status.ok() && status.status().code() != absl::StatusCode::kInvalidArgument) break;
      }
    });
    std::vector<float> values(100000);
    for (uint64_t i = 1; i < 1000; ++i) {
      if (!backend.Run(AllReduceOf(&values, i, timeout)).ok()) break;
    }
    messages.join();
  });
  children.ExpectAllSucceed();
}

}  // namespace
}  // namespace tandem::collectives
