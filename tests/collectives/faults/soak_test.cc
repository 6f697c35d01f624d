// SPDX-License-Identifier: Apache-2.0
// Ranks start, work and are killed with kill -9, again and again; no resource may remain. TANDEM_SOAK_ROUNDS
// sets the number of rounds (12).

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cluster/store/store_server.h"
#include "tests/collectives/faults/rank_process.h"
#include "tests/testing/processes/processes.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

constexpr absl::Duration kTestTimeout = absl::Seconds(60);

std::set<std::string> Entries(const std::string& directory) {
  std::set<std::string> names;
  DIR* const open = opendir(directory.c_str());
  if (open == nullptr) return names;
  while (const dirent* entry = readdir(open)) names.insert(entry->d_name);
  closedir(open);
  return names;
}

// Returns this process's descriptors, by what they refer to: "socket:[4711]".
std::multiset<std::string> Descriptors() {
  std::multiset<std::string> kinds;
  for (const std::string& name : Entries("/proc/self/fd")) {
    char target[256];
    const ssize_t n = readlink(("/proc/self/fd/" + name).c_str(), target, sizeof(target));
    if (n > 0) kinds.insert(std::string(target, static_cast<size_t>(n)));
  }
  return kinds;
}

// Returns the abstract socket names of such a job that this process holds. Names of dead processes vanish
// with them, and names of other processes are not counted.
std::set<std::string> AbstractSockets() {
  const std::multiset<std::string> descriptors = Descriptors();
  std::ifstream file("/proc/net/unix");
  std::set<std::string> names;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::vector<std::string> word;
    for (std::string one; words >> one;) word.push_back(one);
    if (word.size() > 7 && word[7][0] == '@' && descriptors.count("socket:[" + word[6] + "]") > 0) {
      names.insert(word[7]);
    }
  }
  return names;
}

// Ports of 127.0.0.1, and of any address, on which one of `descriptors` listens.
std::set<std::string> ListeningPorts(const std::multiset<std::string>& descriptors) {
  std::set<std::string> ports;
  for (const char* path : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);  // the heading
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::vector<std::string> word;
      for (std::string one; words >> one;) word.push_back(one);
      if (word.size() > 9 && word[3] == "0A" && descriptors.count("socket:[" + word[9] + "]") > 0) {
        ports.insert(word[1]);
      }
    }
  }
  return ports;
}

// Returns the elements of `after` that are not in `before`.
std::set<std::string> New(const std::set<std::string>& after, const std::set<std::string>& before) {
  std::set<std::string> more;
  std::set_difference(after.begin(), after.end(), before.begin(), before.end(),
                      std::inserter(more, more.begin()));
  return more;
}

std::set<std::string> SharedMemoryOfOurs() {
  std::set<std::string> ours;
  for (const std::string& name : Entries("/dev/shm")) {
    if (absl::StrContains(name, "tandem")) ours.insert(name);
  }
  return ours;
}

// Runs one round; returns how long after the kill the last survivor had ended.
absl::Duration Round(const std::string& store, int round, std::mt19937& random, const std::string& marker) {
  const std::string backend = round % 2 == 0 ? "shm" : "tcp";
  const int world = 3 + round / 2 % 2;
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.push_back(std::make_unique<RankProcess>(
        std::vector<std::string>{"work", backend, absl::StrCat(rank), absl::StrCat(world), store, "20000",
                                 absl::StrCat("round-", round)},
        marker));
  }
  for (auto& rank : ranks) {
    EXPECT_TRUE(rank->WaitFor("begun", absl::Now() + kTestTimeout)) << backend << ": " << rank->output();
  }
  const int victim = std::uniform_int_distribution<int>(0, world - 1)(random);
  ranks[victim]->Kill();
  const absl::Time killed = absl::Now();
  for (int rank = 0; rank < world; ++rank) {
    if (rank == victim) continue;
    std::string end;
    EXPECT_TRUE(ranks[rank]->WaitFor("end", absl::Now() + kTestTimeout, &end)) << ranks[rank]->output();
    EXPECT_TRUE(absl::StartsWith(end, "UNAVAILABLE") && absl::StrContains(end, absl::StrCat("rank ", victim)))
        << backend << ", rank " << victim << " killed, rank " << rank << " says: " << end;
    EXPECT_TRUE(ranks[rank]->WaitForEnd(absl::Now() + kTestTimeout)) << ranks[rank]->output();
  }
  return absl::Now() - killed;
}

TEST(SoakTest, KilledRanksLeaveNothingBehind) {
  int rounds = 12;
  if (const char* text = std::getenv("TANDEM_SOAK_ROUNDS")) {
    ASSERT_TRUE(absl::SimpleAtoi(text, &rounds));
  }
  const std::string marker = absl::StrCat("soak-", getpid(), "-", absl::ToUnixNanos(absl::Now()));
  std::mt19937 random(20261121);
  const std::set<std::string> sockets = AbstractSockets(), shared = SharedMemoryOfOurs();
  TANDEM_ASSERT_OK_AND_ASSIGN(auto server, cluster::StoreServer::Start("127.0.0.1:0"));
  const std::string store = absl::StrCat("127.0.0.1:", server->port());
  // The first two rounds open what a server keeps open for its lifetime (its pollers' descriptors).
  for (int round = 0; round < 2; ++round) Round(store, round, random, marker);
  const absl::Time start = absl::Now();
  const size_t descriptors = Descriptors().size();
  absl::Duration slowest;
  for (int round = 2; round < rounds + 2 && !HasFailure(); ++round) {
    slowest = std::max(slowest, Round(store, round, random, marker));
  }
  const absl::Duration took = absl::Now() - start;

  EXPECT_TRUE(testing::WaitUntilNoneMarked("TANDEM_TEST_MARKER=" + marker));
  // Connections of dead ranks close when the server notices; then there are no more than at the beginning. A
  // descriptor that another thread closes cannot be waited for.
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (Descriptors().size() > descriptors && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_LE(Descriptors().size(), descriptors) << ::testing::PrintToString(Descriptors());
  EXPECT_EQ(ListeningPorts(Descriptors()).size(), 1u) << "the store's is all that may listen";
  EXPECT_THAT(New(AbstractSockets(), sockets), ::testing::IsEmpty());
  EXPECT_THAT(New(SharedMemoryOfOurs(), shared), ::testing::IsEmpty());
  std::cout << rounds << " rounds in " << absl::FormatDuration(took) << ", the slowest end "
            << absl::FormatDuration(slowest) << " after the kill\n";
}

}  // namespace
}  // namespace tandem::collectives
