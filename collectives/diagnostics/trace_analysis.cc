// SPDX-License-Identifier: Apache-2.0
#include "collectives/diagnostics/trace_analysis.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "collectives/ranks.h"

namespace tandem::collectives {
namespace {

using Kind = TraceFinding::Kind;

std::string Capital(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

const char* Have(const std::vector<int>& ranks) { return ranks.size() == 1 ? " has" : " have"; }
const char* Wait(const std::vector<int>& ranks) { return ranks.size() == 1 ? " waits" : " wait"; }

// One rank in one group.
struct Side {
  int rank = 0;  // global
  const Trace* trace = nullptr;
  const TraceGroup* group = nullptr;
  std::map<uint64_t, const TraceEntry*> collectives;
  std::vector<const TraceEntry*> messages;

  // Returns the first collective that is not completed; nullptr if all are.
  const TraceEntry* Open() const {
    for (const auto& [sequence, entry] : collectives) {
      if (!entry->completed()) return entry;
    }
    return nullptr;
  }
  const TraceEntry* LastCompleted() const {
    for (auto it = collectives.rbegin(); it != collectives.rend(); ++it) {
      if (it->second->completed()) return it->second;
    }
    return nullptr;
  }
  int64_t issued() const { return group == nullptr ? -1 : group->last_issued; }
};

struct GroupView {
  std::string name, backend;
  std::vector<Side> sides;  // by rank of the group
};

class Analyzer {
 public:
  explicit Analyzer(const TraceDirectory& directory) {
    for (const Trace& trace : directory.traces) traces_[trace.rank] = &trace;
    CollectGroups();
  }

  TraceAnalysis Run() {
    for (const GroupView& group : groups_) {
      if (!FindDisagreement(group)) FindBehind(group);
      FindMessages(group);
      AddRows(group);
    }
    FindCircle();
    FindDead();
    std::stable_sort(result_.findings.begin(), result_.findings.end(),
                     [](const TraceFinding& a, const TraceFinding& b) { return a.kind < b.kind; });
    return std::move(result_);
  }

 private:
  void CollectGroups() {
    // A group is the same on two ranks if it has the same name and members.
    std::map<std::pair<std::string, std::vector<int>>, GroupView> groups;
    for (const auto& [rank, trace] : traces_) {
      for (const TraceGroup& group : trace->groups) {
        GroupView& view = groups[{group.name, group.global_ranks}];
        view.name = group.name;
        if (view.backend.empty()) view.backend = group.backend;
        if (view.sides.empty()) {
          for (int member : group.global_ranks) {
            const auto found = traces_.find(member);
            view.sides.push_back({member, found == traces_.end() ? nullptr : found->second});
          }
        }
        for (Side& side : view.sides) {
          // A group may be made again under the same name: the last one counts.
          if (side.rank == rank) side.group = &group;
        }
      }
    }
    for (auto& [key, view] : groups) {
      for (Side& side : view.sides) {
        if (side.group == nullptr) continue;
        for (const TraceEntry& entry : side.trace->entries) {
          if (entry.group != side.group->number) continue;
          if (entry.point_to_point) {
            side.messages.push_back(&entry);
          } else {
            side.collectives[entry.sequence] = &entry;
          }
        }
      }
      groups_.push_back(std::move(view));
    }
  }

  bool FindDisagreement(const GroupView& group) {
    std::set<uint64_t> sequences;
    for (const Side& side : group.sides) {
      for (const auto& [sequence, entry] : side.collectives) sequences.insert(sequence);
    }
    for (const uint64_t sequence : sequences) {
      // Groups the ranks by what they call, in the order of the first rank that calls it.
      std::vector<std::pair<const TraceEntry*, std::vector<int>>> calls;
      for (const Side& side : group.sides) {
        const auto found = side.collectives.find(sequence);
        if (found == side.collectives.end()) continue;
        const TraceEntry* entry = found->second;
        auto same = std::find_if(calls.begin(), calls.end(), [&](const auto& call) {
          return call.first->signature() == entry->signature();
        });
        if (same == calls.end()) same = calls.insert(calls.end(), {entry, {}});
        same->second.push_back(side.rank);
      }
      if (calls.size() < 2) continue;
      // The operation that most ranks call comes first; its ranks are not named as the cause.
      std::stable_sort(calls.begin(), calls.end(),
                       [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
      TraceFinding finding{Kind::kDisagree,
                           group.name,
                           {},
                           calls[0].second,
                           static_cast<int64_t>(sequence),
                           calls[0].first->description};
      std::vector<std::string> parts;
      for (size_t i = 0; i < calls.size(); ++i) {
        parts.push_back(absl::StrCat(NameRanks(calls[i].second),
                                     calls[i].second.size() == 1 ? " calls " : " call ",
                                     calls[i].first->description));
        if (i > 0) finding.ranks.insert(finding.ranks.end(), calls[i].second.begin(), calls[i].second.end());
      }
      finding.text = absl::StrCat("The ranks of group '", group.name, "' disagree about operation #",
                                  sequence, ": ", absl::StrJoin(parts, "; "),
                                  ". All ranks must call the same operations in the same order with the same "
                                  "dtypes and sizes.");
      result_.findings.push_back(std::move(finding));
      return true;
    }
    return false;
  }

  void FindBehind(const GroupView& group) {
    const TraceEntry* first = nullptr;
    for (const Side& side : group.sides) {
      const TraceEntry* open = side.Open();
      if (open != nullptr && (first == nullptr || open->sequence < first->sequence)) first = open;
    }
    if (first == nullptr) return;
    const int64_t sequence = static_cast<int64_t>(first->sequence);
    std::vector<int> waiting, queued, behind, dead, finished, failed;
    double longest = 0;
    for (const Side& side : group.sides) {
      const auto found = side.collectives.find(first->sequence);
      const TraceEntry* entry = found == side.collectives.end() ? nullptr : found->second;
      if (side.trace == nullptr) {
        dead.push_back(side.rank);
      } else if (entry != nullptr && !entry->completed()) {
        (entry->state == "queued" ? queued : waiting).push_back(side.rank);
        if (entry->state == "failed") failed.push_back(side.rank);
        longest = std::max(longest, entry->duration_us);
      } else if (side.issued() < sequence) {
        behind.push_back(side.rank);
      } else {
        finished.push_back(side.rank);
      }
    }
    std::vector<int> inside = waiting;
    inside.insert(inside.end(), queued.begin(), queued.end());
    std::sort(inside.begin(), inside.end());
    const std::string where = absl::StrCat(first->description, " of group '", group.name, "'");
    TraceFinding finding{Kind::kBehind, group.name, behind, inside, sequence, first->description};
    const bool all_failed = failed.size() == inside.size();
    const std::string wait =
        absl::StrCat(NameRanks(inside), all_failed ? " waited" : Wait(inside), " in ", where,
                     all_failed ? absl::StrCat(" for ", DurationText(longest), " and failed")
                                : absl::StrCat(" (up to ", DurationText(longest), ")"));
    if (!behind.empty()) {
      finding.text =
          absl::StrCat(Capital(NameRanks(behind)), behind.size() == 1 ? " is" : " are", " behind: ", wait,
                       ", which ", NameRanks(behind), Have(behind), " not called.");
      for (const int rank : behind) absl::StrAppend(&finding.text, " ", Doing(group, rank));
      NoteWaits(finding);
      result_.findings.push_back(finding);
    }
    if (!dead.empty()) {
      finding.kind = Kind::kDead;
      finding.ranks = dead;
      finding.text = absl::StrCat(Capital(NameRanks(dead)), Have(dead), " left no dump (dead?): ", wait, ".");
      explained_dead_.insert(dead.begin(), dead.end());
      result_.findings.push_back(finding);
    }
    if (!behind.empty() || !dead.empty()) return;
    if (!finished.empty()) {
      finding.kind = Kind::kSlow;
      finding.ranks = inside;
      finding.waiting = finished;
      finding.text = absl::StrCat(Capital(NameRanks(inside)), inside.size() == 1 ? " is" : " are",
                                  " behind: ", NameRanks(finished), Have(finished), " finished ", where, ", ",
                                  NameRanks(inside), Have(inside), " not (", all_failed ? "failed" : "for",
                                  all_failed ? " after " : " ", DurationText(longest), ").");
    } else if (!queued.empty()) {
      finding.ranks = queued;
      finding.waiting = waiting;
      finding.text =
          absl::StrCat(Capital(NameRanks(queued)), Have(queued), " queued ", where, " and not begun it",
                       waiting.empty() ? "" : absl::StrCat("; ", NameRanks(waiting), Wait(waiting), " in it"),
                       ". The thread of the group is held up there, perhaps by a callback that blocks.");
    } else {
      finding.kind = Kind::kStuck;
      finding.ranks = inside;
      finding.text = absl::StrCat("All ranks have called ", where, " and none has finished it (up to ",
                                  DurationText(longest), all_failed ? ", then it failed" : "",
                                  "): no rank is behind; look at the connection between them.");
    }
    result_.findings.push_back(std::move(finding));
  }

  // Describes what a rank that is behind does instead.
  std::string Doing(const GroupView& group, int rank) const {
    std::string text;
    for (const Side& side : group.sides) {
      if (side.rank != rank) continue;
      const TraceEntry* last = side.LastCompleted();
      if (side.group == nullptr) {
        text = absl::StrCat("Rank ", rank, " does not know this group: it has not made it, or left it.");
      } else if (side.group->closed) {
        text = absl::StrCat("Rank ", rank, " has destroyed the group.");
      } else if (last != nullptr) {
        const double ago = static_cast<double>(side.trace->dumped_unix_us - last->ended_unix_us);
        text = absl::StrCat("The last that rank ", rank, " completed there is ", last->description, ", ",
                            DurationText(std::max(0.0, ago)), " before its dump.");
      } else if (side.group->last_completed < 0) {
        text = absl::StrCat("Rank ", rank, " has not completed anything there.");
      }
    }
    const TraceEntry* elsewhere = nullptr;
    std::string name;
    for (const GroupView& other : groups_) {
      for (const Side& side : other.sides) {
        if (side.rank != rank || side.group == nullptr) continue;
        std::vector<const TraceEntry*> open = side.messages;
        if (&other != &group && side.Open() != nullptr) open.insert(open.begin(), side.Open());
        for (const TraceEntry* entry : open) {
          if (entry->completed() || entry->state == "failed" || elsewhere != nullptr) continue;
          elsewhere = entry;
          name = other.name;
        }
      }
    }
    absl::StrAppend(&text, text.empty() ? "" : " ");
    if (elsewhere != nullptr) {
      absl::StrAppend(&text, "Now it is in ", elsewhere->description, " of group '", name, "', for ",
                      DurationText(elsewhere->duration_us), ".");
    } else {
      absl::StrAppend(&text,
                      "It is in no other operation: it computes, reads data, or hangs outside of the "
                      "process groups.");
    }
    return text;
  }

  void FindMessages(const GroupView& group) {
    for (const Side& side : group.sides) {
      for (const TraceEntry* entry : side.messages) {
        if (entry->completed()) continue;
        const int64_t peer = entry->root;
        const bool receives = entry->op == "recv";
        const std::string other = receives ? "send" : "recv";
        TraceFinding finding{
            Kind::kMessage,    group.name, {}, {side.rank}, static_cast<int64_t>(entry->sequence),
            entry->description};
        std::string there;
        if (peer >= 0 && peer < static_cast<int64_t>(group.sides.size())) {
          const Side& far = group.sides[peer];
          finding.ranks = {far.rank};
          const std::string name = absl::StrCat("rank ", far.rank);
          const int mine = Matching(side, *entry, entry->op, peer);
          const int theirs = Matching(far, *entry, other, static_cast<int64_t>(&side - group.sides.data()));
          there = far.trace == nullptr ? absl::StrCat(name, " has left no dump (dead?)")
                  : theirs >= mine     ? absl::StrCat(name, " has called the matching ", other)
                                       : absl::StrCat(name, " has not called the matching ", other);
        } else {
          there = "any rank may send it";
        }
        finding.text =
            absl::StrCat("Rank ", side.rank, entry->state == "failed" ? " waited " : " has waited ",
                         DurationText(entry->duration_us), " in ", entry->description, " of group '",
                         group.name, "'", entry->state == "failed" ? " and failed" : "", "; ", there, ".");
        result_.findings.push_back(std::move(finding));
      }
    }
  }

  // Counts the recorded messages of this direction, tag and peer that this side has begun.
  static int Matching(const Side& side, const TraceEntry& like, const std::string& op, int64_t peer) {
    return static_cast<int>(
        std::count_if(side.messages.begin(), side.messages.end(), [&](const TraceEntry* entry) {
          return entry->op == op && entry->tag == like.tag && (entry->root == peer || entry->root < 0);
        }));
  }

  void NoteWaits(const TraceFinding& finding) {
    for (const int from : finding.waiting) {
      for (const int to : finding.ranks) waits_[from].push_back({to, finding.operation, finding.group});
    }
  }

  void FindCircle() {
    std::vector<int> path;
    std::set<int> done;
    std::vector<int> circle;
    const std::function<void(int)> visit = [&](int rank) {
      const auto on_path = std::find(path.begin(), path.end(), rank);
      if (on_path != path.end()) {
        if (circle.empty()) circle.assign(on_path, path.end());
        return;
      }
      if (!done.insert(rank).second) return;
      path.push_back(rank);
      for (const auto& wait : waits_[rank]) visit(wait.rank);
      path.pop_back();
    };
    std::vector<int> ranks;
    for (const auto& [rank, waits] : waits_) ranks.push_back(rank);
    for (const int rank : ranks) visit(rank);
    if (circle.empty()) return;
    TraceFinding finding{Kind::kCircle, "", circle, circle};
    std::vector<std::string> parts;
    for (size_t i = 0; i < circle.size(); ++i) {
      const int next = circle[(i + 1) % circle.size()];
      for (const auto& wait : waits_[circle[i]]) {
        if (wait.rank != next) continue;
        parts.push_back(absl::StrCat("rank ", circle[i], " is in ", wait.operation, " of group '", wait.group,
                                     "' and waits for rank ", next));
        break;
      }
    }
    finding.text = absl::StrCat("Ranks wait for each other in a circle: ", absl::StrJoin(parts, "; "),
                                ". They use the groups in different orders.");
    result_.findings.push_back(std::move(finding));
  }

  void FindDead() {
    std::set<int> dead;
    for (const GroupView& group : groups_) {
      for (const Side& side : group.sides) {
        if (side.trace == nullptr && explained_dead_.count(side.rank) == 0) dead.insert(side.rank);
      }
    }
    if (dead.empty()) return;
    TraceFinding finding;
    finding.kind = Kind::kDead;
    finding.ranks.assign(dead.begin(), dead.end());
    finding.text = absl::StrCat(Capital(NameRanks(finding.ranks)), Have(finding.ranks),
                                " left no dump: dead, or not asked for one.");
    result_.findings.push_back(std::move(finding));
  }

  void AddRows(const GroupView& group) {
    for (const Side& side : group.sides) {
      TraceAnalysis::Row row;
      row.rank = side.rank;
      row.group = group.name;
      row.backend = group.backend;
      row.has_dump = side.trace != nullptr;
      if (side.group != nullptr) row.last_completed = side.group->last_completed;
      if (const TraceEntry* open = side.Open(); open != nullptr) {
        row.now = absl::StrCat(open->state, " ", open->description);
        row.now_us = open->duration_us;
        row.error = open->error;
      }
      result_.rows.push_back(std::move(row));
    }
  }

  struct WaitsFor {
    int rank;
    std::string operation, group;
  };
  std::map<int, const Trace*> traces_;
  std::vector<GroupView> groups_;
  std::map<int, std::vector<WaitsFor>> waits_;
  std::set<int> explained_dead_;
  TraceAnalysis result_;
};

}  // namespace

std::string DurationText(double microseconds) {
  return absl::FormatDuration(absl::Trunc(absl::Microseconds(microseconds), absl::Milliseconds(1)));
}

TraceAnalysis Analyze(const TraceDirectory& directory) { return Analyzer(directory).Run(); }

}  // namespace tandem::collectives
