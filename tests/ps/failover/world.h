// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_FAILOVER_WORLD_H_
#define TANDEM_TESTS_PS_FAILOVER_WORLD_H_

// A model of everything around the protocol of a shard's copies: processes, their logs, the network, the
// store and a client. The protocol, the wait set and the fence are the real ones.
// tests/ps/failover/explorer_test.cc visits all states of a bounded world, simulation_test.cc walks through a
// large one.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "ps/failover/append_fence.h"
#include "ps/failover/lineage.h"
#include "ps/failover/protocol.h"
#include "ps/failover/wait_set.h"

namespace tandem::ps::testing {

// Faults in the parts around the protocol, see Protocol::Fault.
enum class PathFault {
  kNone,
  kDuplicateAcknowledgedEarly,  // a repeated push is acknowledged though followers may lack it
  kOldTermAccepted,             // messages of earlier terms are stored
  kAheadContinues,              // a copy continues that has records which the primary lacks
  kHidesRecords,                // an earlier primary says that it has only what it has acknowledged
};

// A record of the log: a push, and the term in which it was appended.
struct LogRecord {
  uint64_t term = 0;
  int push = 0;
  bool operator==(const LogRecord&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const LogRecord& r) {
    return H::combine(std::move(h), r.term, r.push);
  }
};
using Log = std::vector<LogRecord>;

// A message of a link: the tables (as the log that led to them), a record, or the records that a copy lacks.
struct LinkMessage {
  enum class Kind : uint8_t { kTables, kRecord, kMissing };
  Kind kind = Kind::kRecord;
  uint64_t position = 0;  // of the last record
  Log log;                // kTables: the whole log; kRecord: one record; kMissing: any number
  template <typename H>
  friend H AbslHashValue(H h, const LinkMessage& m) {
    return H::combine(std::move(h), m.kind, m.position, m.log);
  }
};

// A value that copies share until one of them changes. Caches the value's hash.
template <typename T>
class Shared {
 public:
  Shared() : node_(std::make_shared<Node>()) {}
  explicit Shared(T value) : node_(std::make_shared<Node>()) { node_->value = std::move(value); }
  const T& operator*() const { return node_->value; }
  const T* operator->() const { return &node_->value; }
  // Returns the value for a change. The reference is valid until this object is copied.
  T& Change() {
    if (node_.use_count() > 1) node_ = std::make_shared<Node>(*node_);
    node_->hash = 0;
    return node_->value;
  }
  template <typename H>
  friend H AbslHashValue(H h, const Shared& s) {
    if (s.node_->hash == 0) s.node_->hash = absl::HashOf(s.node_->value);
    return H::combine(std::move(h), s.node_->hash);
  }

 private:
  struct Node {
    T value;
    size_t hash = 0;  // 0: not computed
  };
  std::shared_ptr<Node> node_;
};

// A link from a primary to a copy. Its messages are numbered from 1 and are never forgotten by the network:
// each may arrive at any time, in any order, several times or never. The same holds for answers, of which the
// newest stands for all.
struct Link {
  std::string primary;
  std::string copy;
  uint64_t term = 0;
  int from = 0;
  int to = 0;
  bool active = true;  // the primary knows it
  std::vector<LinkMessage> messages;
  struct Answer {
    uint64_t number = 0;
    uint64_t position = 0;
    bool operator==(const Answer&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const Answer& a) {
      return H::combine(std::move(h), a.number, a.position);
    }
  };
  Answer answered;  // what the copy has said
  Answer known;     // what the primary has heard
  template <typename H>
  friend H AbslHashValue(H h, const Link& l) {
    return H::combine(std::move(h), l.primary, l.copy, l.term, l.active, l.messages, l.answered, l.known);
  }
};

struct AttachCall {
  Copy copy;
  uint64_t term = 0;
  std::string primary;
  int to = 0;
  Lineage held;
  template <typename H>
  friend H AbslHashValue(H h, const AttachCall& a) {
    return H::combine(std::move(h), a.copy, a.term, a.primary, a.held);
  }
};

// A call by which a primary asks a follower to take over. It may arrive at any time, several times or never.
struct TakeOverCall {
  std::string copy;
  ShardPlacement placement;
  int from = 0;
  template <typename H>
  friend H AbslHashValue(H h, const TakeOverCall& t) {
    return H::combine(std::move(h), t.copy, t.placement);
  }
};

// A compare-and-set whose caller does not know its outcome, and which may still take effect.
struct LateChange {
  uint64_t expected = 0;
  ShardPlacement desired;
  template <typename H>
  friend H AbslHashValue(H h, const LateChange& c) {
    return H::combine(std::move(h), c.expected, c.desired);
  }
};

// One process.
struct Process {
  enum class BoardCall : uint8_t { kNone, kCompareAndSet, kWait };
  bool alive = false;
  Protocol protocol{"", ""};
  AppendFence fence;
  WaitSet wait_set;
  Log log;             // what is in the tables, or will be
  bool whole = false;  // the tables are complete
  bool cut = false;    // what is stored from now on does not get into the tables
  uint64_t stored_number = 0;
  uint64_t log_term = 0;  // of the primary from which the log came
  Lineage base;           // of a primary: what it had when it took over
  uint64_t led_term = 0;  // in which this copy was the primary; 0: it was not
  bool calls = false;     // calls of that time may still change the tables
  uint64_t hidden = 0;    // changes of the tables that the position leaves out
  bool removing = false;  // a primary loads tables, once its followers are removed
  bool removed = false;   // they are
  BoardCall board = BoardCall::kNone;
  LateChange change;  // of kCompareAndSet
  bool attaching = false;
  uint64_t waiting = 0;  // pushes that wait to be acknowledged, a bit each

  bool Contains(int push) const;
  uint64_t position() const { return log.size() - hidden; }
  template <typename H>
  friend H AbslHashValue(H h, const Process& p) {
    if (!p.alive) return H::combine(std::move(h), false);
    h = H::combine(std::move(h), true, p.protocol, p.fence, p.wait_set, p.log, p.whole, p.cut,
                   p.stored_number, p.log_term, p.base);
    h = H::combine(std::move(h), p.led_term, p.calls, p.hidden, p.removing, p.removed);
    return H::combine(std::move(h), p.board, p.change, p.attaching, p.waiting);
  }
};

// Counts what may still go wrong.
struct Budget {
  int crashes = 0;
  int restarts = 0;
  int unknown = 0;   // outcomes of compare-and-sets
  int mistaken = 0;  // copies that are wrongly taken for dead, silent or gone; calls of Attach that fail
  int handovers = 0;
  int loads = 0;   // of other tables, before which all followers are removed
  int resets = 0;  // of the store: it loses its memory
  template <typename H>
  friend H AbslHashValue(H h, const Budget& b) {
    return H::combine(std::move(h), b.crashes, b.restarts, b.unknown, b.mistaken, b.handovers, b.loads,
                      b.resets);
  }
};

// Something that may happen now.
struct Event {
  enum class Kind : uint8_t {
    kCompareAndSet,
    kUnknownOutcome,
    kLateChange,
    kWaited,
    kAttach,
    kAttachFails,
    kPrimaryLost,
    kUnlinked,
    kTold,
    kDeliver,
    kAnswer,
    kSilent,
    kHeard,
    kLinkEnded,
    kHigherTerm,
    kPush,
    kCrash,
    kRestart,
    kHandOver,       // a primary asks a follower to take over
    kTakeOver,       // the follower is asked
    kHandedOver,     // the follower has answered
    kHandOverFails,  // it has not
    kSteppedDown,    // the calls of an earlier primary have ended
    kRemove,         // a primary removes its followers
    kLoad,           // and loads other tables, or gives that up
    kReset,          // the store loses its memory
    kNotice,         // a primary notices that
  };
  Kind kind;
  uint8_t who = 0;   // process, link, call or change
  uint8_t push = 0;  // kPush; kHandOver: the follower's process
};
std::string ToString(const Event& event);

// A plain value: the explorer copies it.
class World {
 public:
  static constexpr int kProcesses = 3;
  // A load of tables counts as a push of this number or a larger one, which no record carries.
  static constexpr int kFirstLoad = 60;

  // Processes do not run yet.
  World(Budget budget, int pushes, Protocol::Fault fault = Protocol::Fault::kNone,
        PathFault path_fault = PathFault::kNone, int min_copies = 1)
      : budget_(budget), pushes_(pushes), fault_(fault), path_fault_(path_fault), min_copies_(min_copies) {}

  // Starts process `who` with a new life.
  void StartProcess(int who);
  // Appends everything that may happen now.
  void Enabled(std::vector<Event>* events) const;
  void Apply(const Event& event);
  // Returns the first violated rule; empty if all hold.
  const std::string& violation() const { return violation_; }

  const Process& process(int who) const { return *processes_[who]; }
  const ShardPlacement& store() const { return store_; }
  // Returns whether the store has lost the document, and nobody has published it again yet.
  bool misses_placement() const { return begun_ && store_.version == 0; }
  const std::vector<Shared<Link>>& links() const { return links_; }
  // Sets from which processes the store can be reached, a bit each. Initially all.
  void SetReach(uint32_t processes) { reach_ = processes; }
  bool Reaches(int who) const { return (reach_ >> who & 1) != 0; }
  // Returns whether a process has given the shard up.
  bool lost() const { return lost_; }
  uint64_t acknowledged() const { return acknowledged_; }
  // Sets what may go wrong from now on.
  void SetBudget(const Budget& budget) {
    budget_ = budget;
    mistakes_ = budget.mistaken > 0;
    no_mistakes_ = !mistakes_;
  }
  const std::vector<TakeOverCall>& take_overs() const { return take_overs_; }
  // Returns the running process whose present copy is `id`; -1 if that copy is gone.
  int Find(absl::string_view id) const;

  // Calls an event of the protocol of process `who` and carries its actions out. Settle must follow.
  template <typename Call>
  void With(int who, Call call) {
    Protocol::Actions actions;
    touched_ |= 1u << who;
    call(processes_[who].Change().protocol, &actions);
    CarryOut(who, std::move(actions));
  }
  // Acknowledges what has become durable, forgets messages that can do nothing any more, checks the rules.
  void Settle();

  template <typename H>
  friend H AbslHashValue(H h, const World& w) {
    return H::combine(std::move(h), w.processes_, w.store_, w.late_, w.links_, w.attaches_, w.take_overs_,
                      w.acknowledged_, w.sent_, w.budget_, w.begun_, w.before_, w.largest_term_);
  }

 private:
  void Check();
  void CarryOut(int who, Protocol::Actions actions);
  void Push(int who, int push);
  // The time of a primary is over: its links end, and nobody waits for its answers.
  void EndTerm(int who);
  void Attach(size_t index);
  void Deliver(size_t index);
  void Answer(size_t index);
  void Crash(int who);
  void Reset();
  // Returns whether every copy in sync of `asked`, of the primary `who`, denies that it knows a larger term.
  bool AllDeny(int who, const ShardPlacement& asked) const;
  bool PrimaryLives() const;
  // Acknowledges what has become durable, and tells the protocol who has caught up.
  void Advance(int who);
  void Prune();
  Shared<Link>* ActiveLink(int who, absl::string_view copy);
  void Violated(std::string what) {
    if (violation_.empty()) violation_ = std::move(what);
  }

  Budget budget_;
  bool mistakes_ = false;
  bool no_mistakes_ = false;  // nobody takes a living process for dead
  int pushes_;
  Protocol::Fault fault_;
  PathFault path_fault_;
  int min_copies_;
  std::array<Shared<Process>, kProcesses> processes_;
  std::array<int, kProcesses> lives_ = {};
  ShardPlacement store_;
  ShardPlacement before_;      // the document that the store has lost; of misses_placement()
  bool begun_ = false;         // there was a document: no process may begin the shard
  uint64_t largest_term_ = 0;  // of all documents
  std::vector<LateChange> late_;
  std::vector<Shared<Link>> links_;
  std::vector<AttachCall> attaches_;
  std::vector<TakeOverCall> take_overs_;
  uint64_t acknowledged_ = 0;  // pushes, a bit each
  uint64_t sent_ = 0;          // pushes that some primary was sent, a bit each
  int loads_ = 0;              // tables that were loaded
  uint32_t reach_ = ~0u;
  bool lost_ = false;
  uint32_t touched_ = 0;  // processes whose log may advance, a bit each
  std::string violation_;
};

}  // namespace tandem::ps::testing

#endif  // TANDEM_TESTS_PS_FAILOVER_WORLD_H_
