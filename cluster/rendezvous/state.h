// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_RENDEZVOUS_STATE_H_
#define TANDEM_CLUSTER_RENDEZVOUS_STATE_H_

// The state machine of a rendezvous: how its document (proto/tandem/v1/rendezvous.proto) changes. Pure
// functions, without a clock or a store: StoreRendezvous decides when to apply them and writes the result by
// compare-and-set.
//
//   GATHERING --BeginRound--> RUNNING
//   RUNNING --a death, a leave, a node that joins, RestartRound--> GATHERING
//   RUNNING --death, leave or return of a replaceable node--> RUNNING
//   any state --CloseState, the last FinishNode, one restart too many--> CLOSED
//
// A member is a node in the document. It waits for the next round, takes part in the running round (while
// gathering: took part in the last one), or both, or neither. The epoch is the number of the round.
//
// A restart is a round that begins because something had failed: a node died, or RestartRound was called. A
// node that leaves or joins is no failure. A restart is counted when the failure is detected, once for all
// failures between two rounds; beyond max_restarts the job closes as failed instead. If a node dies and comes
// back quickly under another id, the death still counts: the earlier id stays a member until it is found
// silent.
//
// A node may be replaceable (Node::replaceable). If it dies or leaves while a round runs, and it is not the
// first node, which serves the round's store, or the store is in etcd, it becomes absent: the round goes on,
// no restart is counted, and its place waits for a successor. A successor is a replaceable node with the same
// processes and another id. It gets the same index. The id is the fence: once it has lost its place, nothing
// that is done in its name has an effect.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/rendezvous/rendezvous.h"
#include "tandem/v1/rendezvous.pb.h"

namespace tandem::cluster {

using RendezvousState = tandem::v1::RendezvousState;

// These check the fields' ranges. InvalidArgument names the option or field that is wrong. CheckNode and the
// functions below require options that CheckOptions accepts.
absl::Status CheckOptions(const RendezvousOptions& options);
absl::Status CheckNode(const Node& node, const RendezvousOptions& options);

// Returns the document of a job that no node has joined.
RendezvousState NewState(const RendezvousOptions& options);

// Adds `node`, which CheckNode has accepted, to the nodes that wait for the next round. A member with the
// same id is updated. While a round runs:
//
//   - a replaceable node that fits the place of an absent one takes it;
//   - a replaceable node that takes part and joins again with the same processes keeps its place, unless it
//     is the first one and serves the round's store;
//   - another node that takes part in it and joins again ends it;
//   - another node ends it if fewer than max_nodes take part and none of them has finished;
//   - otherwise the node becomes a spare, which waits until the round ends for another reason.
//
// *state is unchanged after an error: FailedPrecondition if the job is over or was begun with other options
// (naming both), or if `node` seems to be meant for the place of an absent node which it may not take (naming
// both and the difference); AlreadyExists if another member that is not absent has the same node_rank. A node
// is meant for such a place if it has the same node_rank or, in a full round, is replaceable or of that host.
absl::Status AddNode(const Node& node, const RendezvousOptions& options, RendezvousState* state);
// Returns the id of another member, which is not absent, with the same node_rank as `node`; "" if there is
// none or `node` has no node_rank.
std::string RankHolder(const RendezvousState& state, const Node& node);

// Removes a dead member; `reason` is such as "has been silent for ...". If it takes part in the running
// round, the round ends. A restart is counted if it takes part in the running round or, while gathering, took
// part in the last one. No effect if it is not a member, if it has finished, or if the job is closed.
// A replaceable member of the running round becomes absent instead, even if it has finished; a node that
// waits as a spare and fits takes its place at once.
void ExpireNode(absl::string_view id, absl::string_view reason, RendezvousState* state);
// Removes a member that leaves. If it takes part in the running round, the round ends, which counts no
// restart. No effect if it is not a member, if it has finished, or if the job is closed. A replaceable member
// of the running round becomes absent instead, as in ExpireNode.
void RemoveNode(absl::string_view id, RendezvousState* state);
// Ends the round `epoch` because something failed, and counts a restart; no effect if the round has ended
// already. `exit_code` becomes the job's if no restart is left; 0: none is known.
void RestartRound(int64_t epoch, absl::string_view reason, int exit_code, RendezvousState* state);
// Records that the node's processes have finished successfully; closes the job as succeeded when those of all
// nodes of the round have. Absent nodes without work are not waited for if some node has finished that has
// work or is not replaceable. No effect if the round has ended already, or if the node does not take part in
// it.
void FinishNode(absl::string_view id, int64_t epoch, RendezvousState* state);
// Raises the member's process_restarts to `restarts`. No effect if the round `epoch` has ended or if the node
// does not take part in it.
void RecordRestarts(absl::string_view id, int64_t epoch, int restarts, RendezvousState* state);
// Returns true if the member's silence matters: it has neither finished nor is absent, or it has finished and
// would become absent.
bool IsWatched(const tandem::v1::RendezvousMember& member, const RendezvousState& state);
// Closes the job, as failed or succeeded. `exit_code` is stored only if it failed; 0: none is known.
// `stopped`: a launcher was asked to stop the job. No effect if the job is closed already.
void CloseState(bool failed, absl::string_view reason, int exit_code, RendezvousState* state,
                bool stopped = false);

// Returns true if the job gathers nodes and at least min_nodes wait. A round may then begin: at once if
// HasAll, else after last_call.
bool HasEnough(const RendezvousState& state);
// Returns true if HasEnough and the round need not wait for more nodes: max_nodes wait or, if there was a
// round before, all of its nodes that are still members wait.
bool HasAll(const RendezvousState& state);
// Begins the next round, with the next epoch. Requires HasEnough; crashes otherwise. At most max_nodes of the
// waiting nodes take part: first those of the last round, then the others in the order of their arrival.
// Nodes without a node_rank keep this order, those of the last round by their index in it; among the others,
// those that are not replaceable come first, because the first node of a round cannot be
// replaced if it serves the store. Indices of
// nodes with a node_rank:
//
//   - if every node_rank is below the number of nodes, it is its node's index; the others fill the gaps
//   - else the nodes with a node_rank come first, in the order of their node_ranks
void BeginRound(RendezvousState* state);

// Returns how the nodes of `now` differ from those of `before`, a round of the same epoch.
std::vector<NodeChange> ChangesBetween(const RendezvousState& before, const RendezvousState& now);
// Returns the running round as member `id` sees it. Requires a running round in which `id` takes part; while
// gathering, the nodes of the last round may be gone.
Round RoundOf(const RendezvousState& state, absl::string_view id);
// Returns the member with this id; nullptr if there is none. Valid until `state` changes.
const tandem::v1::RendezvousMember* FindMember(const RendezvousState& state, absl::string_view id);
// Returns why the round `epoch`, which must be over, is over: kClosed if the job is closed, else kRestart.
// The document remembers the reasons of the last 32 rounds.
RendezvousEvent EndEvent(const RendezvousState& state, int64_t epoch);

// Returns "node 7f3a (10.0.0.2)".
std::string NodeName(const tandem::v1::RendezvousNode& node);
// Returns "2 of 4 nodes have come: node a (10.0.0.1), ...; 2 are missing", where 4 is min_nodes, with the
// missing node ranks if nodes gave theirs.
std::string DescribeArrivals(const RendezvousState& state);

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_RENDEZVOUS_STATE_H_
