// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_ENVIRONMENT_H_
#define TANDEM_CLUSTER_ENVIRONMENT_H_

// The variables by which a launcher (`tandem run`, or torchrun) describes the job to each process, and the
// connection to the job's store.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "cluster/store/remote_store.h"
#include "cluster/store/store.h"
#include "cluster/store/store_server.h"
#include "rpc/channel.h"
#include "rpc/security/job_key.h"

namespace tandem::cluster {

inline constexpr int kMostFollowers = 7;  // of one shard of the parameter servers

// The lease of every process of a job unless it is chosen (`--lease`, TANDEM_LEASE), and what may be chosen.
inline constexpr absl::Duration kDefaultLease = absl::Seconds(10);
inline constexpr double kShortestLeaseSeconds = 0.5, kLongestLeaseSeconds = 3600;
inline constexpr char kLeaseVariable[] = "TANDEM_LEASE";

// The job as a launcher describes it to one process. A plain value. One role of a job is its main role,
// "worker" unless the launcher named it otherwise: its processes have a RANK and take part in the job's
// collectives. The processes of other roles ("ps", "actor", ...) have a rank within their role only.
struct Environment {
  std::string role = "worker";  // TANDEM_ROLE; "ps": parameter servers
  bool worker = true;           // true if this process belongs to the main role
  int rank = 0;                 // RANK, of workers; 0 elsewhere
  int world_size = 1;           // WORLD_SIZE: the number of workers
  int local_rank = 0;           // LOCAL_RANK: among the processes of the role on this node
  int local_world_size = 1;     // LOCAL_WORLD_SIZE
  // ROLE_RANK (of workers: RANK): among the processes of the role in the job. Of parameter servers it is
  // ps_index + num_ps * ps_copy.
  int role_rank = 0;
  int role_world_size = 1;  // ROLE_WORLD_SIZE
  int group_rank = 0;       // GROUP_RANK: of this node
  int num_ps = 0;           // TANDEM_NUM_PS
  int ps_index = 0;         // TANDEM_PS_INDEX, of parameter servers: the shard that they serve
  int ps_copy = 0;          // TANDEM_PS_COPY: which copy of the shard, from 0 to ps_followers
  int ps_followers = 0;     // TANDEM_PS_FOLLOWERS: followers of each shard
  std::string master_addr;  // MASTER_ADDR; may be absent if `store` is set
  int master_port = 0;      // MASTER_PORT, likewise
  // TANDEM_STORE: "host:port" of the job's store, served by a launcher or `tandem store`, or "etcd://..." of
  // one in etcd (store/etcd/etcd_channel.h). If empty, rank 0 serves the store at
  // master_addr:master_port.
  std::string store;
  int restart_count = 0;  // TORCHELASTIC_RESTART_COUNT: how often the job has been started again
  int64_t epoch = 0;      // TANDEM_EPOCH: the rendezvous round in which this process was started, from 1
  std::string run_id;     // TANDEM_RUN_ID, else TORCHELASTIC_RUN_ID
  // The key that this process shares with the others of the job. OpenStore finds it (rpc::ProcessKey) unless
  // it is set.
  absl::optional<rpc::JobKey> key;
  // TANDEM_LEASE, in seconds: silence longer than this counts as death, of this process as well as of the
  // job's store.
  absl::Duration lease = kDefaultLease;
  // The number of this process among those that have had the name member() in the job, from 1. Only the
  // environment of JobStore::env() has it; in others it is 0.
  int64_t life = 0;

  // Looks a variable up; returns nullopt if it is not set.
  using Lookup = std::function<absl::optional<std::string>(absl::string_view name)>;

  // Reads the environment through `lookup`. InvalidArgument names the variable, its value and what was
  // expected. If none of RANK, WORLD_SIZE and TANDEM_ROLE is set, the rank's variables are those of Open
  // MPI's mpirun (OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE).
  static absl::StatusOr<Environment> FromLookup(const Lookup& lookup);
  // Reads the process's own environment.
  static absl::StatusOr<Environment> FromEnv();
  // Returns true if a launcher has set its variables. A program without them may choose to run alone.
  static bool IsLaunched(const Lookup& lookup);
  static bool IsLaunched();

  // Returns the name of this process in messages and in JobMonitor: "worker/0", "ps/1". Copies of one shard
  // have different names: with 3 servers, "ps/1" and "ps/4" are copies of shard 1.
  std::string member() const;
  // Returns how this process introduces itself to the servers that it connects to.
  rpc::Caller caller() const;
  // Returns true if this process must serve the job's store.
  bool hosts_store() const { return store.empty() && worker && rank == 0; }
};

// The connection to a job's store: a client and, in the process that hosts the store, the server. Not
// movable; it is handled through its pointer. store() is thread-safe; Close and the destructor must be called
// by one thread.
class JobStore {
 public:
  // Calls Close(5 s) unless Close was called before.
  ~JobStore();

  Store* store() { return remote_.get(); }
  // Returns the connection, for JobMonitor.
  const std::shared_ptr<rpc::Channel>& channel() const { return remote_->channel(); }
  // Returns the server in this process; nullptr if another process hosts it.
  StoreServer* server() { return server_.get(); }
  const std::string& address() const { return address_; }
  // Returns the environment with which the store was opened, with the key and the life of this process.
  const Environment& env() const { return env_; }

  // Announces that this process no longer needs the store. The hosting process then waits, at most `timeout`,
  // until all workers and parameter servers have announced the same, and stops the server. It does not wait
  // for servers that have left the job, nor for copies of servers whose lease has run out. DeadlineExceeded
  // names the processes that have not announced it; the server stops then, too. Later calls do nothing.
  absl::Status Close(absl::Duration timeout);

 private:
  friend absl::StatusOr<std::unique_ptr<JobStore>> OpenStore(const Environment& env, absl::Duration timeout);
  explicit JobStore(const Environment& env) : env_(env) {}
  // Joins the job at address_ and sets the life of env_, and remote_.
  absl::Status Join(absl::Duration timeout);

  Environment env_;
  std::string address_;
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<RemoteStore> remote_;
  bool closed_ = false;
};

// Serves the store if env.hosts_store(), and joins the job there as env.member(). Blocks at most `timeout`:
// until the store responds, and while another process that may be dead has the name. A process that
// `tandem run` has started beats from the beginning of this call on (StartBeat). Errors:
//
//   - Unavailable naming the address: no store is there, or the port is taken
//   - InvalidArgument if TANDEM_STORE is no address, or if MASTER_PORT is 0 and other processes could not
//     learn the port that the kernel picks
//   - FailedPrecondition if a store of another epoch, or of another job, is there
//   - PermissionDenied, with the ids of both keys, if the store has another key; those of rpc::ProcessKey
//   - AlreadyExists if another process has the name and lives, and says which
//   - Unimplemented if a gRPC server that is no store is there
absl::StatusOr<std::unique_ptr<JobStore>> OpenStore(const Environment& env, absl::Duration timeout);

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_ENVIRONMENT_H_
