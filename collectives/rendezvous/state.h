// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_RENDEZVOUS_STATE_H_
#define TANDEM_COLLECTIVES_RENDEZVOUS_STATE_H_

// The state machine of a rendezvous: how its document (proto/tandem/v1/rendezvous.proto) changes. Pure
// functions, without a clock or a store: StoreRendezvous decides when to apply them and writes the result by
// compare-and-set.
//
//   GATHERING --BeginRound--> RUNNING
//   RUNNING --a death, a leave, a new node, RestartRound--> GATHERING
//   any state --CloseState--> CLOSED
//
// A restart is a round that begins because something had failed. It is counted when the failure is detected,
// once for all failures between two rounds; beyond max_restarts the job closes instead. A node that comes
// back quickly under another id hides nothing: its earlier id stays a member until it is found silent, and
// counts then.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collectives/rendezvous/rendezvous.h"
#include "tandem/v1/rendezvous.pb.h"

namespace tandem::collectives {

using RendezvousState = tandem::v1::RendezvousState;

// InvalidArgument names the option or field that is wrong.
absl::Status CheckOptions(const RendezvousOptions& options);
absl::Status CheckNode(const Node& node, const RendezvousOptions& options);

// Returns the document of a job that no node has joined.
RendezvousState NewState(const RendezvousOptions& options);

// Adds `node` to those that wait for the next round. In a running round, a member that joins again ends it. A
// new node ends it as well if there are fewer than max_nodes and no node has finished yet; otherwise it
// becomes a spare. *state is unchanged after an error: FailedPrecondition if the job is over or was begun
// with other options (naming both); AlreadyExists if another member has the same node_rank.
absl::Status AddNode(const Node& node, const RendezvousOptions& options, RendezvousState* state);
// Returns the id of the other member that holds `node`'s rank; "" if there is none.
std::string RankHolder(const RendezvousState& state, const Node& node);

// Removes a dead member; `reason` is such as "has been silent for ...". No effect if it is no longer a
// member, or had finished.
void ExpireNode(absl::string_view id, absl::string_view reason, RendezvousState* state);
// Removes a member that leaves.
void RemoveNode(absl::string_view id, RendezvousState* state);
// Ends the round `epoch` because something failed; no effect if it has ended already. `exit_code` becomes the
// job's if no restart is left; 0: none is known.
void RestartRound(int64_t epoch, absl::string_view reason, int exit_code, RendezvousState* state);
// Records that the node's processes have finished successfully; closes the job when those of all nodes have.
// No effect if the round has ended already.
void FinishNode(absl::string_view id, int64_t epoch, RendezvousState* state);
void CloseState(bool failed, absl::string_view reason, int exit_code, RendezvousState* state);

// Returns true if enough nodes wait for a round to begin, now or after last_call.
bool HasEnough(const RendezvousState& state);
// Returns true if the round need not wait for more nodes: max_nodes have come or, after the first round, all
// that are left of the last one.
bool HasAll(const RendezvousState& state);
// Begins the next round with the waiting nodes, at most max_nodes. Requires HasEnough. Nodes of the last
// round come first, in their order, then the others in the order of their arrival. A node_rank below the
// number of nodes becomes the node's index.
void BeginRound(RendezvousState* state);

// Returns the running round as member `id` sees it; `id` must be in it.
Round RoundOf(const RendezvousState& state, absl::string_view id);
const tandem::v1::RendezvousMember* FindMember(const RendezvousState& state, absl::string_view id);
// Returns why the round `epoch` is over, as far as the document records it.
RendezvousEvent EndEvent(const RendezvousState& state, int64_t epoch);

// Returns "node 7f3a (10.0.0.2)".
std::string NodeName(const tandem::v1::RendezvousNode& node);
// Returns "2 of 4 nodes have come: node a (10.0.0.1), ...; 2 are missing", with the missing node ranks if
// nodes gave theirs.
std::string DescribeArrivals(const RendezvousState& state);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_RENDEZVOUS_STATE_H_
