// SPDX-License-Identifier: Apache-2.0
// Many launchers, each a thread, that come, leave, fail and fall silent at random.

#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "cluster/rendezvous/rendezvous.h"
#include "cluster/store/memory_store.h"
#include "tests/cluster/rendezvous/cuttable_store.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cluster {
namespace {

// Compares the rounds that the launchers have seen.
class RoundLog {
 public:
  void Saw(const Round& round, const std::string& id, int least, int most) {
    std::string text = absl::StrCat("restarts ", round.restarts, ":");
    for (const Node& node : round.nodes) absl::StrAppend(&text, " ", node.id);
    absl::MutexLock lock(&mutex_);
    const auto [found, is_new] = rounds_.emplace(round.epoch, text);
    EXPECT_EQ(found->second, text) << "two views of epoch " << round.epoch;
    EXPECT_EQ(round.nodes[round.group_rank].id, id);
    EXPECT_GE(static_cast<int>(round.nodes.size()), least);
    EXPECT_LE(static_cast<int>(round.nodes.size()), most);
    EXPECT_GT(round.epoch, last_epoch_[id]) << id;
    last_epoch_[id] = round.epoch;
    if (const auto before = restarts_.find(round.epoch - 1); before != restarts_.end()) {
      EXPECT_GE(round.restarts, before->second);
      EXPECT_LE(round.restarts, before->second + 1);
    }
    restarts_[round.epoch] = round.restarts;
  }
  size_t rounds() {
    absl::MutexLock lock(&mutex_);
    return rounds_.size();
  }

 private:
  absl::Mutex mutex_;
  std::map<int64_t, std::string> rounds_;
  std::map<int64_t, int64_t> restarts_;
  std::map<std::string, int64_t> last_epoch_;
};

RendezvousOptions Options() {
  RendezvousOptions options;
  options.min_nodes = 2;
  options.max_nodes = 5;
  options.max_restarts = 100000;
  options.last_call = absl::Milliseconds(50);
  options.join_timeout = absl::Seconds(10);
  options.lease = absl::Milliseconds(300);
  return options;
}

// Runs launchers one after the other: each lives until it is killed and replaced by the next.
void RunLaunchers(int seat, MemoryStore* memory, RoundLog* round_log, const std::atomic<bool>* over) {
  std::mt19937 random(1000 + seat);
  const RendezvousOptions options = Options();
  for (int life = 0; !*over; ++life) {
    CuttableStore store(memory);
    auto rendezvous = MakeRendezvous(&store, options).value();
    Node node;
    node.id = absl::StrCat("n", seat, ".", life);
    node.host = "here";
    node.processes = {{"worker", 1}};
    bool lives = true;
    while (lives) {
      const absl::Time start = absl::Now();
      absl::StatusOr<Round> round = rendezvous->Join(node);
      EXPECT_LT(absl::Now() - start, absl::Seconds(30)) << "waited past its deadline";
      if (!round.ok()) {
        if (absl::IsFailedPrecondition(round.status())) return;  // the job is over
        EXPECT_TRUE(absl::IsDeadlineExceeded(round.status()) || absl::IsUnavailable(round.status()))
            << round.status();
        break;
      }
      round_log->Saw(*round, node.id, options.min_nodes, options.max_nodes);
      const int fate = random() % 10;
      const absl::Duration calm = absl::Milliseconds(10 + random() % 150);
      absl::StatusOr<RendezvousEvent> event = rendezvous->WaitForEvent(round->epoch, absl::Now() + calm);
      if (!event.ok() && absl::IsDeadlineExceeded(event.status())) {
        if (fate < 3) {
          TANDEM_EXPECT_OK(rendezvous->RequestRestart(round->epoch, "a process failed", 1));
        } else if (fate < 5) {
          TANDEM_EXPECT_OK(rendezvous->Leave());
          break;
        } else if (fate < 7) {
          store.Cut();
          lives = false;  // killed: it does not leave
        } else if (fate < 8) {
          store.Cut();
          (void)rendezvous->WaitForEvent(round->epoch, absl::Now() + absl::Milliseconds(random() % 600));
          store.Mend();
        }
        if (!lives) break;
        event = rendezvous->WaitForEvent(round->epoch, absl::Now() + absl::Seconds(20));
      }
      if (!event.ok()) {
        EXPECT_TRUE(absl::IsUnavailable(event.status())) << event.status();
        continue;  // it may join again
      }
      if (event->kind == RendezvousEvent::Kind::kClosed) return;
    }
  }
}

// Invariants: all nodes of a round see the same one; no node sees an epoch twice; a round has min to max
// nodes; restarts grow by at most one from a round to the next; no call outlasts its deadline; all nodes get
// the end.
TEST(RendezvousRacesTest, RandomLaunchersAlwaysAgree) {
  const char* longer = std::getenv("TANDEM_RENDEZVOUS_RACE_SECONDS");
  int seconds = 4;
  if (longer != nullptr) (void)absl::SimpleAtoi(longer, &seconds);
  MemoryStore memory;
  RoundLog round_log;
  std::atomic<bool> over{false};
  std::vector<std::thread> seats;
  for (int seat = 0; seat < 8; ++seat) {
    seats.emplace_back([&, seat] { RunLaunchers(seat, &memory, &round_log, &over); });
  }
  CuttableStore store(&memory);
  auto closer = MakeRendezvous(&store, Options()).value();
  // Waits for `seconds` on a key that no launcher sets.
  EXPECT_FALSE(memory.Get("never", absl::Seconds(seconds)).ok());
  // A busy machine needs longer for some rounds.
  for (const absl::Time end = absl::Now() + absl::Seconds(60); round_log.rounds() <= 5 && absl::Now() < end;)
    EXPECT_FALSE(memory.Get("never", absl::Milliseconds(100)).ok());
  over = true;
  TANDEM_EXPECT_OK(closer->Close(/*failed=*/false, "the test is over", 0));
  for (std::thread& seat : seats) seat.join();
  EXPECT_GT(round_log.rounds(), 5u);
  RecordProperty("rounds", absl::StrCat(round_log.rounds()));
}

}  // namespace
}  // namespace tandem::cluster
