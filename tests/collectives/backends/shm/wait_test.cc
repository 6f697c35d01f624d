#include "collectives/backends/shm/wait.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace tandem::collectives::shm {
namespace {

constexpr auto kStays = [] { return false; };

TEST(WaitTest, ASleeperIsWokenByTheWriter) {
  const Patience impatient(0, 0, 0);
  std::atomic<uint32_t> failure{0};
  std::atomic<uint64_t> word{0};
  Bell bell;
  for (uint64_t i = 1; i <= 200; ++i) {
    std::thread writer([&] { Publish(word, i, bell, /*fenced=*/true); });
    Waiter waiter(impatient, failure, absl::Seconds(60));
    EXPECT_EQ(waiter.Await(
                  bell, [&] { return word.load(std::memory_order_acquire) == i; }, kStays),
              Outcome::kReady);
    writer.join();
  }
  EXPECT_EQ(bell.sleepers.load(), 0u);
}

TEST(WaitTest, EndsAreToldApartAndWhatIsThereCounts) {
  for (const Patience& patience : {Patience(10, 0, 0), Patience(0, 3, 2)}) {
    std::atomic<uint32_t> failure{0};
    Bell bell;
    const auto never = [] { return false; };
    const auto always = [] { return true; };
    EXPECT_EQ(Waiter(patience, failure, absl::Milliseconds(5)).Await(bell, never, kStays),
              Outcome::kTimedOut);
    EXPECT_EQ(Waiter(patience, failure, absl::InfiniteDuration()).Await(bell, never, always), Outcome::kLeft);
    failure = 1;
    EXPECT_EQ(Waiter(patience, failure, absl::Seconds(60)).Await(bell, never, kStays), Outcome::kFailed);
    EXPECT_EQ(Waiter(patience, failure, absl::ZeroDuration()).Await(bell, always, always), Outcome::kReady);
  }
}

TEST(WaitTest, RanksThatShareProcessorsDoNotSpin) {
  const auto looks = [](const Patience& p) { return p.spins + p.yields * p.spins_between; };
  EXPECT_GT(looks(PatienceFor(2, 2)), 50 * looks(PatienceFor(4, 2)));
  EXPECT_GT(PatienceFor(4, 2).yields, 0);
  EXPECT_GE(UsableProcessors(), 1);
}

}  // namespace
}  // namespace tandem::collectives::shm
