// SPDX-License-Identifier: Apache-2.0
// Simulates the copies of a shard with a virtual clock: processes die and start, stop for a while, lose each
// other and the store. Detection is the real one (ps/failover/detector.h). After a row of faults all heals,
// and the shard must serve again with all followers. TANDEM_SIMULATION_SEEDS sets the number of seeds.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "ps/failover/detector.h"
#include "tests/ps/failover/world.h"
#include "tests/testing/random_seed.h"

namespace tandem::ps::testing {
namespace {

constexpr int kFaultsOfSeed = 1000;
constexpr int kFaultsOfEra = 50;
constexpr int kPushes = 60;  // of an era
constexpr absl::Duration kTick = absl::Milliseconds(50);
constexpr absl::Duration kLease = absl::Seconds(2);
constexpr absl::Duration kSilence = absl::Seconds(1);
constexpr absl::Duration kPublishTime = absl::Seconds(30);  // after which a primary gives up

struct Counts {
  uint64_t faults = 0;
  uint64_t crashes = 0;
  uint64_t pauses = 0;
  uint64_t partitions = 0;
  uint64_t store_away = 0;
  uint64_t asked = 0;  // to hand over
  uint64_t failovers = 0;
  uint64_t handovers = 0;
  uint64_t stayed = 0;  // earlier primaries that became followers
  uint64_t loads = 0;
  uint64_t resets = 0;  // of the store
  uint64_t pushes = 0;
  uint64_t lost = 0;
  uint64_t steps = 0;
};

// One row of faults in a new shard, then healing.
class Era {
 public:
  Era(CounterRandom* random, Counts* counts)
      : random_(*random),
        counts_(*counts),
        world_({.crashes = 1 << 20,
                .restarts = 1 << 20,
                .unknown = 1 << 20,
                .mistaken = 1 << 20,
                .handovers = 1 << 20,
                .loads = 4,
                .resets = 1 << 20},
               kPushes) {
    for (int p = 0; p < kProcesses; ++p) {
      world_.StartProcess(p);
      NoticeCopies(p);
    }
  }

  // Returns what went wrong; empty if nothing did.
  std::string Run() {
    for (int fault = 0; fault < kFaultsOfEra && !IsOver(); ++fault) {
      const absl::Time next = now_ + absl::Milliseconds(1 + random_.Below(400));
      while (now_ < next && !IsOver()) Step();
      if (!IsOver()) Inject();
    }
    away_until_.fill(absl::InfinitePast());
    paused_until_.fill(absl::InfinitePast());
    for (auto& row : cut_until_) row.fill(absl::InfinitePast());
    const absl::Time deadline = now_ + absl::Minutes(1);
    while (!IsOver() && !IsWhole()) {
      if (NobodyPublishes()) {
        ++counts_.lost;
        break;
      }
      if (now_ > deadline) return absl::StrCat("the shard does not heal within a minute: ", Describe());
      Step();
    }
    counts_.failovers += world_.store().failovers;
    counts_.handovers += world_.store().handovers;
    counts_.pushes += static_cast<uint64_t>(std::popcount(world_.acknowledged()));
    counts_.lost += world_.lost() ? 1 : 0;
    return world_.violation().empty() ? violation_ : world_.violation();
  }

 private:
  static constexpr int kProcesses = World::kProcesses;
  using Kind = Event::Kind;

  bool IsOver() const { return world_.lost() || !world_.violation().empty() || !violation_.empty(); }
  bool Runs(int p) const { return world_.process(p).alive && now_ >= paused_until_[p]; }
  bool Reach(int p, int q) const { return Runs(p) && Runs(q) && (p == q || now_ >= cut_until_[p][q]); }
  bool Chance(double probability) { return random_.UniformDouble() < probability; }
  const Protocol& ProtocolOf(int p) const { return world_.process(p).protocol; }
  bool Leads(int p) const {
    return world_.process(p).alive && ProtocolOf(p).role() == Protocol::Role::kPrimary;
  }

  // Returns whether there is a primary and all other processes are in sync.
  bool IsWhole() const {
    const int primary = world_.Find(world_.store().primary.id);
    return primary >= 0 && Leads(primary) && ProtocolOf(primary).serving() &&
           world_.store().in_sync.size() == kProcesses - 1 && world_.process(primary).waiting == 0;
  }

  // Describes the store and the processes, for a shard that does not heal.
  std::string Describe() const {
    std::string text = absl::StrCat("version ", world_.store().version, ", primary ",
                                    world_.store().primary.id, ", in sync");
    for (const Copy& copy : world_.store().in_sync) absl::StrAppend(&text, " ", copy.id);
    for (int p = 0; p < kProcesses; ++p) {
      const Process& process = world_.process(p);
      if (!process.alive) continue;
      absl::StrAppend(&text, "; ", process.protocol.self().id, " role ",
                      static_cast<int>(process.protocol.role()), " version ",
                      process.protocol.placement().version, " board ", static_cast<int>(process.board),
                      " attaching ", process.attaching, " serving ", process.protocol.serving(), " waiting ",
                      process.waiting);
    }
    for (const Shared<Link>& link : world_.links()) {
      absl::StrAppend(&text, "; link ", link->primary, " to ", link->copy, link->active ? "" : " ended", ", ",
                      link->answered.number, " of ", link->messages.size(), " answered, ", link->known.number,
                      " known");
    }
    return text;
  }

  void Inject() {
    ++counts_.faults;
    const absl::Time until = now_ + absl::Milliseconds(100 + random_.Below(4000));
    const int p = static_cast<int>(random_.Below(kProcesses));
    const int q = (p + 1 + static_cast<int>(random_.Below(kProcesses - 1))) % kProcesses;
    switch (random_.Below(9)) {
      case 8:
        ++counts_.resets;
        return world_.Apply({Kind::kReset, 0});
      case 0: {
        // The last copy dies sometimes only: then the shard is lost, and the era over.
        bool others = false;
        for (int o = 0; o < kProcesses; ++o) {
          others = others || (o != p && world_.process(o).alive &&
                              (world_.store().IsInSync(ProtocolOf(o).self().id) ||
                               world_.store().primary.id == ProtocolOf(o).self().id));
        }
        if (!world_.process(p).alive || (!others && !Chance(0.02))) return;
        ++counts_.crashes;
        return world_.Apply({Kind::kCrash, static_cast<uint8_t>(p)});
      }
      case 1:
      case 2:
        ++counts_.pauses;
        paused_until_[p] = until;
        return;
      case 3:
      case 4:
        ++counts_.partitions;
        cut_until_[p][q] = cut_until_[q][p] = until;
        return;
      case 5:
        // Nothing happens if the primary is at work on the document, or `q` is not in sync.
        if (!Leads(p) || !Runs(p) || !world_.process(q).alive) return;
        ++counts_.asked;
        return world_.Apply({Kind::kHandOver, static_cast<uint8_t>(p), static_cast<uint8_t>(q)});
      case 6:
        // A primary that is at work on its followers already removes none.
        if (!Leads(p) || !Runs(p) || !ProtocolOf(p).serving() || world_.process(p).removing || loads_ == 4)
          return;
        ++loads_;
        ++counts_.loads;
        return world_.Apply({Kind::kRemove, static_cast<uint8_t>(p)});
      default:
        ++counts_.store_away;
        away_until_[p] = until;
        if (Chance(0.3)) away_until_.fill(until);
        return;
    }
  }

  // Returns whether the store has lost the document, and its primary is dead: the copies that wait for a
  // document end after a while.
  bool NobodyPublishes() const {
    bool nobody = world_.misses_placement();
    for (int p = 0; p < kProcesses; ++p) {
      nobody = nobody && (!world_.process(p).alive || ProtocolOf(p).role() == Protocol::Role::kStarting);
    }
    return nobody;
  }

  // Runs what happens in the next tick, then what the processes find out from the time.
  void Step() {
    now_ += kTick;
    uint32_t reach = 0;
    for (int p = 0; p < kProcesses; ++p) reach |= now_ >= away_until_[p] ? 1u << p : 0;
    world_.SetReach(reach);
    for (int p = 0; p < kProcesses && !IsOver(); ++p) {
      if (Runs(p)) Detect(p);
      if (!world_.misses_placement()) missing_since_[p] = now_;
      if (Runs(p) && Leads(p) && now_ - missing_since_[p] > kPublishTime) {
        world_.With(p, [](Protocol& protocol, Protocol::Actions* a) { protocol.OnNoPlacement("a copy", a); });
      }
    }
    const uint64_t most = 5 + random_.Below(20);
    for (uint64_t n = 0; n < most && !IsOver(); ++n) {
      events_.clear();
      world_.Enabled(&events_);
      std::erase_if(events_, [this](const Event& event) { return !IsPossible(event); });
      if (events_.empty()) continue;
      ++counts_.steps;
      const Event& event = events_[random_.Below(events_.size())];
      if (event.kind == Kind::kSteppedDown) ++counts_.stayed;
      world_.Apply(event);
    }
    for (int p = 0; p < kProcesses; ++p) NoticeCopies(p);
    CheckLeases();
  }

  // Returns whether the event can happen now, by the state of processes and network, and by a chance that
  // makes rare events rare.
  bool IsPossible(const Event& event) {
    switch (event.kind) {
      case Kind::kCompareAndSet:
        return Runs(event.who) && world_.Reaches(event.who);
      case Kind::kUnknownOutcome:
        return Runs(event.who) && Chance(world_.Reaches(event.who) ? 0.02 : 0.2);
      case Kind::kLateChange:
        return Chance(0.2);
      case Kind::kWaited:
        return Runs(event.who) && Chance(0.3);
      case Kind::kAttachFails: {
        const int primary = world_.Find(ProtocolOf(event.who).placement().primary.id);
        return Runs(event.who) && (primary < 0 || !Reach(event.who, primary)) && Chance(0.3);
      }
      case Kind::kTold:
      case Kind::kUnlinked: {
        const int primary = world_.Find(ProtocolOf(event.who).placement().primary.id);
        return primary >= 0 && Reach(event.who, primary) && Chance(0.3);
      }
      case Kind::kPrimaryLost:  // a refused connection; silence is for the detector
        return Runs(event.who) && world_.Find(ProtocolOf(event.who).placement().primary.id) < 0;
      case Kind::kDeliver: {
        const Link& link = *world_.links()[event.who];
        if (!Runs(link.to)) return false;
        return link.active ? Reach(link.from, link.to) : Chance(0.1);  // a message that was on its way
      }
      case Kind::kAnswer:
      case Kind::kHigherTerm: {
        const Link& link = *world_.links()[event.who];
        return Reach(link.from, link.to);
      }
      case Kind::kLinkEnded: {  // the process at that address has no such copy
        const Link& link = *world_.links()[event.who];
        return world_.Find(link.copy) < 0 ? Reach(link.from, link.to) : Runs(link.from) && Chance(0.001);
      }
      case Kind::kSilent:
      case Kind::kHeard:
      case Kind::kCrash:
      case Kind::kReset:
        return false;
      case Kind::kNotice:
        return Runs(event.who) && world_.Reaches(event.who) && Chance(0.3);
      case Kind::kPush:  // also one that was let in while the process served
        return Runs(event.who) && Chance(ProtocolOf(event.who).serving() ? 0.3 : 0.02);
      case Kind::kRestart:
        return Chance(0.2);
      case Kind::kAttach:
        return true;
      case Kind::kHandOver:
      case Kind::kRemove:
        return false;
      case Kind::kSteppedDown:
        return Runs(event.who) && Chance(0.3);
      case Kind::kLoad:
        return Runs(event.who) && Chance(0.2);
      case Kind::kTakeOver: {
        const TakeOverCall& call = world_.take_overs()[event.who];
        const int to = world_.Find(call.copy);
        return Runs(to) && (Reach(call.from, to) || Chance(0.01));  // a message that was on its way
      }
      case Kind::kHandedOver: {
        const int primary = world_.Find(world_.store().primary.id);
        return primary >= 0 && Reach(event.who, primary);
      }
      case Kind::kHandOverFails:
        return Runs(event.who) && Chance(0.1);
    }
    return true;
  }

  // Tells the detector of copies and links that have begun.
  void NoticeCopies(int p) {
    if (!world_.process(p).alive) return;
    const std::string& self = ProtocolOf(p).self().id;
    if (selves_[p] != self) {
      selves_[p] = self;
      detectors_[p] = Detector(kLease, kSilence);
      detectors_[p].Follow(now_);
      linked_[p].clear();
    }
    for (const Shared<Link>& link : world_.links()) {
      if (link->active && link->primary == self && linked_[p].insert(link->copy).second) {
        detectors_[p].StartLink(link->copy, {.monotonic = now_, .boot = now_});
        // A copy counts from the answer to its call of Attach, which may have been refused before.
        if (world_.Find(link->copy) == link->to) detectors_[link->to].Follow(now_);
      }
    }
  }

  // Beats arrive, and the detectors decide.
  void Detect(int p) {
    Detector& detector = detectors_[p];
    const std::string self = ProtocolOf(p).self().id;
    detector.Tick(now_);
    if (Leads(p)) {
      std::vector<std::pair<int, uint64_t>> heard;
      for (const Shared<Link>& shared : world_.links()) {
        const Link& link = *shared;
        if (!link.active || link.primary != self) continue;
        const AppendFence& fence = world_.process(link.to).fence;
        const bool answers = fence.Check(link.term, link.primary, link.copy) == AppendFence::Verdict::kStore;
        if (world_.Find(link.copy) == link.to && answers && Reach(p, link.to)) {
          detector.FollowerHeard(link.copy, {.monotonic = now_, .boot = now_});
          detectors_[link.to].PrimaryHeard(now_);
          heard.emplace_back(link.to, link.term);
        }
      }
      for (const auto& [follower, term] : heard) {
        world_.With(follower, [&](Protocol& protocol, Protocol::Actions*) { protocol.OnPrimaryHeard(term); });
      }
      const Detector::Changes changes = detector.TakeChanges(now_);
      const std::vector<std::string> may = ProtocolOf(p).MayTakeOver();
      world_.With(p, [&](Protocol& protocol, Protocol::Actions* actions) {
        for (const std::string& id : changes.silent) protocol.OnFollowerSilent(id, actions);
        for (const std::string& id : changes.heard) protocol.OnFollowerHeard(id, actions);
        protocol.OnLease(detector.HoldsLease(may, now_), actions);
      });
    } else if (detector.IsPrimaryLost(now_)) {
      const uint64_t term = ProtocolOf(p).placement().term;
      world_.With(
          p, [&](Protocol& protocol, Protocol::Actions* actions) { protocol.OnPrimaryLost(term, actions); });
    }
  }

  // Expects that a primary which was deposed without being dead does not hold its lease.
  void CheckLeases() {
    for (int p = 0; p < kProcesses; ++p) {
      for (int q = 0; q < kProcesses; ++q) {
        if (!Leads(p) || !Leads(q) || ProtocolOf(p).placement().term >= ProtocolOf(q).placement().term)
          continue;
        if (ProtocolOf(p).handing_over()) continue;  // it serves nothing, whatever its lease
        if (detectors_[p].HoldsLease(ProtocolOf(p).MayTakeOver(), now_)) {
          violation_ = absl::StrCat(ProtocolOf(p).self().id, " holds its lease beside a later primary");
        }
      }
    }
  }

  CounterRandom& random_;
  Counts& counts_;
  World world_;
  absl::Time now_ = absl::UnixEpoch();
  std::array<absl::Time, kProcesses> paused_until_ = {};
  std::array<absl::Time, kProcesses> away_until_ = {};
  std::array<absl::Time, kProcesses> missing_since_ = {};  // a document
  std::array<std::array<absl::Time, kProcesses>, kProcesses> cut_until_ = {};
  std::array<Detector, kProcesses> detectors_ = {Detector(kLease, kSilence), Detector(kLease, kSilence),
                                                 Detector(kLease, kSilence)};
  std::array<std::string, kProcesses> selves_;
  std::array<std::set<std::string>, kProcesses> linked_;
  std::vector<Event> events_;
  int loads_ = 0;
  std::string violation_;
};

TEST(SimulationTest, ShardsSurviveRowsOfFaultsAndHeal) {
  const char* const given = std::getenv("TANDEM_SIMULATION_SEEDS");
  uint64_t seeds = 0;
  if (given == nullptr || !absl::SimpleAtoi(given, &seeds)) seeds = 20;
  const uint64_t base = tandem::testing::RandomSeed();
  Counts counts;
  const absl::Time begin = MonotonicNow();
  for (uint64_t seed = 0; seed < seeds && !HasFailure(); ++seed) {
    CounterRandom random(base, seed);
    for (int era = 0; era < kFaultsOfSeed / kFaultsOfEra; ++era) {
      const std::string wrong = Era(&random, &counts).Run();
      ASSERT_EQ(wrong, "") << "seed " << base << ", stream " << seed << ", era " << era;
    }
  }
  std::cout << absl::StrFormat(
      "%d seeds: %d faults (%d crashes, %d pauses, %d partitions, %d times without store, %d calls to hand "
      "over, %d loads, %d times an empty store), %d failovers, %d hand-overs (%d primaries stayed), %d "
      "pushes acknowledged, %d shards "
      "lost, %d steps, %.1f s\n",
      seeds, counts.faults, counts.crashes, counts.pauses, counts.partitions, counts.store_away, counts.asked,
      counts.loads, counts.resets, counts.failovers, counts.handovers, counts.stayed, counts.pushes,
      counts.lost, counts.steps, absl::ToDoubleSeconds(MonotonicNow() - begin));
}

}  // namespace
}  // namespace tandem::ps::testing
