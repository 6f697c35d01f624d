// SPDX-License-Identifier: Apache-2.0
#include "tests/ps/failover/world.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"

namespace tandem::ps::testing {
namespace {

using Kind = Event::Kind;

constexpr const char* kNames[] = {"compare-and-set",
                                  "unknown outcome",
                                  "late change",
                                  "waited",
                                  "attach",
                                  "attach fails",
                                  "lost",
                                  "unlinked",
                                  "told",
                                  "deliver",
                                  "answer",
                                  "silent",
                                  "heard",
                                  "link ended",
                                  "higher term",
                                  "push",
                                  "crash",
                                  "restart",
                                  "hand over",
                                  "take over",
                                  "handed over",
                                  "hand-over fails",
                                  "stepped down",
                                  "remove followers",
                                  "load",
                                  "store loses its memory",
                                  "notices"};

std::string AddressOf(int who) { return std::string(1, static_cast<char>('A' + who)); }

}  // namespace

std::string ToString(const Event& event) {
  return absl::StrCat(kNames[static_cast<int>(event.kind)], " ", event.who,
                      event.kind == Kind::kPush       ? absl::StrCat(" push ", event.push)
                      : event.kind == Kind::kHandOver ? absl::StrCat(" to ", event.push)
                                                      : "");
}

bool Process::Contains(int push) const {
  return std::any_of(log.begin(), log.end(), [push](const LogRecord& r) { return r.push == push; });
}

int World::Find(absl::string_view id) const {
  for (int p = 0; p < kProcesses; ++p) {
    if (processes_[p]->alive && processes_[p]->protocol.self().id == id) return p;
  }
  return -1;
}

Shared<Link>* World::ActiveLink(int who, absl::string_view copy) {
  const std::string& self = processes_[who]->protocol.self().id;
  for (Shared<Link>& link : links_) {
    if (link->active && link->primary == self && link->copy == copy) return &link;
  }
  return nullptr;
}

void World::StartProcess(int who) {
  Process process;
  process.alive = true;
  const int life = fault_ == Protocol::Fault::kIdReused ? 0 : lives_[who]++;
  process.protocol =
      Protocol(absl::StrCat(AddressOf(who), life), AddressOf(who), min_copies_, fault_, /*fresh=*/!begun_);
  processes_[who] = Shared<Process>(std::move(process));
  With(who, [](Protocol& protocol, Protocol::Actions* actions) { protocol.Start(actions); });
}

void World::CarryOut(int who, Protocol::Actions actions) {
  using Action = Protocol::Action::Kind;
  for (Protocol::Action& action : actions) {
    if (!processes_[who]->alive) return;
    Process& process = processes_[who].Change();
    switch (action.kind) {
      // These happen at once: the model does not delay reads and probes, nor does a probe err.
      case Action::kRead:
        With(who, [&](Protocol& p, Protocol::Actions* a) {
          Reaches(who) ? p.OnRead(store_, a) : p.OnReadFailed(a);
        });
        break;
      case Action::kProbe: {
        // Nobody gives up while a primary may publish the document again.
        bool lives = Find(action.placement.primary.id) >= 0 || (misses_placement() && PrimaryLives());
        for (const Copy& copy : action.placement.in_sync) lives = lives || Find(copy.id) >= 0;
        With(who, [&](Protocol& p, Protocol::Actions* a) { p.OnProbed(action.placement.version, lives, a); });
        break;
      }
      case Action::kAskCopies: {
        const bool deny = AllDeny(who, action.placement);
        With(who,
             [&](Protocol& p, Protocol::Actions* a) { p.OnCopiesAsked(action.placement.version, deny, a); });
        break;
      }
      case Action::kApplyReceived: {
        process.cut = true;
        const std::string id = process.protocol.self().id;
        With(who, [&](Protocol& p, Protocol::Actions* a) { p.OnApplied(id, a); });
        break;
      }
      case Action::kCompareAndSet:
        process.board = Process::BoardCall::kCompareAndSet;
        process.change = {action.expected, std::move(action.placement)};
        break;
      case Action::kWait:
        process.board = Process::BoardCall::kWait;
        break;
      case Action::kBeginCopy:
        process.fence.Open(action.placement.term, action.placement.primary.id, action.copy.id);
        // The earlier primary that follows too early (Protocol::Fault::kFollowsTooEarly).
        if (process.calls) EndTerm(who);
        if (!process.whole) {
          process.log.clear();
          process.log_term = 0;
          process.hidden = 0;
        }
        process.cut = false;
        process.stored_number = 0;
        process.attaching = true;
        attaches_.push_back({action.copy,
                             action.placement.term,
                             action.placement.primary.id,
                             action.placement.primary.address[0] - 'A',
                             {process.log_term, process.log_term == 0 ? 0 : process.position()}});
        if (Find(attaches_.back().primary) >= 0) Attach(attaches_.size() - 1);
        break;
      case Action::kCloseAppends:
        process.fence.Close();
        break;
      case Action::kLead:
        process.fence.Raise(action.placement.term);
        process.wait_set = WaitSet(min_copies_);
        process.whole = true;
        process.waiting = 0;
        process.base = {process.log_term, process.log.size()};
        process.led_term = action.placement.term;
        process.calls = true;
        break;
      case Action::kStepDown:
        break;  // kSteppedDown follows
      case Action::kStartLink: {
        Link link{.primary = process.protocol.self().id,
                  .copy = action.copy.id,
                  .term = process.protocol.placement().term,
                  .from = who,
                  .to = action.copy.address[0] - 'A'};
        const Lineage& held = action.held;
        bool continues = CanContinue(process.base, held);
        if (path_fault_ == PathFault::kAheadContinues) {
          continues = held.term != 0 && held.term == process.base.term && held.position <= process.log.size();
        }
        if (continues) {
          link.messages.push_back(
              {.kind = LinkMessage::Kind::kMissing,
               .position = process.log.size(),
               .log =
                   Log(process.log.begin() + static_cast<std::ptrdiff_t>(held.position), process.log.end())});
        } else {
          link.messages.push_back(
              {.kind = LinkMessage::Kind::kTables, .position = process.log.size(), .log = process.log});
        }
        links_.emplace_back(std::move(link));
        break;
      }
      case Action::kEndLink:
        if (Shared<Link>* const link = ActiveLink(who, action.copy.id)) link->Change().active = false;
        break;
      case Action::kRequire:
        if (Shared<Link>* const link = ActiveLink(who, action.copy.id)) {
          process.wait_set.Require(action.copy.id, (*link)->known.position);
        }
        break;
      case Action::kRelease:
        process.wait_set.Release(action.copy.id);
        break;
      case Action::kConfirm:
        process.wait_set.Confirm(action.placement.in_sync.size());
        break;
      case Action::kTellTakeOver:
        take_overs_.push_back({action.copy.id, std::move(action.placement), who});
        break;
      case Action::kServe:
      case Action::kRefuse:
        break;
      case Action::kFollowersRemoved:
        process.removed = true;
        break;
      case Action::kEnd:
        if (absl::IsDataLoss(action.status)) {
          lost_ = true;
          const ShardPlacement& newest = misses_placement() ? before_ : store_;
          const int primary = Find(newest.primary.id);
          // A primary that cannot publish the document again gives up itself.
          const bool itself = primary == who && misses_placement();
          if (primary >= 0 && !itself) Violated("the shard is given up though its primary lives");
          for (const Copy& copy : store_.in_sync) {
            if (Find(copy.id) >= 0) Violated("the shard is given up though a follower in sync lives");
          }
        }
        Crash(who);
        return;
    }
  }
}

void World::Crash(int who) {
  // The call may have reached the store.
  if (processes_[who]->board == Process::BoardCall::kCompareAndSet) late_.push_back(processes_[who]->change);
  processes_[who] = Shared<Process>();
}

void World::Reset() {
  if (store_.version > 0) before_ = std::exchange(store_, {});
  // Calls end with the memory to which they were sent.
  late_.clear();
  for (int p = 0; p < kProcesses; ++p) {
    if (!processes_[p]->alive || processes_[p]->protocol.role() != Protocol::Role::kStarting) continue;
    const bool calls = processes_[p]->board == Process::BoardCall::kCompareAndSet;
    if (calls) processes_[p].Change().board = Process::BoardCall::kNone;
    With(p, [&](Protocol& protocol, Protocol::Actions* a) {
      protocol.OnBoardReset(a);
      if (calls) protocol.OnCompareAndSet(Protocol::Outcome::kUnknown, {}, a);
    });
  }
}

bool World::PrimaryLives() const {
  return std::any_of(processes_.begin(), processes_.end(), [](const Shared<Process>& process) {
    // The compare-and-set of a copy that takes over may have been in force.
    return process->alive && (process->protocol.role() == Protocol::Role::kPrimary ||
                              process->protocol.role() == Protocol::Role::kTakingOver);
  });
}

bool World::AllDeny(int who, const ShardPlacement& asked) const {
  using Role = Protocol::Role;
  const Protocol& primary = processes_[who]->protocol;
  const auto life = [](const std::string& id) { return id.substr(0, id.rfind('-')); };
  for (const Copy& copy : asked.in_sync) {
    const int at = copy.address[0] - 'A';
    const Process& other = *processes_[at];
    if (Reaches(who) && other.alive && life(other.protocol.self().id) == life(copy.id)) {
      const Role role = other.protocol.role();
      if (role != Role::kLearner && role != Role::kFollower) return false;
      if (other.protocol.placement().term > primary.placement().term) return false;
      continue;
    }
    // A copy that is gone has kept its promise not to take over while its primary held the lease. Without a
    // clock that is known only if nobody takes a living process for dead.
    if (mistakes_ || !primary.serving() || primary.handing_over()) return false;
  }
  return true;
}

void World::Push(int who, int push) {
  touched_ |= 1u << who;
  sent_ |= uint64_t{1} << push;
  Process& process = processes_[who].Change();
  if (process.Contains(push)) {
    if (path_fault_ == PathFault::kDuplicateAcknowledgedEarly) acknowledged_ |= uint64_t{1} << push;
  } else {
    process.log.push_back({process.led_term, push});
    // A call of the time before, which nobody expects any more.
    if (process.protocol.role() == Protocol::Role::kLearner ||
        process.protocol.role() == Protocol::Role::kFollower) {
      ++process.hidden;
      return;
    }
    for (Shared<Link>& link : links_) {
      if (!link->active || link->primary != process.protocol.self().id) continue;
      link.Change().messages.push_back(
          {.kind = LinkMessage::Kind::kRecord, .position = process.log.size(), .log = {process.log.back()}});
    }
  }
  process.waiting |= uint64_t{1} << push;
}

void World::EndTerm(int who) {
  Process& process = processes_[who].Change();
  for (Shared<Link>& link : links_) {
    if (link->from == who && link->term == process.led_term && link->active) link.Change().active = false;
  }
  process.whole = true;
  process.log_term = process.led_term;
  process.waiting = 0;
  process.removing = process.removed = false;
  if (path_fault_ == PathFault::kHidesRecords) {
    process.hidden = process.log.size() - process.wait_set.Durable(process.log.size());
  }
}

void World::Attach(size_t index) {
  const AttachCall call = attaches_[index];
  absl::Status attached;
  With(call.to, [&](Protocol& p, Protocol::Actions* a) {
    attached = p.OnAttach(call.copy, call.term, call.primary, a, call.held);
  });
  const int from = Find(call.copy.id);
  if (attached.ok() && from >= 0) processes_[from].Change().attaching = false;
}

void World::Deliver(size_t index) {
  const Link& link = *links_[index];
  const int to = Find(link.copy);
  if (to < 0) return;
  AppendFence::Verdict verdict = processes_[to]->fence.Check(link.term, link.primary, link.copy);
  const bool any_term = path_fault_ == PathFault::kOldTermAccepted;
  if (any_term && verdict == AppendFence::Verdict::kDeposed) verdict = AppendFence::Verdict::kStore;
  if (verdict != AppendFence::Verdict::kStore) return;
  Process& process = processes_[to].Change();
  if (process.stored_number < link.messages.size()) {
    const LinkMessage& message = link.messages[process.stored_number];
    // A message that comes too late to be applied is stored and answered nevertheless.
    if (message.kind == LinkMessage::Kind::kTables) {
      if (!process.cut) process.log = message.log;
      if (!process.cut) process.whole = true;
      if (!process.cut) process.hidden = 0;
    } else if (!process.cut) {
      // Refused: not the next records.
      if (message.position != process.position() + message.log.size()) return;
      process.log.insert(process.log.end(), message.log.begin(), message.log.end());
    }
    if (!process.cut) process.log_term = link.term;
    ++process.stored_number;
  }
  process.protocol.OnPrimaryHeard(link.term);
  const size_t last = std::min<size_t>(process.stored_number, link.messages.size());
  const uint64_t position = std::max(process.cut ? 0 : process.position(), link.messages[last - 1].position);
  links_[index].Change().answered = {process.stored_number, position};
}

void World::Answer(size_t index) {
  Link& link = links_[index].Change();
  link.known = link.answered;
  const int from = Find(link.primary);
  if (from < 0 || !link.active) return;
  const std::string copy = link.copy;
  processes_[from].Change().wait_set.SetStored(copy, link.known.position);
  With(from, [&](Protocol& p, Protocol::Actions* actions) { p.OnComplete(copy, actions); });
}

void World::Advance(int who) {
  if (!processes_[who]->alive || processes_[who]->protocol.role() != Protocol::Role::kPrimary) return;
  std::vector<std::string> joined;
  for (const Shared<Link>& link : links_) {
    if (link->active && link->from == who && processes_[who]->wait_set.HasCaughtUp(link->copy)) {
      joined.push_back(link->copy);
    }
  }
  for (const std::string& id : joined) {
    With(who, [&](Protocol& p, Protocol::Actions* actions) { p.OnCaughtUp(id, actions); });
  }
  if (!processes_[who]->alive) return;
  Process& process = processes_[who].Change();
  touched_ &= ~(1u << who);
  const uint64_t durable = process.wait_set.Durable(process.log.size());
  for (size_t n = 0; n < durable; ++n) {
    const uint64_t bit = uint64_t{1} << process.log[n].push;
    acknowledged_ |= process.waiting & bit;
    process.waiting &= ~bit;
  }
}

void World::Prune() {
  std::erase_if(links_, [&](const Shared<Link>& link) {
    return Find(link->copy) < 0 && (!link->active || Find(link->primary) < 0);
  });
  std::erase_if(take_overs_, [&](const TakeOverCall& call) { return Find(call.copy) < 0; });
  std::erase_if(attaches_, [&](const AttachCall& call) { return Find(call.copy.id) < 0; });
  std::erase_if(late_, [&](const LateChange& change) { return change.expected != store_.version; });
}

void World::Apply(const Event& event) {
  const int who = event.who;
  switch (event.kind) {
    case Kind::kCompareAndSet: {
      processes_[who].Change().board = Process::BoardCall::kNone;
      const LateChange change = std::exchange(processes_[who].Change().change, {});
      const bool done = change.expected == store_.version;
      if (done) store_ = change.desired;
      With(who, [&](Protocol& p, Protocol::Actions* a) {
        p.OnCompareAndSet(done ? Protocol::Outcome::kDone : Protocol::Outcome::kChanged, store_, a);
      });
      break;
    }
    case Kind::kUnknownOutcome:
      --budget_.unknown;
      processes_[who].Change().board = Process::BoardCall::kNone;
      late_.push_back(std::exchange(processes_[who].Change().change, {}));
      With(who,
           [&](Protocol& p, Protocol::Actions* a) { p.OnCompareAndSet(Protocol::Outcome::kUnknown, {}, a); });
      break;
    case Kind::kLateChange:
      store_ = late_[who].desired;
      break;
    case Kind::kWaited:
      processes_[who].Change().board = Process::BoardCall::kNone;
      With(who, [](Protocol& p, Protocol::Actions* a) { p.OnWaited(a); });
      break;
    case Kind::kAttach:
      Attach(who);
      break;
    case Kind::kAttachFails: {
      const int to = Find(processes_[who]->protocol.placement().primary.id);
      if (to >= 0) --budget_.mistaken;
      processes_[who].Change().attaching = false;
      const std::string id = processes_[who]->protocol.self().id;
      With(who, [&](Protocol& p, Protocol::Actions* a) { p.OnAttachFailed(id, a); });
      break;
    }
    case Kind::kPrimaryLost: {
      const ShardPlacement followed = processes_[who]->protocol.placement();
      if (Find(followed.primary.id) >= 0) --budget_.mistaken;
      const uint64_t term = followed.term;
      With(who, [&](Protocol& p, Protocol::Actions* a) { p.OnPrimaryLost(term, a); });
      break;
    }
    case Kind::kUnlinked: {
      const std::string id = processes_[who]->protocol.self().id;
      With(who, [&](Protocol& p, Protocol::Actions* a) { p.OnUnlinked(id, a); });
      break;
    }
    case Kind::kTold: {
      const ShardPlacement told =
          processes_[Find(processes_[who]->protocol.placement().primary.id)]->protocol.placement();
      With(who, [&](Protocol& p, Protocol::Actions* a) { p.OnTold(told, a); });
      break;
    }
    case Kind::kDeliver:
      Deliver(who);
      break;
    case Kind::kAnswer:
      Answer(who);
      break;
    case Kind::kSilent:
    case Kind::kHeard:
    case Kind::kLinkEnded: {
      const std::string id = links_[who]->copy;
      const int from = Find(links_[who]->primary);
      if (event.kind != Kind::kHeard && Find(id) >= 0) --budget_.mistaken;
      With(from, [&](Protocol& p, Protocol::Actions* a) {
        if (event.kind == Kind::kSilent) p.OnFollowerSilent(id, a);
        if (event.kind == Kind::kHeard) p.OnFollowerHeard(id, a);
        if (event.kind == Kind::kLinkEnded) p.OnLinkEnded(id, a);
      });
      break;
    }
    case Kind::kHigherTerm: {
      const uint64_t term = processes_[links_[who]->to]->fence.term();
      With(Find(links_[who]->primary), [&](Protocol& p, Protocol::Actions* a) { p.OnHigherTerm(term, a); });
      break;
    }
    case Kind::kPush:
      Push(who, event.push);
      break;
    case Kind::kCrash:
      --budget_.crashes;
      Crash(who);
      break;
    case Kind::kRestart:
      --budget_.restarts;
      StartProcess(who);
      break;
    case Kind::kHandOver: {
      --budget_.handovers;
      const std::string id = processes_[event.push]->protocol.self().id;
      With(who, [&](Protocol& p, Protocol::Actions* a) {
        // Acknowledgements need the follower, whenever it is asked.
        if (p.OnHandOver(id, /*stays=*/true, a).ok()) p.OnAllStored(a);
      });
      break;
    }
    case Kind::kTakeOver: {
      const TakeOverCall call = take_overs_[who];
      With(Find(call.copy), [&](Protocol& p, Protocol::Actions* a) {
        p.OnTakeOver(call.copy, call.placement, a).IgnoreError();
      });
      break;
    }
    case Kind::kHandedOver:
      With(who, [&](Protocol& p, Protocol::Actions* a) { p.OnHandedOver(store_, a); });
      break;
    case Kind::kHandOverFails:
      With(who, [](Protocol& p, Protocol::Actions* a) { p.OnHandOverFailed(a); });
      break;
    case Kind::kSteppedDown: {
      EndTerm(who);
      processes_[who].Change().calls = false;
      const std::string id = processes_[who]->protocol.self().id;
      With(who, [&](Protocol& p, Protocol::Actions* a) { p.OnSteppedDown(id, absl::OkStatus(), a); });
      break;
    }
    case Kind::kRemove:
      --budget_.loads;
      processes_[who].Change().removing = true;
      With(who, [](Protocol& p, Protocol::Actions* a) { p.OnRemoveFollowers(a); });
      break;
    case Kind::kReset:
      --budget_.resets;
      Reset();
      break;
    case Kind::kNotice:
      With(who, [](Protocol& p, Protocol::Actions* a) { p.OnBoardReset(a); });
      break;
    case Kind::kLoad: {
      Process& process = processes_[who].Change();
      if (process.removed) {
        // The tables change without a record that a copy could get (ShippedLog::SkipPosition).
        const int load = kFirstLoad + loads_++;
        process.log.push_back({process.led_term, load});
        process.waiting |= uint64_t{1} << load;
        for (Shared<Link>& link : links_) {
          if (link->active && link->from == who) link.Change().active = false;
        }
      }
      process.removing = process.removed = false;
      With(who, [](Protocol& p, Protocol::Actions*) { p.OnAllowFollowers(); });
      break;
    }
  }
  Settle();
}

void World::Settle() {
  while (touched_ != 0) {
    const int p = std::countr_zero(touched_);
    touched_ &= touched_ - 1;
    Advance(p);
  }
  if (store_.version > 0) {
    begun_ = true;
    before_ = {};
  }
  largest_term_ = std::max(largest_term_, store_.term);
  Prune();
  Check();
}

void World::Check() {
  for (int p = 0; p < kProcesses; ++p) {
    const Process& process = *processes_[p];
    if (!process.alive) continue;
    const std::string& id = process.protocol.self().id;
    uint64_t contained = 0;
    for (const LogRecord& record : process.log) {
      if ((contained >> record.push & 1) != 0) Violated(absl::StrCat("a push is twice in ", id));
      contained |= uint64_t{1} << record.push;
    }
    const bool may_lead = store_.IsInSync(id) || store_.primary.id == id;
    if (may_lead) {
      const bool first = process.protocol.role() == Protocol::Role::kStarting;  // of an empty shard
      if (!process.whole && !first) Violated(absl::StrCat(id, " may lead, but its copy is not complete"));
      if (const uint64_t lacks = acknowledged_ & ~contained; lacks != 0) {
        Violated(absl::StrCat("push ", std::countr_zero(lacks), " was acknowledged, and ", id,
                              ", which may lead, lacks it"));
      }
    }
    if (no_mistakes_ && process.protocol.role() == Protocol::Role::kPrimary && process.protocol.serving() &&
        largest_term_ > process.protocol.placement().term) {
      Violated(absl::StrCat(id, " serves though another copy has taken over"));
    }
    for (int q = 0; q < p; ++q) {
      const Process& other = *processes_[q];
      if (!other.alive) continue;
      if (other.protocol.self().id == id) Violated(absl::StrCat("two processes are the copy ", id));
      const bool both_lead = process.protocol.role() == Protocol::Role::kPrimary &&
                             other.protocol.role() == Protocol::Role::kPrimary;
      if (both_lead && process.protocol.placement().term == other.protocol.placement().term) {
        Violated("a term has two primaries");
      }
      for (size_t i = 0; i < std::min(process.log.size(), other.log.size()); ++i) {
        if (process.log[i].term == other.log[i].term && process.log[i].push != other.log[i].push) {
          Violated(absl::StrCat("position ", i + 1, " of a term is not the same record everywhere"));
        }
      }
    }
  }
}

}  // namespace tandem::ps::testing
