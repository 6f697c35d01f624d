// SPDX-License-Identifier: Apache-2.0
// Explores all states of the protocol of a shard's copies within bounds, and shows that faults are found.
// TANDEM_EXPLORER_BOUND names one bound, also one that is too large for the suite; TANDEM_EXPLORER_STATES
// raises the limit of states. TANDEM_EXPLORER_PATHS=1 prints how planted faults do harm.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "tests/ps/failover/explorer.h"
#include "tests/ps/failover/world.h"

namespace tandem::ps::testing {
namespace {

using Kind = Event::Kind;

// Limits what the suite explores of each bound.
uint64_t MaxStates() {
  const char* const given = std::getenv("TANDEM_EXPLORER_STATES");
  uint64_t states = 0;
  return given != nullptr && absl::SimpleAtoi(given, &states) ? states : 300'000;
}

// Returns a world in which process 0 is the primary and the next `followers` are in sync; the remaining ones
// begin to look for it, if there are `others`.
World Running(const Budget& budget, int pushes, int followers, Protocol::Fault fault = Protocol::Fault::kNone,
              PathFault path_fault = PathFault::kNone, int min_copies = 1, bool others = true) {
  World world({}, pushes, fault, path_fault, min_copies);
  const std::vector<Kind> normal = {Kind::kCompareAndSet, Kind::kAttach, Kind::kDeliver, Kind::kAnswer};
  for (int p = 0; p <= followers; ++p) {
    world.StartProcess(p);
    // Attach of a copy that is served already may happen for ever.
    for (int round = 0; round < 8; ++round) {
      for (const Kind kind : normal) {
        std::vector<Event> events;
        world.Enabled(&events);
        const auto last =
            std::find_if(events.rbegin(), events.rend(), [&](const Event& e) { return e.kind == kind; });
        if (last != events.rend()) world.Apply(*last);
      }
    }
  }
  for (int p = followers + 1; p < World::kProcesses && others; ++p) world.StartProcess(p);
  world.SetBudget(budget);
  return world;
}

struct Bound {
  std::string name;
  Budget budget;
  int pushes;
  int followers;  // in sync at the beginning
  int min_copies = 1;
  bool in_suite = true;
  bool others = true;  // processes that look for the primary
};

std::vector<Bound> Bounds() {
  return {
      {"a crash", {.crashes = 1}, 2, 1},
      {"crashes of 3 in sync", {.crashes = 2, .restarts = 1}, 1, 2},
      {"an unknown outcome", {.unknown = 1, .mistaken = 1}, 1, 1},
      {"a crash, unknown outcome", {.crashes = 1, .unknown = 1}, 1, 1},
      {"a mistake", {.mistaken = 1}, 2, 1},
      {"a crash of 3 in sync", {.crashes = 1}, 2, 2},
      {"two copies required", {.crashes = 1, .restarts = 1}, 1, 1, 2},
      {"a hand-over", {.crashes = 1, .handovers = 1}, 1, 1},
      {"a hand-over of 3 in sync", {.handovers = 1}, 1, 2},
      {"a hand-over, unknown outcome", {.unknown = 1, .handovers = 1}, 1, 1},
      {"two hand-overs", {.handovers = 2}, 1, 2},
      {"there and back, a crash", {.crashes = 1, .handovers = 3}, 1, 1, 1, true, false},
      {"there and back", {.handovers = 3}, 2, 1, 1, true, false},
      {"there and back, two required", {.crashes = 1, .handovers = 2}, 1, 1, 2, true, false},
      {"there and back, unknown", {.unknown = 1, .handovers = 2}, 1, 1, 1, true, false},
      {"loaded tables, a crash", {.crashes = 1, .loads = 1}, 1, 1},
      {"loaded tables, a hand-over", {.handovers = 1, .loads = 1}, 1, 1, 1, true, false},
      {"the store empty", {.resets = 2}, 1, 2},
      {"the store empty, a crash", {.crashes = 1, .resets = 1}, 1, 1, 1, true, false},
      {"the store empty, a restart", {.crashes = 1, .restarts = 1, .resets = 1}, 1, 1, 1, false},
      {"the store empty, a copy starts", {.restarts = 1, .resets = 1}, 2, 1},
      {"the store empty, a mistake", {.mistaken = 1, .resets = 1}, 1, 1},
      {"the store empty, crash, unknown", {.crashes = 1, .unknown = 1, .resets = 1}, 1, 1, 1, true, false},
      {"the store empty, unknown", {.unknown = 1, .resets = 1}, 1, 1},
      {"the store empty, a hand-over", {.handovers = 1, .resets = 1}, 1, 1},
      {"the store empty, hand-over, crash",
       {.crashes = 1, .handovers = 1, .resets = 1},
       1,
       1,
       1,
       true,
       false},
      {"the store empty, no follower", {.crashes = 1, .restarts = 1, .resets = 1}, 1, 0, 1, true, false},
      {"a crash and a restart", {.crashes = 1, .restarts = 1}, 2, 1, 1, false},
      {"mistakes", {.mistaken = 2}, 1, 1, 1, false},
      {"two crashes", {.crashes = 2, .restarts = 2}, 2, 1, 1, false},
      {"mistaken hand-overs", {.crashes = 1, .mistaken = 1, .handovers = 2}, 2, 1, 1, false},
      {"all together", {.crashes = 1, .restarts = 1, .unknown = 1, .mistaken = 1}, 1, 1, 1, false},
  };
}

void Print(const std::string& name, const Exploration& found) {
  std::cout << absl::StrFormat("%-24s %9d states, %10d transitions, depth %3d, %6.2f s, %.0f states/s%s\n",
                               name, found.states, found.transitions, found.depth, found.seconds,
                               static_cast<double>(found.states) / found.seconds,
                               found.complete ? "" : " (not all)");
}

TEST(ExplorerTest, AllStatesOfEachBoundKeepTheRules) {
  for (const Bound& bound : Bounds()) {
    const char* const only = std::getenv("TANDEM_EXPLORER_BOUND");
    if (only == nullptr ? !bound.in_suite : bound.name != only) continue;
    const World start = Running(bound.budget, bound.pushes, bound.followers, Protocol::Fault::kNone,
                                PathFault::kNone, bound.min_copies, bound.others);
    ASSERT_EQ(start.store().in_sync.size(), static_cast<size_t>(bound.followers));
    const Exploration found = Explore(start, MaxStates());
    Print(bound.name, found);
    EXPECT_EQ(found.violation, "") << bound.name;
    EXPECT_TRUE(found.complete || !bound.in_suite) << bound.name;
  }
}

struct Planted {
  std::string name;
  Protocol::Fault fault;
  PathFault path_fault;
  Bound bound;
  std::string harm;
};

std::vector<Planted> PlantedFaults() {
  using Fault = Protocol::Fault;
  const std::string kLacks = "lacks it", kIncomplete = "is not complete", kGivenUp = "is given up",
                    kTwice = "a push is twice", kServes = "serves though another copy has taken over";
  const Bound crash{"", {.crashes = 2, .restarts = 2}, 1, 1},
      mistake{"", {.crashes = 1, .restarts = 1, .mistaken = 2}, 1, 1};
  const Bound three{"", {.crashes = 1}, 2, 2};
  const Bound handover{"", {.crashes = 1, .unknown = 1, .handovers = 1}, 1, 1};
  const Bound there{"", {.crashes = 1, .handovers = 1}, 2, 1};
  const Bound load{"", {.crashes = 1, .loads = 1}, 1, 1};
  const Bound empty{"", {.crashes = 1, .restarts = 1, .resets = 1}, 1, 1};
  const Bound mistaken_empty{"", {.mistaken = 1, .resets = 1}, 1, 1};
  const Bound unknown{"", {.crashes = 1, .restarts = 1, .unknown = 2, .mistaken = 1}, 1, 1};
  return {
      {"learner is in sync", Fault::kLearnerInSync, PathFault::kNone, crash, kIncomplete},
      {"joins without barrier", Fault::kJoinWithoutBarrier, PathFault::kNone, crash, kLacks},
      {"wait set shrinks early", Fault::kEarlyRelease, PathFault::kNone, mistake, kLacks},
      {"unknown is done", Fault::kUnknownIsDone, PathFault::kNone, unknown, kLacks},
      {"a read settles", Fault::kReadSettles, PathFault::kNone, unknown, kLacks},
      {"anyone takes over", Fault::kAnyoneTakesOver, PathFault::kNone, crash, kLacks},
      {"the fence closes late", Fault::kLateClose, PathFault::kNone, mistake, kLacks},
      {"an id is used again", Fault::kIdReused, PathFault::kNone, crash, kIncomplete},
      {"forgets ids", Fault::kForgetsIds, PathFault::kNone, mistake, kLacks},
      {"lost too early", Fault::kLostTooEarly, PathFault::kNone, crash, kGivenUp},
      {"serves after it has asked", Fault::kServesAfterTold, PathFault::kNone, handover, kServes},
      {"takes over late", Fault::kTakesOverLate, PathFault::kNone, handover, kServes},
      {"follows too early", Fault::kFollowsTooEarly, PathFault::kNone, there, kTwice},
      {"hides records", Fault::kNone, PathFault::kHidesRecords, there, kTwice},
      {"removal releases early", Fault::kRemovalReleases, PathFault::kNone, load, kLacks},
      {"begins unasked", Fault::kBeginsUnasked, PathFault::kNone, empty, ""},
      {"publishes unasked", Fault::kPublishesUnasked, PathFault::kNone, mistaken_empty, ""},
      {"takes over without a document", Fault::kTakesOverUnplaced, PathFault::kNone, mistaken_empty, ""},
      {"duplicate acknowledged", Fault::kNone, PathFault::kDuplicateAcknowledgedEarly, crash, kLacks},
      {"old term accepted", Fault::kNone, PathFault::kOldTermAccepted, mistake, kLacks},
      {"a copy ahead continues", Fault::kNone, PathFault::kAheadContinues, three, kTwice},
  };
}

TEST(ExplorerTest, PlantedFaultsAreFound) {
  for (const Planted& planted : PlantedFaults()) {
    const Bound& bound = planted.bound;
    const Exploration found = Explore(
        Running(bound.budget, bound.pushes, bound.followers, planted.fault, planted.path_fault), MaxStates());
    Print(planted.name, found);
    EXPECT_NE(found.violation, "") << planted.name;
    EXPECT_NE(found.violation.find(planted.harm), std::string::npos) << planted.name << found.violation;
    if (std::getenv("TANDEM_EXPLORER_PATHS") != nullptr) std::cout << found.violation << "\n";
  }
}

}  // namespace
}  // namespace tandem::ps::testing
