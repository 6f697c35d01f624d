// SPDX-License-Identifier: Apache-2.0
#include "cluster/rendezvous/state.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/utf8.h"

namespace tandem::cluster {
namespace {

using tandem::v1::RendezvousMember;
using tandem::v1::RendezvousNode;
using tandem::v1::RendezvousRoundEnd;

constexpr int kEndsRemembered = 32;
constexpr size_t kMaxReasonBytes = 4 << 10;
constexpr size_t kMaxTextBytes = 256;

// A reason may quote a program's last output, which can be any bytes. In the document they would keep every
// launcher from reading it.
std::string Bounded(absl::string_view reason) {
  const std::string text = ValidUtf8(reason);
  if (text.size() <= kMaxReasonBytes) return text;
  size_t end = kMaxReasonBytes;
  while (end > 0 && (text[end] & 0xC0) == 0x80) --end;  // not in the middle of a UTF-8 character
  return absl::StrCat(absl::string_view(text).substr(0, end), "...");
}

RendezvousMember* Find(absl::string_view id, RendezvousState* state) {
  for (RendezvousMember& member : *state->mutable_members()) {
    if (member.node().id() == id) return &member;
  }
  return nullptr;
}

void Erase(absl::string_view id, RendezvousState* state) {
  auto* members = state->mutable_members();
  members->erase(std::remove_if(members->begin(), members->end(),
                                [&](const RendezvousMember& member) { return member.node().id() == id; }),
                 members->end());
}

int InRound(const RendezvousState& state) {
  return std::count_if(state.members().begin(), state.members().end(),
                       [](const RendezvousMember& member) { return member.in_round(); });
}

int Joined(const RendezvousState& state) {
  return std::count_if(state.members().begin(), state.members().end(),
                       [](const RendezvousMember& member) { return member.joined(); });
}

// Counts the coming round as a restart because of `reason`.
void Count(absl::string_view reason, int exit_code, RendezvousState* state) {
  if (state->next_counts()) return;
  state->set_next_counts(true);
  state->set_restarts(state->restarts() + 1);
  if (!state->ends().empty()) state->mutable_ends(state->ends_size() - 1)->set_failed(true);
  if (state->restarts() <= state->max_restarts()) return;
  state->set_restarts(state->max_restarts());
  CloseState(/*failed=*/true,
             absl::StrCat(reason, "; no restart is left (max_restarts ", state->max_restarts(), ")"),
             exit_code, state);
}

// Returns whether the round goes on without this member if it dies.
bool CanBeAbsent(const RendezvousMember& member, const RendezvousState& state) {
  const bool serves_store = member.index() == 0 && member.node().store() != kStoreInEtcd;
  return state.phase() == RendezvousState::RUNNING && member.in_round() && !serves_store &&
         member.node().replaceable();
}

std::string CountsOf(const RendezvousNode& node) {
  return node.processes().empty()
             ? "no processes"
             : absl::StrJoin(node.processes(), ", ", [](std::string* out, const auto& some) {
                 absl::StrAppend(out, some.count(), " ", some.role());
               });
}

// Returns why `node` may not take the place of `absent`; "" if it may.
std::string Misfit(const RendezvousMember& absent, const RendezvousNode& node) {
  const RendezvousNode& old = absent.node();
  bool same = old.processes_size() == node.processes_size();
  for (int i = 0; same && i < node.processes_size(); ++i) {
    same = old.processes(i).role() == node.processes(i).role() &&
           old.processes(i).count() == node.processes(i).count();
  }
  if (!same) return absl::StrCat("it had ", CountsOf(old), ", and this one has ", CountsOf(node));
  if (!node.replaceable()) return "this one has processes that are not started again alone";
  for (int i = 0; i < node.processes_size(); ++i) {
    if (old.processes(i).command() == node.processes(i).command()) continue;
    return absl::StrCat("this one has another command line for the role '", node.processes(i).role(), "'");
  }
  const int wanted = old.node_rank() >= 0 ? old.node_rank() : absent.index();
  if (node.node_rank() < 0 || node.node_rank() == wanted) return "";
  return absl::StrCat("it had node rank ", wanted, ", and this one has ", node.node_rank());
}

// Returns the absent member whose place `node` may take, preferably one of the same host, or nullptr.
RendezvousMember* PlaceFor(const RendezvousNode& node, RendezvousState* state) {
  RendezvousMember* place = nullptr;
  for (RendezvousMember& member : *state->mutable_members()) {
    if (!member.absent() || !Misfit(member, node).empty()) continue;
    const bool here = member.node().host() == node.host();
    if (place == nullptr || (here && place->node().host() != node.host())) place = &member;
  }
  return place;
}

void TakePlace(const RendezvousNode& node, RendezvousMember* place) {
  *place->mutable_node() = node;
  place->set_joined(false);
  place->set_finished(false);
  place->set_absent(false);
  place->set_process_restarts(place->process_restarts() + 1);
}

// Returns the absent member whose place `node` seems to be meant for although it does not fit. Returns
// nullptr if there is none, so that `node` waits for another round.
const RendezvousMember* MisfittingPlace(const RendezvousNode& node, const RendezvousState& state) {
  const RendezvousMember* place = nullptr;
  for (const RendezvousMember& member : state.members()) {
    if (!member.absent()) continue;
    if (node.node_rank() >= 0 && member.node().node_rank() == node.node_rank()) return &member;
    // Others may be spares, for nodes with workers.
    const bool here = member.node().host() == node.host();
    if (here || (node.replaceable() && place == nullptr)) place = &member;
  }
  return InRound(state) >= state.max_nodes() ? place : nullptr;
}

// Closes the job as succeeded if all nodes of the round have finished.
void CloseIfFinished(RendezvousState* state) {
  bool some = false;
  for (const RendezvousMember& member : state->members()) {
    if (!member.in_round()) continue;
    const bool has_work = member.node().has_work();
    if (!member.finished() && (!member.absent() || has_work)) return;
    some = some || (member.finished() && (has_work || !member.node().replaceable()));
  }
  const bool all = std::all_of(state->members().begin(), state->members().end(),
                               [](const RendezvousMember& m) { return !m.in_round() || m.finished(); });
  if (some || all) CloseState(/*failed=*/false, "all nodes have finished", /*exit_code=*/0, state);
}

// The round goes on without this member, whose place is given to a spare that fits, if there is one.
void MakeAbsent(absl::string_view reason, RendezvousMember* member, RendezvousState* state) {
  if (member->absent()) return;
  member->set_absent(true);
  member->set_joined(false);
  member->set_absence(Bounded(reason));
  RendezvousMember* first = nullptr;
  for (RendezvousMember& spare : *state->mutable_members()) {
    if (!spare.joined() || spare.in_round() || !Misfit(*member, spare.node()).empty()) continue;
    if (first == nullptr || spare.order() < first->order()) first = &spare;
  }
  if (first != nullptr) {
    const RendezvousNode node = first->node();
    TakePlace(node, member);
    auto* members = state->mutable_members();
    members->erase(std::find_if(members->begin(), members->end(), [&](const RendezvousMember& m) {
      return m.node().id() == node.id() && !m.in_round();
    }));
  }
  CloseIfFinished(state);
}

void EndRound(bool failed, absl::string_view reason, RendezvousState* state, int exit_code = 0) {
  RendezvousRoundEnd* end = state->add_ends();
  end->set_epoch(state->epoch());
  end->set_failed(failed);
  end->set_reason(Bounded(reason));
  if (state->ends_size() > kEndsRemembered) state->mutable_ends()->erase(state->mutable_ends()->begin());
  state->set_phase(RendezvousState::GATHERING);
  state->set_next_counts(false);
  auto* members = state->mutable_members();
  members->erase(std::remove_if(members->begin(), members->end(),
                                [](const RendezvousMember& member) { return member.absent(); }),
                 members->end());
  for (RendezvousMember& member : *state->mutable_members()) {
    if (!member.in_round()) continue;
    member.set_joined(false);
    member.set_finished(false);
  }
  if (failed) Count(reason, exit_code, state);
}

RendezvousNode ToProto(const Node& node) {
  RendezvousNode proto;
  proto.set_id(node.id);
  proto.set_host(node.host);
  proto.set_store(node.store);
  proto.set_master_port(node.master_port);
  proto.set_node_rank(node.node_rank);
  for (const auto& [role, count] : node.processes) {
    tandem::v1::RendezvousProcesses* processes = proto.add_processes();
    processes->set_role(role);
    processes->set_count(count);
    const auto command = node.commands.find(role);
    if (command != node.commands.end()) processes->set_command(command->second);
  }
  proto.set_replaceable(node.replaceable);
  proto.set_has_work(node.has_work);
  return proto;
}

Node FromProto(const RendezvousNode& proto) {
  Node node;
  node.id = proto.id();
  node.host = proto.host();
  node.store = proto.store();
  node.master_port = proto.master_port();
  node.node_rank = proto.node_rank();
  for (const tandem::v1::RendezvousProcesses& some : proto.processes()) {
    node.processes[some.role()] = some.count();
    if (some.command() != 0) node.commands[some.role()] = some.command();
  }
  node.replaceable = proto.replaceable();
  node.has_work = proto.has_work();
  return node;
}

std::string Limits(int min_nodes, int max_nodes, int max_restarts) {
  return absl::StrCat(min_nodes, " to ", max_nodes, " nodes and ", max_restarts, " restarts");
}

}  // namespace

absl::Status CheckOptions(const RendezvousOptions& o) {
  if (o.min_nodes < 1 || o.max_nodes < o.min_nodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a rendezvous of ", o.min_nodes, " to ", o.max_nodes,
                     " nodes: the least must be at least 1, the most no less than that"));
  }
  if (o.max_restarts < 0) {
    return absl::InvalidArgumentError(absl::StrCat("max_restarts ", o.max_restarts, " must be at least 0"));
  }
  if (o.run_id.empty() || o.run_id.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError("a run's id must have 1 to 256 bytes");
  }
  if (o.lease < absl::Milliseconds(20) || o.join_timeout <= absl::ZeroDuration() ||
      o.last_call < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("lease ", absl::FormatDuration(o.lease), ", join_timeout ",
                                                   absl::FormatDuration(o.join_timeout), ", last_call ",
                                                   absl::FormatDuration(o.last_call),
                                                   ": a lease has at least 20ms, no time is negative"));
  }
  return absl::OkStatus();
}

absl::Status CheckNode(const Node& node, const RendezvousOptions& options) {
  for (const std::string* text : {&node.id, &node.host, &node.store}) {
    if (text->size() > kMaxTextBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a node's id, host and store have at most 256 bytes, not ", text->size()));
    }
    if (ValidUtf8(*text) == *text) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("a node's id, host and store are UTF-8, not '", absl::CHexEscape(*text), "'"));
  }
  if (node.id.empty()) return absl::InvalidArgumentError("a node must have an id");
  if (node.node_rank >= options.max_nodes || node.node_rank < -1) {
    return absl::InvalidArgumentError(absl::StrCat("node rank ", node.node_rank, " of at most ",
                                                   options.max_nodes, " nodes: ranks go from 0 to ",
                                                   options.max_nodes - 1));
  }
  for (const auto& [role, count] : node.processes) {
    if (!role.empty() && role.size() <= kMaxTextBytes && count >= 0 && ValidUtf8(role) == role) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("node ", node.id, " has ", count, " processes of role '", absl::CHexEscape(role), "'"));
  }
  return absl::OkStatus();
}

RendezvousState NewState(const RendezvousOptions& options) {
  RendezvousState state;
  state.set_min_nodes(options.min_nodes);
  state.set_max_nodes(options.max_nodes);
  state.set_max_restarts(options.max_restarts);
  return state;
}

std::string RankHolder(const RendezvousState& state, const Node& node) {
  if (node.node_rank < 0) return "";
  for (const RendezvousMember& member : state.members()) {
    if (member.absent() || member.node().id() == node.id) continue;
    if (member.node().node_rank() == node.node_rank) return member.node().id();
  }
  return "";
}

absl::Status AddNode(const Node& node, const RendezvousOptions& options, RendezvousState* state) {
  if (state->phase() == RendezvousState::CLOSED) {
    return absl::FailedPreconditionError(
        absl::StrCat("the job '", options.run_id, "' is over: ", state->reason()));
  }
  if (state->min_nodes() != options.min_nodes || state->max_nodes() != options.max_nodes ||
      state->max_restarts() != options.max_restarts) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the job '", options.run_id, "' was begun for ",
        Limits(state->min_nodes(), state->max_nodes(), state->max_restarts()), ", this node (", node.id,
        " on ", node.host, ") expects ", Limits(options.min_nodes, options.max_nodes, options.max_restarts)));
  }
  if (const std::string holder = RankHolder(*state, node); !holder.empty()) {
    return absl::AlreadyExistsError(absl::StrCat("node rank ", node.node_rank, " is taken by ",
                                                 NodeName(FindMember(*state, holder)->node()),
                                                 ", which lives: two launchers have the same --node-rank"));
  }
  RendezvousMember* member = Find(node.id, state);
  const RendezvousNode proto = ToProto(node);
  if (member != nullptr && CanBeAbsent(*member, *state) && Misfit(*member, proto).empty()) {
    TakePlace(proto, member);
    return absl::OkStatus();
  }
  if (member == nullptr && state->phase() == RendezvousState::RUNNING) {
    if (RendezvousMember* const place = PlaceFor(proto, state); place != nullptr) {
      TakePlace(proto, place);
      return absl::OkStatus();
    }
    if (const RendezvousMember* const place = MisfittingPlace(proto, *state); place != nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          NodeName(proto), " cannot take the place of ", NodeName(place->node()),
          " in the running round: ", Misfit(*place, proto), "; start its launcher with the same command"));
    }
  }
  if (member == nullptr) {
    member = state->add_members();
    member->set_order(state->next_order());
    state->set_next_order(state->next_order() + 1);
  }
  *member->mutable_node() = proto;
  const std::string name = NodeName(member->node());
  if (state->phase() == RendezvousState::RUNNING) {
    const bool any_finished = std::any_of(state->members().begin(), state->members().end(),
                                          [](const RendezvousMember& m) { return m.finished(); });
    if (member->in_round()) {
      EndRound(/*failed=*/false, absl::StrCat(name, " has left the round to join anew"), state);
    } else if (InRound(*state) < state->max_nodes() && !any_finished) {
      EndRound(/*failed=*/false, absl::StrCat(name, " joins"), state);
    }
  }
  // EndRound removes absent members, which moves the others.
  Find(node.id, state)->set_joined(true);
  return absl::OkStatus();
}

void ExpireNode(absl::string_view id, absl::string_view reason, RendezvousState* state) {
  RendezvousMember* const member = Find(id, state);
  if (member != nullptr && CanBeAbsent(*member, *state)) return MakeAbsent(reason, member, state);
  if (member == nullptr || member->finished() || state->phase() == RendezvousState::CLOSED) return;
  const bool in_round = member->in_round();
  const std::string text = absl::StrCat(NodeName(member->node()), " ", reason);
  Erase(id, state);
  if (!in_round) return;
  if (state->phase() == RendezvousState::RUNNING) {
    EndRound(/*failed=*/true, text, state);
  } else {
    Count(text, /*exit_code=*/0, state);
  }
}

void RemoveNode(absl::string_view id, RendezvousState* state) {
  RendezvousMember* const member = Find(id, state);
  if (member != nullptr && CanBeAbsent(*member, *state)) return MakeAbsent("has left", member, state);
  if (member == nullptr || member->finished() || state->phase() == RendezvousState::CLOSED) return;
  const bool ends = member->in_round() && state->phase() == RendezvousState::RUNNING;
  const std::string text = absl::StrCat(NodeName(member->node()), " has left");
  Erase(id, state);
  if (ends) EndRound(/*failed=*/false, text, state);
}

void RestartRound(int64_t epoch, absl::string_view reason, int exit_code, RendezvousState* state) {
  if (state->phase() != RendezvousState::RUNNING || state->epoch() != epoch) return;
  EndRound(/*failed=*/true, reason, state, exit_code);
}

void FinishNode(absl::string_view id, int64_t epoch, RendezvousState* state) {
  RendezvousMember* member = Find(id, state);
  if (member == nullptr || !member->in_round() || state->phase() != RendezvousState::RUNNING ||
      state->epoch() != epoch || member->absent()) {
    return;
  }
  member->set_finished(true);
  CloseIfFinished(state);
}

void RecordRestarts(absl::string_view id, int64_t epoch, int restarts, RendezvousState* state) {
  RendezvousMember* member = Find(id, state);
  if (member == nullptr || !member->in_round() || state->phase() != RendezvousState::RUNNING ||
      state->epoch() != epoch || member->absent()) {
    return;
  }
  member->set_process_restarts(std::max(member->process_restarts(), restarts));
}

bool IsWatched(const RendezvousMember& member, const RendezvousState& state) {
  return !member.absent() && (!member.finished() || CanBeAbsent(member, state));
}

void CloseState(bool failed, absl::string_view reason, int exit_code, RendezvousState* state, bool stopped) {
  if (state->phase() == RendezvousState::CLOSED) return;
  state->set_phase(RendezvousState::CLOSED);
  state->set_failed(failed);
  state->set_exit_code(failed ? exit_code : 0);
  state->set_stopped(stopped);
  state->set_reason(Bounded(reason));
}

bool HasEnough(const RendezvousState& state) {
  return state.phase() == RendezvousState::GATHERING && Joined(state) >= state.min_nodes();
}

bool HasAll(const RendezvousState& state) {
  if (!HasEnough(state)) return false;
  if (Joined(state) >= state.max_nodes()) return true;
  return state.epoch() > 0 &&
         std::all_of(state.members().begin(), state.members().end(),
                     [](const RendezvousMember& m) { return !m.in_round() || m.joined(); });
}

void BeginRound(RendezvousState* state) {
  TANDEM_CHECK(HasEnough(*state));
  std::vector<RendezvousMember*> ready;
  for (RendezvousMember& member : *state->mutable_members()) {
    if (member.joined()) ready.push_back(&member);
  }
  std::sort(ready.begin(), ready.end(), [](const RendezvousMember* a, const RendezvousMember* b) {
    return std::make_pair(!a->in_round(), a->order()) < std::make_pair(!b->in_round(), b->order());
  });
  if (ready.size() > static_cast<size_t>(state->max_nodes())) ready.resize(state->max_nodes());
  // Nodes of the last round come first, in their order; then the new ones.
  std::sort(ready.begin(), ready.end(), [](const RendezvousMember* a, const RendezvousMember* b) {
    if (a->in_round() != b->in_round()) return a->in_round();
    if (a->in_round()) return a->index() < b->index();
    return std::make_pair(a->node().replaceable(), a->order()) <
           std::make_pair(b->node().replaceable(), b->order());
  });
  std::vector<RendezvousMember*> ranked, others, places;
  for (RendezvousMember* member : ready)
    (member->node().node_rank() >= 0 ? ranked : others).push_back(member);
  std::sort(ranked.begin(), ranked.end(), [](const RendezvousMember* a, const RendezvousMember* b) {
    return a->node().node_rank() < b->node().node_rank();  // distinct: AddNode
  });
  const bool exact = ranked.empty() || ranked.back()->node().node_rank() < static_cast<int>(ready.size());
  for (RendezvousMember* member : ranked) {
    while (exact && static_cast<int>(places.size()) < member->node().node_rank()) {
      places.push_back(others.front());
      others.erase(others.begin());
    }
    places.push_back(member);
  }
  places.insert(places.end(), others.begin(), others.end());
  for (RendezvousMember& member : *state->mutable_members()) member.set_in_round(false);
  for (size_t i = 0; i < places.size(); ++i) {
    places[i]->set_in_round(true);
    places[i]->set_joined(false);
    places[i]->set_finished(false);
    places[i]->set_process_restarts(0);
    places[i]->clear_absence();
    places[i]->set_index(static_cast<int>(i));
  }
  state->set_phase(RendezvousState::RUNNING);
  state->set_epoch(state->epoch() + 1);
  state->set_next_counts(false);
}

Round RoundOf(const RendezvousState& state, absl::string_view id) {
  Round round;
  round.job = state.incarnation();
  round.epoch = state.epoch();
  round.restarts = state.restarts();
  round.nodes.resize(InRound(state));
  for (const RendezvousMember& member : state.members()) {
    if (!member.in_round()) continue;
    round.nodes[member.index()] = FromProto(member.node());
    if (member.absent()) round.absent.push_back(member.index());
    if (member.node().id() != id) continue;
    round.group_rank = member.index();
    round.process_restarts = member.process_restarts();
  }
  std::sort(round.absent.begin(), round.absent.end());
  return round;
}

std::vector<NodeChange> ChangesBetween(const RendezvousState& before, const RendezvousState& now) {
  std::vector<NodeChange> changes;
  for (const RendezvousMember& member : now.members()) {
    if (!member.in_round()) continue;
    const auto old =
        std::find_if(before.members().begin(), before.members().end(),
                     [&](const RendezvousMember& m) { return m.in_round() && m.index() == member.index(); });
    if (old == before.members().end()) continue;
    NodeChange change{.index = member.index(), .absent = member.absent()};
    const bool taken = old->node().id() != member.node().id();
    if (member.absent()) {
      if (old->absent() && !taken) continue;
      change.text = absl::StrCat(NodeName(member.node()), " ", member.absence());
    } else if (taken) {
      // The absence may have been too short to be seen by itself.
      change.text = absl::StrCat(NodeName(member.node()), " takes the place of ", NodeName(old->node()),
                                 old->absent() ? "" : absl::StrCat(", which ", member.absence()));
    } else if (old->absent()) {
      change.text = absl::StrCat(NodeName(member.node()), " is back");
    } else {
      continue;
    }
    changes.push_back(std::move(change));
  }
  std::sort(changes.begin(), changes.end(),
            [](const NodeChange& a, const NodeChange& b) { return a.index < b.index; });
  return changes;
}

const RendezvousMember* FindMember(const RendezvousState& state, absl::string_view id) {
  return Find(id, const_cast<RendezvousState*>(&state));
}

RendezvousEvent EndEvent(const RendezvousState& state, int64_t epoch) {
  RendezvousEvent event;
  if (state.phase() == RendezvousState::CLOSED) {
    event.kind = RendezvousEvent::Kind::kClosed;
    event.failed = state.failed();
    event.reason = state.reason();
    event.exit_code = state.failed() ? std::max(state.exit_code(), 1) : 0;
    event.stopped = state.stopped();
    return event;
  }
  event.reason = absl::StrCat("epoch ", epoch, " is over");
  for (const RendezvousRoundEnd& end : state.ends()) {
    if (end.epoch() != epoch) continue;
    event.failed = end.failed();
    event.reason = end.reason();
  }
  return event;
}

std::string NodeName(const RendezvousNode& node) {
  return absl::StrCat("node ", node.id(), " (", node.host(), ")");
}

std::string DescribeArrivals(const RendezvousState& state) {
  std::vector<std::string> names;
  std::set<int> missing_ranks;
  for (int rank = 0; rank < state.min_nodes(); ++rank) missing_ranks.insert(rank);
  bool ranked = false;
  for (const RendezvousMember& member : state.members()) {
    if (!member.joined()) continue;
    names.push_back(NodeName(member.node()));
    missing_ranks.erase(member.node().node_rank());
    if (member.node().node_rank() >= 0) ranked = true;
  }
  std::string text = absl::StrCat(names.size(), " of ", state.min_nodes(), " nodes have come");
  if (!names.empty()) absl::StrAppend(&text, ": ", absl::StrJoin(names, ", "));
  const int missing = state.min_nodes() - static_cast<int>(names.size());
  if (missing > 0) absl::StrAppend(&text, "; ", missing, missing == 1 ? " is missing" : " are missing");
  if (missing > 0 && ranked) absl::StrAppend(&text, " (node ranks ", absl::StrJoin(missing_ranks, ", "), ")");
  return text;
}

}  // namespace tandem::cluster
