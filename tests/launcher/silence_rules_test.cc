// SPDX-License-Identifier: Apache-2.0
#include "launcher/silence_rules.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kLease = absl::Seconds(16);  // the interval is 1 s

// A node with a simulated clock, whose processes beat once per interval unless they are stopped.
class SilenceRulesTest : public ::testing::Test {
 protected:
  struct Process {
    std::string role = "worker";
    uint64_t count = 0;
    bool running = true;  // beats
    bool there = true;    // the launcher has not seen its end
    SilenceRules::Finding finding;
  };

  // Lets processes with these roles join. Their ids count from 0.
  void Start(const std::vector<std::string>& roles) {
    for (const std::string& role : roles) processes_[static_cast<int>(processes_.size())] = {.role = role};
  }
  void Stop(int id) { processes_[id].running = false; }
  void Continue(int id) { processes_[id].running = true; }

  // Lets `time` pass with a look every `step`. Adds to `events_` what the looks say, with the time.
  void Pass(absl::Duration time, absl::Duration step = absl::Seconds(1)) {
    for (const absl::Time end = now_ + time; now_ < end;) {
      now_ += step;
      std::vector<SilenceRules::Beat> beats;
      for (auto& [id, process] : processes_) {
        if (!process.there) continue;
        if (process.running) ++process.count;
        beats.push_back({.id = id, .role = process.role, .count = process.count});
      }
      const SilenceRules::Verdict verdict = rules_->Look(now_, beats, [this](int id) {
        examined_.insert(id);
        return processes_[id].finding;
      });
      const auto add = [this](const char* what, const std::vector<SilenceRules::Silent>& found) {
        for (const SilenceRules::Silent& one : found) {
          events_.push_back(absl::StrCat(what, " ", one.id, " at ", Seconds(now_ - start_)));
          if (one.silence < kLease / 2) ADD_FAILURE() << what << " after " << one.silence;
        }
      };
      for (const SilenceRules::Silent& one : verdict.end) {
        EXPECT_GE(one.silence, kLease);
        if (ends_) processes_[one.id].there = false;
      }
      add("end", verdict.end);
      add("traced", verdict.traced);
      add("dumping", verdict.dumping);
      add("lost", verdict.lost);
      if (verdict.stalled > 0) {
        events_.push_back(absl::StrCat("stalled ", verdict.stalled, " of ", verdict.joined, " at ",
                                       Seconds(now_ - start_)));
      }
    }
  }
  static std::string Seconds(absl::Duration time) { return absl::StrCat(absl::ToInt64Seconds(time)); }

  const absl::Time start_ = absl::UnixEpoch() + absl::Hours(1);
  absl::Time now_ = start_;
  std::optional<SilenceRules> rules_{kLease};
  std::map<int, Process> processes_;
  std::vector<std::string> events_;
  std::set<int> examined_;
  bool ends_ = true;  // whether a process that is ended is gone
};

TEST_F(SilenceRulesTest, ProcessesThatBeatAreNotEvenLookedAt) {
  Start({"ps", "worker", "worker"});
  Pass(absl::Hours(1));
  EXPECT_THAT(events_, IsEmpty());
  EXPECT_THAT(examined_, IsEmpty());
}

TEST_F(SilenceRulesTest, AProcessIsEndedWhenItsCounterHasStoodStillForALease) {
  Start({"ps", "worker", "worker"});
  Pass(absl::Seconds(10));
  Stop(1);
  Pass(absl::Seconds(100));
  EXPECT_THAT(events_, ElementsAre("end 1 at 26"));
}

TEST_F(SilenceRulesTest, APauseShorterThanALeaseIsNoSilence) {
  Start({"worker", "worker"});
  Pass(absl::Seconds(10));
  for (int i = 0; i < 10; ++i) {
    Stop(1);
    Pass(kLease - absl::Seconds(1));
    Continue(1);
    Pass(absl::Seconds(1));
  }
  EXPECT_THAT(events_, IsEmpty());
}

TEST_F(SilenceRulesTest, AProcessThatHasNotJoinedIsNeverSilent) {
  Start({"worker", "worker"});
  Stop(1);  // it imports its modules
  Pass(absl::Hours(1));
  EXPECT_THAT(events_, IsEmpty());
  Continue(1);
  Pass(absl::Seconds(1));
  Stop(1);
  Pass(kLease);
  EXPECT_THAT(events_, ElementsAre("end 1 at 3617"));
}

TEST_F(SilenceRulesTest, AProcessWhoseJoinedPartIsGoneIsAsOneThatHasNotJoined) {
  Start({"worker", "worker"});
  Pass(absl::Seconds(4));
  processes_[1].finding.joined = false;  // a shell goes on after the program that has joined
  Stop(1);
  Pass(absl::Hours(1));
  EXPECT_THAT(events_, IsEmpty());
  processes_[1].finding.joined = true;  // and starts another one
  Continue(1);
  Pass(absl::Seconds(1));
  Stop(1);
  Pass(kLease);
  EXPECT_THAT(events_, ElementsAre("end 1 at 3621"));
}

TEST_F(SilenceRulesTest, NobodyIsSilentWhileTheLauncherItselfDidNotRun) {
  Start({"worker", "worker", "worker", "worker", "worker"});
  Pass(absl::Seconds(4));
  Stop(1);
  Pass(kLease - absl::Seconds(1));
  // The launcher is stopped for two leases, and so is the process 2 when it looks again.
  Stop(2);
  Pass(2 * kLease, 2 * kLease);
  Continue(2);
  EXPECT_THAT(events_, IsEmpty());
  Pass(kLease);
  EXPECT_THAT(events_, ElementsAre("end 1 at 67"));  // 4 + 15 + 32 + 16
}

TEST_F(SilenceRulesTest, ALauncherThatIsLateByLessThanHalfALeaseStillCounts) {
  Start({"worker", "worker"});
  Pass(absl::Seconds(4));
  Stop(1);
  Pass(kLease, kLease / 2);
  EXPECT_THAT(events_, ElementsAre("end 1 at 20"));
}

TEST_F(SilenceRulesTest, ADebuggedProcessIsSparedAndNamedOnceAndHasALeaseAfterwards) {
  Start({"worker", "worker"});
  Pass(absl::Seconds(4));
  Stop(1);
  processes_[1].finding.traced = true;
  Pass(absl::Seconds(100));
  EXPECT_THAT(events_, ElementsAre("traced 1 at 12"));
  processes_[1].finding.traced = false;  // the debugger has left, and the process stays stopped
  events_.clear();
  Pass(absl::Seconds(100));
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_THAT(events_[0], ::testing::MatchesRegex("end 1 at 1[12][0-9]"));
}

TEST_F(SilenceRulesTest, SoIsOneThatDumpsItsCore) {
  Start({"worker", "worker"});
  Pass(absl::Seconds(4));
  Stop(1);
  processes_[1].finding.dumping = true;
  Pass(absl::Seconds(100));
  EXPECT_THAT(events_, ElementsAre("dumping 1 at 12"));
}

TEST_F(SilenceRulesTest, AProcessThatFreesItsMemoryAtItsEndIsNotSilent) {
  Start({"worker", "worker"});
  Pass(absl::Seconds(4));
  Stop(1);
  processes_[1].finding.exiting = true;
  Pass(absl::Seconds(100));
  EXPECT_THAT(events_, IsEmpty());
}

TEST_F(SilenceRulesTest, ADebuggedProcessIsNamedAgainWhenItIsHeldAgain) {
  Start({"worker", "worker"});
  Pass(absl::Seconds(4));
  for (int i = 0; i < 2; ++i) {
    Stop(1);
    processes_[1].finding.traced = true;
    Pass(absl::Seconds(20));
    processes_[1].finding.traced = false;
    Continue(1);
    Pass(absl::Seconds(20));
  }
  EXPECT_THAT(events_, ElementsAre("traced 1 at 12", "traced 1 at 52"));
}

// With `processes` joined, `stopped` of them stop together.
struct Together {
  int processes, stopped;
  bool stall;
};

TEST_F(SilenceRulesTest, AQuarterOfTheNodeAndAtLeastTwoAreTheMachine) {
  for (const Together& one :
       {Together{1, 1, false}, Together{2, 1, false}, Together{4, 1, false}, Together{2, 2, true},
        Together{8, 2, true}, Together{9, 2, false}, Together{9, 3, true}, Together{16, 4, true},
        Together{64, 15, false}, Together{64, 64, true}}) {
    rules_.emplace(kLease);
    processes_.clear();
    events_.clear();
    now_ = start_;
    // A role each, so that the limit per role is not what spares them.
    for (int i = 0; i < one.processes; ++i) Start({absl::StrCat("role", i)});
    Pass(absl::Seconds(4));
    for (int i = 0; i < one.stopped; ++i) Stop(i);
    Pass(absl::Minutes(10));
    if (one.stall) {
      EXPECT_THAT(events_,
                  ElementsAre(absl::StrCat("stalled ", one.stopped, " of ", one.processes, " at 20")));
    } else {
      EXPECT_EQ(events_.size(), static_cast<size_t>(one.stopped)) << one.processes << " " << one.stopped;
      EXPECT_THAT(events_, ::testing::Each(::testing::EndsWith(" at 20")));
    }
  }
}

TEST_F(SilenceRulesTest, ThoseThatStopALittleLaterBelongToTheSameStall) {
  Start({"worker", "ps", "actor"});
  Pass(absl::Seconds(4));
  Stop(0);
  Pass(kLease / 2);
  Stop(1);
  Pass(absl::Minutes(1));
  EXPECT_THAT(events_, ElementsAre("stalled 2 of 3 at 20"));
}

TEST_F(SilenceRulesTest, AfterAStallEachHasAnotherLease) {
  Start({"worker", "ps", "actor"});
  Pass(absl::Seconds(4));
  for (int i = 0; i < 3; ++i) Stop(i);
  Pass(absl::Seconds(96));
  EXPECT_THAT(events_, ElementsAre("stalled 3 of 3 at 20"));
  events_.clear();
  Continue(0);
  Pass(absl::Seconds(1));
  Continue(1);  // a moment later
  Pass(absl::Seconds(1));
  EXPECT_THAT(events_, IsEmpty());
  Pass(absl::Minutes(1));
  EXPECT_THAT(events_, ElementsAre("end 2 at 118"));  // it was in fact stopped
}

TEST_F(SilenceRulesTest, OfEachRoleOneIsEndedPerLease) {
  std::vector<std::string> roles(20, "worker");
  roles.push_back("ps");
  Start(roles);
  Pass(absl::Seconds(4));
  for (const int id : {0, 1, 2, 20}) Stop(id);
  Pass(absl::Minutes(2));
  EXPECT_THAT(events_, ElementsAre("end 0 at 20", "end 20 at 20", "end 1 at 36", "end 2 at 52"));
}

TEST_F(SilenceRulesTest, AProcessThatDoesNotEndWithinALeaseIsLost) {
  Start({"worker", "ps"});
  ends_ = false;  // it hangs in the kernel
  Pass(absl::Seconds(4));
  Stop(1);
  Pass(absl::Minutes(5));
  EXPECT_THAT(events_, ElementsAre("end 1 at 20", "lost 1 at 36"));
}

TEST_F(SilenceRulesTest, SoIsOneThatADebuggerHasHeldBefore) {
  Start({"worker", "ps"});
  ends_ = false;
  Pass(absl::Seconds(4));
  Stop(1);
  processes_[1].finding.traced = true;
  Pass(absl::Seconds(8));
  processes_[1].finding.traced = false;
  Pass(absl::Minutes(5));
  EXPECT_THAT(events_, ElementsAre("traced 1 at 12", "end 1 at 28", "lost 1 at 44"));
}

TEST_F(SilenceRulesTest, OneThatFreesItsMemoryIsNotLost) {
  Start({"worker", "ps"});
  ends_ = false;
  Pass(absl::Seconds(4));
  Stop(1);
  Pass(kLease);
  processes_[1].finding.exiting = true;
  Pass(absl::Minutes(5));
  EXPECT_THAT(events_, ElementsAre("end 1 at 20"));
}

TEST_F(SilenceRulesTest, AnEndedProcessDoesNotCountAmongTheSilentOnes) {
  Start({"worker", "ps", "actor"});
  ends_ = false;
  Pass(absl::Seconds(4));
  Stop(1);
  Pass(absl::Seconds(20));
  Stop(2);
  Pass(absl::Seconds(20));
  EXPECT_THAT(events_, ElementsAre("end 1 at 20", "lost 1 at 36", "end 2 at 40"));
}

// The race with the store, as the header has it: in the worst case the launcher acts before 5/4 of a lease.
TEST_F(SilenceRulesTest, TheLauncherActsBeforeTheStore) {
  Start({"worker", "worker"});
  Pass(absl::Seconds(4));
  // The process beats and stops right after a look, which sees the beat at the next look.
  ++processes_[1].count;
  Stop(1);
  const absl::Time stopped = now_;
  while (events_.empty()) Pass(absl::Seconds(1));
  EXPECT_THAT(events_, ElementsAre(::testing::StartsWith("end 1")));
  EXPECT_LT(now_ + rules_->interval() - stopped, 1.25 * kLease);
}

}  // namespace
}  // namespace tandem::launcher
