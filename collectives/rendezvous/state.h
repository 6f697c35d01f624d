#ifndef TANDEM_COLLECTIVES_RENDEZVOUS_STATE_H_
#define TANDEM_COLLECTIVES_RENDEZVOUS_STATE_H_

// The rules of a rendezvous: how its document (proto/tandem/v1/rendezvous.proto) changes. Pure functions, no
// clock, no store: StoreRendezvous decides when to apply them and writes the result by compare-and-set.
//
//   GATHERING --Begin--> RUNNING --a death, a leave, a newcomer, RequestRestart--> GATHERING ...   any
//   --Close--> CLOSED
//
// A restart is a round that begins because something had failed. It is counted when the failure is noticed,
// once for all failures between two rounds; past max_restarts the job closes instead. That a node came back
// quickly under another id hides nothing: its earlier life stays a member until it is found silent, and
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

// InvalidArgument names what is wrong.
absl::Status CheckOptions(const RendezvousOptions& options);
absl::Status CheckNode(const Node& node, const RendezvousOptions& options);

// The document of a job that nobody has joined.
RendezvousState NewState(const RendezvousOptions& options);

// `node` waits for the next round. In a running round: a member ends it, as does a newcomer if there is room
// and nobody has finished yet; otherwise the newcomer is a spare. FailedPrecondition when the job is over or
// was begun with other options (naming both); AlreadyExists when another member has the same node_rank.
// *state is unchanged after an error.
absl::Status AddNode(const Node& node, const RendezvousOptions& options, RendezvousState* state);
// The member that holds `node`'s rank under another id; "" if nobody does.
std::string RankHolder(const RendezvousState& state, const Node& node);

// The member is dead: "has been silent for ...". Nothing if it is none any more, or had finished.
void ExpireNode(absl::string_view id, absl::string_view reason, RendezvousState* state);
// The member goes of its own will.
void RemoveNode(absl::string_view id, RendezvousState* state);
// Ends the round `epoch` because something failed; nothing if it has ended already. `exit_code` is the job's
// if no restart is left; 0: none is known.
void RestartRound(int64_t epoch, absl::string_view reason, int exit_code, RendezvousState* state);
// The node's processes have ended well; when all nodes' have, the job closes. Nothing if the round has ended
// already.
void FinishNode(absl::string_view id, int64_t epoch, RendezvousState* state);
void CloseState(bool failed, absl::string_view reason, int exit_code, RendezvousState* state);

// Whether enough nodes wait for a round to begin with them, sooner or later.
bool HasEnough(const RendezvousState& state);
// Whether it need not wait for more: max_nodes are there or, after the first round, all that are left of the
// last one.
bool HasAll(const RendezvousState& state);
// Begins the next round with those who wait, at most max_nodes: HasEnough. Those of the last round go first,
// in their order; then who came first. A wanted node_rank that is below the number of nodes is the node's
// index.
void BeginRound(RendezvousState* state);

// The running round as member `id` sees it; `id` must be in it.
Round RoundOf(const RendezvousState& state, absl::string_view id);
const tandem::v1::RendezvousMember* FindMember(const RendezvousState& state, absl::string_view id);
// Why the round `epoch` is over, as far as is remembered.
RendezvousEvent EndOf(const RendezvousState& state, int64_t epoch);

// "node 7f3a (10.0.0.2)".
std::string NodeName(const tandem::v1::RendezvousNode& node);
// "2 of 4 nodes have come: node a (10.0.0.1), ...; 2 are missing", with the missing node ranks where they are
// given.
std::string WhoHasCome(const RendezvousState& state);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_RENDEZVOUS_STATE_H_
