// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_RENDEZVOUS_RENDEZVOUS_H_
#define TANDEM_CLUSTER_RENDEZVOUS_RENDEZVOUS_H_

// Rendezvous lets the launchers of a job's nodes agree on the participants, their order and the epoch, again
// and again while nodes come and go. It is torchrun's rendezvous, over any Store: the one that a node's
// launcher embeds, or etcd, with which no node's death ends the job.
//
//   every node:  round = Join(node)  ->  start processes with the round's ranks  ->  WaitForEvent
//                  kRestart: stop or re-form the processes, Join again        kClosed: stop, end

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cluster/store/store.h"

namespace tandem::cluster {

// A launcher's description of its node for the other launchers. A plain value.
struct Node {
  std::string id;    // of this run of the launcher; no two runs share one
  std::string host;  // an address at which the other nodes reach this one
  // "host:port" of a fresh job store that this launcher serves, for the round, or kStoreInEtcd.
  std::string store;
  int master_port = 0;  // of `host`, kept free for a program that binds MASTER_PORT itself (PyTorch's rank 0)
  int node_rank = -1;   // wanted index in the round; -1: any
  std::map<std::string, int> processes;  // number by role: {"worker", 4}, {"ps", 1}
  // A hash of each role's command line. Only a node with the same ones may take this node's place.
  std::map<std::string, uint64_t> commands;
  // The round goes on if this node dies or leaves, and another one may take its place. No effect for the
  // first node of a round if it serves the round's store.
  bool replaceable = false;
  // Some of the node's processes end by themselves. The job does not succeed before they have.
  bool has_work = false;
};

// Node::store if the round's store is in the etcd at which the nodes meet, so that no node serves it.
inline constexpr char kStoreInEtcd[] = "etcd";

// The agreement of all nodes of a round. A plain value.
struct Round {
  uint64_t job = 0;         // a random number of the job's own, in all of its rounds
  int64_t epoch = 0;        // 1, 2, ...: grows with every round of the job
  int64_t restarts = 0;     // rounds that began because something had failed
  int group_rank = 0;       // this node's index in `nodes`
  std::vector<Node> nodes;  // nodes[0] serves the round's store, unless etcd has it, and is MASTER_ADDR
  // The indices of the absent nodes, ascending: they have died or left, and their places in the running round
  // wait for successors.
  std::vector<int> absent;
  // If this node has taken the place of an absent one: the least TANDEM_PROCESS_RESTARTS that no earlier
  // process in its place has had. Otherwise 0.
  int process_restarts = 0;

  // Ranks are ordered by node, then by local rank. FirstRank returns the number of processes of `role` on the
  // nodes before this one, WorldSize the number on all nodes.
  int FirstRank(absl::string_view role) const;
  int WorldSize(absl::string_view role) const;
  // Returns the index of the first node that is not absent. It acts for all nodes of the round.
  int Leader() const;
};

// Returns the address of the store of a round whose first node has the store `store`. `rendezvous`: the URL
// of the etcd at which the nodes meet; each round has keys of its own beside those of the rendezvous.
std::string RoundStore(const std::string& store, const std::string& rendezvous, uint64_t job, int64_t epoch);

// A node of the running round became absent, or the place of an absent one was taken.
struct NodeChange {
  int index = 0;
  bool absent = false;
  // "node b (10.0.0.2) has been silent for 5s (lease 5s): killed, or cut off?", or "node c (10.0.0.3) takes
  // the place of node b (10.0.0.2)".
  std::string text;
};

struct RendezvousEvent {
  enum class Kind {
    kRestart,  // a node died, left, wants to join, or asked for a restart: the round is over, Join again
    kClosed,   // the job is over for all nodes
    kNodes,    // replaceable nodes became absent, or were replaced: the round goes on
  };
  Kind kind = Kind::kRestart;
  bool failed = false;   // of kClosed: the job did not reach its end; of kRestart: it counts as a restart
  std::string reason;    // "node b (10.0.0.2) has been silent for 5s (lease 5s): killed, or cut off?"
  int exit_code = 0;     // of kClosed: that of the root cause; 1 for a failure without one, 0 for success
  bool stopped = false;  // of kClosed: a launcher was asked to stop the job (Rendezvous::Stop)
  Round round;           // of kNodes: the round as it is now
  std::vector<NodeChange> changes;  // of kNodes: since Join or the last such event, by index
};

struct RendezvousOptions {
  std::string run_id = "default";
  int min_nodes = 1;
  int max_nodes = 1;
  // How long a round with min_nodes waits for more nodes (torchrun's last_call_timeout). The first round
  // waits for any nodes; a later one for nodes of the last round that live and have not come yet. A round
  // begins at once when all of these, or max_nodes, have come. A node that comes later starts another round.
  absl::Duration last_call = absl::Seconds(30);
  absl::Duration join_timeout = absl::Seconds(600);  // for min_nodes
  absl::Duration close_timeout = absl::Seconds(30);  // of the destructor's Leave, at most
  absl::Duration lease = absl::Seconds(5);           // a node that is silent for longer is dead
  int max_restarts = 0;                              // of the whole job
};

// Thread-safe. One per launcher.
class Rendezvous {
 public:
  // Leaves if still in a round, so that the other nodes learn of it at once rather than after the lease.
  virtual ~Rendezvous() = default;

  // Blocks until a round with this node begins.
  //
  // If a round is running:
  //
  //   - a replaceable node takes the place of an absent one with the same processes, and the running round is
  //     returned at once
  //   - a new node asks for a restart and waits, if the round has fewer than max_nodes nodes
  //   - a new node waits as a spare, if the round is full, for as long as that round lasts
  //   - a node whose node_rank belongs to a node of another id waits until that node is found dead
  //
  // Errors:
  //
  //   - DeadlineExceeded after join_timeout of gathering, naming the nodes that have come and the number that
  //     are missing
  //   - FailedPrecondition if the job is over (with its reason), was begun with other options (naming both),
  //     if the store has lost its state, or if this node is meant for the place of an absent one which has
  //     other processes (naming both)
  //   - AlreadyExists if the holder of this node_rank lives
  //   - InvalidArgument for a bad node
  //   - Unavailable if the store cannot be reached for a lease
  //   - ResourceExhausted if the store takes no change: its disk is full, or a limit is reached
  virtual absl::StatusOr<Round> Join(const Node& node) = 0;
  // Blocks until the round `epoch` is over or its nodes have changed, or returns DeadlineExceeded at
  // `deadline`. Cancelled after Leave. Unavailable if this node counts as dead because it has not reached the
  // store for a lease, or if the others have gone on without it: its processes must stop. It may Join again;
  // a replaceable node does so with a new id, so that nothing that concerns its earlier one affects it.
  virtual absl::StatusOr<RendezvousEvent> WaitForEvent(int64_t epoch, absl::Time deadline) = 0;
  // Ends the round for all nodes, to be started again, because something failed on this node with `exit_code`
  // (0: none is known). The first reason of a round stays. If the round is over already, or this node takes
  // no part in it any more, nothing changes and nothing is counted. FailedPrecondition naming the limit if
  // max_restarts is used up: the job is closed as failed.
  virtual absl::Status RequestRestart(int64_t epoch, absl::string_view reason, int exit_code) = 0;
  // Announces that this node's processes have finished successfully. When all nodes of the round have done
  // so, the job closes as succeeded. From now on this node's silence is no death, and new nodes no longer end
  // the round. No effect if the round is over already; WaitForEvent reports that.
  virtual absl::Status Finish(int64_t epoch) = 0;
  // Ends the job for all nodes; if it has failed, they receive `exit_code` (0: none is known). The first end
  // stays. No effect while a round runs in which this node takes no part: another one may have its place.
  virtual absl::Status Close(bool failed, absl::string_view reason, int exit_code) = 0;
  // Ends the job for all nodes because the launcher was asked to, by a signal: as Close with failed = true,
  // but the event of the other nodes says so. An exit code cannot: a process killed by the same signal has it
  // too.
  virtual absl::Status Stop(absl::string_view reason, int exit_code) = 0;
  // Leaves the round, which goes on if the node is replaceable; call it then when its processes have ended.
  // Otherwise the others continue in another round if they are enough. A waiting Join returns Cancelled.
  virtual absl::Status Leave() = 0;
  // Returns whether a process that was restarted alone `restarts` times may be started in the round `epoch`:
  //
  //   - This node has read within a lease that it takes part in that round, which runs. Otherwise another
  //     node may have its place, or get it at any moment: WaitForEvent is about to say what has happened, or
  //     the store does not answer at present.
  //   - RecordRestarts has recorded `restarts`, if it is not 0.
  //
  // Never blocks.
  virtual bool MayStart(int64_t epoch, int restarts) = 0;
  // Sets a function that learns of each renewal of this node's lease: `until` is the time of the clock at
  // which this node counts as dead unless it renews it again, or InfiniteFuture once its silence has no
  // effect any more. It runs on threads of this, also within Join before a round is returned, and must not
  // block. After this call no earlier function runs; nullptr sets none.
  virtual void OnLease(std::function<void(absl::Time until)> on_lease) = 0;
  // Records that processes of this node were restarted alone up to `restarts` times each, so that those of a
  // successor count on from there. No effect if the round is over already.
  virtual absl::Status RecordRestarts(int64_t epoch, int restarts) = 0;
};

// Makes a rendezvous in `store`, under "rdzv/<run_id>/". `store` is borrowed; its calls should fail within
// about a lease when it cannot be reached. All nodes must give the same min_nodes, max_nodes and
// max_restarts. The hosts' clocks need not agree: heartbeats are counters, and each node measures by its own
// clock how long another's counter has not changed. The object owns one thread for that. InvalidArgument for
// inconsistent options; nothing is sent before Join.
absl::StatusOr<std::unique_ptr<Rendezvous>> MakeRendezvous(Store* store, const RendezvousOptions& options,
                                                           Clock* clock = Clock::Real());

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_RENDEZVOUS_RENDEZVOUS_H_
