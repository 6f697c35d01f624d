#ifndef TANDEM_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_H_
#define TANDEM_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_H_

// Where the launchers of a job's nodes meet: they agree on who takes part, in which order, and under which
// epoch, again and again while nodes come and go. torchrun's rendezvous, over any Store: the one that a
// node's launcher embeds, or etcd, with which no node's death ends the job.
//
//   every node:  round = Join(node)  ->  start processes with the round's ranks  ->  WaitForEvent
//                  kRestart: stop or re-form the processes, Join again        kClosed: stop, end

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "collectives/store/store.h"

namespace tandem::collectives {

// What a launcher tells the others of its node. A plain value.
struct Node {
  std::string id;       // of this life of the launcher; no two lives share one
  std::string host;     // an address at which the other nodes reach this one
  std::string store;    // "host:port" of a fresh job store that this launcher serves, for the round
  int master_port = 0;  // of `host`, kept free for a program that binds MASTER_PORT itself (PyTorch's rank 0)
  int node_rank = -1;   // wanted place; -1: any
  std::map<std::string, int> processes;  // by role: {"worker", 4}, {"ps", 1}
};

// What all nodes of a round agree on. A plain value.
struct Round {
  int64_t epoch = 0;        // 1, 2, ...: grows with every round of the job
  int64_t restarts = 0;     // rounds that began because something had failed
  int group_rank = 0;       // this node's index in `nodes`
  std::vector<Node> nodes;  // nodes[0] serves the round's store and is MASTER_ADDR

  // Ranks go by node, then by local rank: those of `role` on nodes before this one, and on all nodes.
  int FirstRank(absl::string_view role) const;
  int WorldSize(absl::string_view role) const;
};

struct RendezvousEvent {
  enum class Kind {
    kRestart,  // a node died, left or wants to join, or asked for it: the round is over, Join again
    kClosed,   // the job is over for all
  };
  Kind kind = Kind::kRestart;
  bool failed = false;  // of kClosed: the job did not reach its end; of kRestart: it counts as a restart
  std::string reason;   // "node b (10.0.0.2) has been silent for 5s (lease 5s): killed, or cut off?"
  int exit_code = 0;    // of kClosed: the root cause's; 1 of a failure that left none, 0 of a good end
};

struct RendezvousOptions {
  std::string run_id = "default";
  int min_nodes = 1;
  int max_nodes = 1;
  // With min_nodes there, the first round waits this long for more of them, a later one for those of the last
  // that live and have not come yet (torchrun's last_call_timeout). It begins at once when all of them, or
  // max_nodes, are there: a node that comes later starts another round.
  absl::Duration last_call = absl::Seconds(30);
  absl::Duration join_timeout = absl::Seconds(600);  // for min_nodes
  absl::Duration close_timeout = absl::Seconds(30);  // of the destructor's Leave, at most
  absl::Duration lease = absl::Seconds(5);           // a node that is silent for longer is dead
  int max_restarts = 0;                              // of the whole job
};

// Thread-safe. One per launcher.
class Rendezvous {
 public:
  // Leaves if still in a round: the others see that at once rather than after the lease.
  virtual ~Rendezvous() = default;

  // Blocks until a round with this node begins. A newcomer to a running round with room asks for a restart
  // and waits; to a full one it waits as a spare, as long as that lasts. A node_rank that a node of another
  // id holds is waited for until that one is found dead. Errors: DeadlineExceeded after join_timeout of
  // gathering, naming who is there and how many are missing; FailedPrecondition when the job is over (with
  // its reason) or was begun with other options (naming both), or when the store has lost its state;
  // AlreadyExists when the holder of this node_rank lives; InvalidArgument; Unavailable (the store cannot be
  // reached, for a lease).
  virtual absl::StatusOr<Round> Join(const Node& node) = 0;
  // Blocks until the round `epoch` is over or `deadline`: then DeadlineExceeded. Cancelled after Leave.
  // Unavailable when this node has not reached the store for a lease, and so counts as dead, or when the
  // others have gone on without it: its processes must stop. It may Join again.
  virtual absl::StatusOr<RendezvousEvent> WaitForEvent(int64_t epoch, absl::Time deadline) = 0;
  // Ends the round for all: something here failed, with `exit_code` (0: none is known), and is to be started
  // again. The first reason of a round stays; a round that is over already stays as it is, and nothing is
  // counted. FailedPrecondition naming the limit when max_restarts is used up: the job is closed as failed.
  virtual absl::Status RequestRestart(int64_t epoch, absl::string_view reason, int exit_code) = 0;
  // This node's processes have finished well. When all nodes of the round have, the job closes as succeeded.
  // From now on this node's silence is no death, and newcomers no longer end the round. Nothing happens when
  // it is over already: WaitForEvent tells.
  virtual absl::Status Finish(int64_t epoch) = 0;
  // Ends the job for all nodes, who hear of `exit_code` (0: none is known) if it has failed. The first end
  // stays.
  virtual absl::Status Close(bool failed, absl::string_view reason, int exit_code) = 0;
  // Leaves the round; the others go on without this node if they are enough. A Join that waits ends with
  // Cancelled.
  virtual absl::Status Leave() = 0;
};

// A rendezvous in `store`, under "rdzv/<run_id>/". `store` is borrowed; its calls should fail within about a
// lease when it cannot be reached. All nodes give the same min_nodes, max_nodes and max_restarts. Hosts need
// not agree on the time: heartbeats are counters, and each node measures by its own clock how long another's
// has stood still. Owns one thread, which does that. InvalidArgument for options that make no sense; nothing
// is sent before Join.
absl::StatusOr<std::unique_ptr<Rendezvous>> MakeRendezvous(Store* store, const RendezvousOptions& options,
                                                           Clock* clock = Clock::Real());

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_H_
