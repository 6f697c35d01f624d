#ifndef TANDEM_COLLECTIVES_ENVIRONMENT_H_
#define TANDEM_COLLECTIVES_ENVIRONMENT_H_

// What the launcher (`tandem run`, or torchrun) tells each process about its job, and the way to the job's
// store.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "collectives/store/remote_store.h"
#include "collectives/store/store.h"
#include "collectives/store/store_server.h"
#include "rpc/channel.h"

namespace tandem::collectives {

// A plain value. One role of a job, "worker" unless the launcher named it otherwise, is its main one: its
// processes have a RANK and take part in the job's collectives. The others ("ps", "actor", ...) have a place
// in their role.
struct Environment {
  std::string role = "worker";  // TANDEM_ROLE; "ps": parameter servers
  bool worker = true;           // whether this process belongs to the main role
  int rank = 0;                 // RANK, of workers; 0 elsewhere
  int world_size = 1;           // WORLD_SIZE: the number of workers
  int local_rank = 0;           // LOCAL_RANK: among the processes of the role on this node
  int local_world_size = 1;     // LOCAL_WORLD_SIZE
  int role_rank = 0;            // ROLE_RANK (of workers: RANK): among the processes of the role in the job
  int role_world_size = 1;      // ROLE_WORLD_SIZE
  int group_rank = 0;           // GROUP_RANK: of this node
  int num_ps = 0;               // TANDEM_NUM_PS
  int ps_index = 0;             // TANDEM_PS_INDEX, of parameter servers; their role_rank
  std::string master_addr;      // MASTER_ADDR; may be absent where there is a `store`
  int master_port = 0;          // MASTER_PORT, likewise
  std::string store;            // TANDEM_STORE: "host:port" of the job's store, which a launcher serves;
                                // "": rank 0 serves it at master_addr:master_port
  int restart_count = 0;        // TORCHELASTIC_RESTART_COUNT: how often the job has been started again
  int64_t epoch = 0;   // TANDEM_EPOCH: the rendezvous round in which this process was started, from 1
  std::string run_id;  // TANDEM_RUN_ID, else TORCHELASTIC_RUN_ID

  // Looks a variable up; nullopt when it is not set.
  using Lookup = std::function<absl::optional<std::string>(absl::string_view name)>;

  // InvalidArgument names the variable, its value and what was expected. Where none of RANK, WORLD_SIZE and
  // TANDEM_ROLE is set, the rank's variables are those of Open MPI's mpirun (OMPI_COMM_WORLD_RANK, _SIZE,
  // _LOCAL_RANK, _LOCAL_SIZE).
  static absl::StatusOr<Environment> FromLookup(const Lookup& lookup);
  // From the process's own environment.
  static absl::StatusOr<Environment> FromEnv();
  // Whether the variables of a launcher are there at all; without them a program may choose to run alone.
  static bool IsLaunched(const Lookup& lookup);
  static bool IsLaunched();

  // "worker/0", "ps/1": the name under which this process is known in messages and to JobMonitor.
  std::string member() const;
  // What this process says of itself to the servers that it connects to.
  rpc::Caller caller() const { return {.run_id = run_id, .epoch = epoch, .member = member()}; }
  // Whether this process is to serve the job's store.
  bool hosts_store() const { return store.empty() && worker && rank == 0; }
};

// The way to a job's store: a client and, in the process that hosts it, the server. Movable only through its
// pointer. store() is thread-safe; Close and the destructor are for one thread.
class JobStore {
 public:
  // Calls Close(5 s) if nobody has.
  ~JobStore();

  Store* store() { return remote_.get(); }
  // The connection, for JobMonitor.
  const std::shared_ptr<rpc::Channel>& channel() const { return remote_->channel(); }
  // The server in this process; nullptr where another process hosts it.
  StoreServer* server() { return server_.get(); }
  const std::string& address() const { return address_; }

  // Says that this process needs the store no more; in the hosting process waits until all workers and
  // parameter servers have said so, at most `timeout`, and stops the server. DeadlineExceeded names those
  // that have not (the server stops all the same). Later calls do nothing.
  absl::Status Close(absl::Duration timeout);

 private:
  friend absl::StatusOr<std::unique_ptr<JobStore>> OpenStore(const Environment& env, absl::Duration timeout);
  explicit JobStore(const Environment& env) : env_(env) {}

  const Environment env_;
  std::string address_;
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<RemoteStore> remote_;
  bool closed_ = false;
};

// Serves the store if env.hosts_store() says so, and connects to it. Blocks until the store answers, at most
// `timeout`. Errors: Unavailable naming the address (nobody there, or the port is taken); InvalidArgument
// when TANDEM_STORE is no address, or MASTER_PORT is 0 and other processes could not learn the port that the
// kernel picks; FailedPrecondition when a store of another epoch, or of another job, is there.
absl::StatusOr<std::unique_ptr<JobStore>> OpenStore(const Environment& env, absl::Duration timeout);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_ENVIRONMENT_H_
