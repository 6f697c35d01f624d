#ifndef TANDEM_LAUNCHER_NODE_AGENT_H_
#define TANDEM_LAUNCHER_NODE_AGENT_H_

// A launcher's part in its job: it joins a round of the rendezvous, starts this node's processes with the
// round's ranks, and goes on, round by round, until the job is over for all nodes. torchrun's elastic agent.
//
//   joining -> running -> (a failure) settling -> stopping -> joining ...
//                      -> (all have finished, or nothing is left to try) stopping -> over
//
// A process whose role is restarted alone comes back within its round; in a job that re-forms, the living are
// told of the next round instead of being stopped: also where this node has lost the rendezvous for a while,
// if no round took place without it.

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/store/store_server.h"
#include "launcher/host/pinning.h"
#include "launcher/host/port_reservation.h"
#include "launcher/launcher_control.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/plan/streams.h"
#include "launcher/process/processes.h"
#include "launcher/rendezvous_handler.h"
#include "launcher/round_monitor.h"
#include "launcher/variables.h"
#include "rpc/epoch_gate.h"
#include "rpc/network.h"

namespace tandem::launcher {

struct NodeAgentOptions {
  LaunchPlan plan;
  std::string run_id;
  std::string self;          // the path of this program
  std::string log_dir;       // exists
  std::string attempts_dir;  // holds attempt_<n>/<local rank>/
  std::string spill_dir;
  StreamChoice redirects, tee;
  std::optional<std::set<int>> shown;  // local ranks of the main role whose output is shown; nothing: all
  int master_port = 0;                 // 0: a free one in every round
  int metrics_port = -1;
  absl::Duration grace = absl::Seconds(5);            // between SIGTERM and SIGKILL
  absl::Duration timeout = absl::InfiniteDuration();  // of the whole job
};

// One per launcher, for its main thread.
class NodeAgent {
 public:
  // Both are borrowed. Programs of roles are looked up here: errors are FindProgram's.
  static absl::StatusOr<std::unique_ptr<NodeAgent>> Create(NodeAgentOptions options, Processes* processes,
                                                           RendezvousHandler* rendezvous);
  ~NodeAgent();

  // Blocks until the job is over and nothing that was started is left; the exit code: 0 when all have
  // finished; the root cause's code (128 + signal for a death by signal) after a failure, whose last lines
  // are told where it happened; 130 or 143 after SIGINT or SIGTERM; 124 after the time-out; 1 for want of a
  // better one.
  int Run();

 private:
  // One process of the plan: what runs in its place now.
  struct Slot {
    const RolePlan* role = nullptr;
    int local_rank = 0;
    std::string program;  // path
    std::vector<int> cpus;
    Process* process = nullptr;  // that runs
    bool done = false;           // has finished its work
    int restarts_alone = 0;
    int deaths_in_a_row = 0;
    absl::Time restart_at = absl::InfiniteFuture();
  };
  // kSettling: something failed, and for a moment a better-placed witness may still turn up. kWaiting: for
  // the rendezvous to end the round.
  enum class Phase { kJoining, kRunning, kSettling, kStopping, kKilling, kWaiting, kOver };
  enum class Next { kJoin, kStart, kEnd };

  NodeAgent(NodeAgentOptions options, Processes* processes, RendezvousHandler* rendezvous);
  absl::Status PrepareSlots();

  // Rounds.
  void BeginJoin();
  void OnRound(const AgentEvent& event);
  void BeginRound();
  absl::Status StartRound();
  absl::Status StartSlot(Slot& slot);
  absl::StatusOr<ProcessSpec> SpecOf(Slot& slot);
  void FinishIfDone();
  absl::Status TellNewPlaces();
  void SayRound();

  // What happens.
  void OnSignal(int signal);
  void OnEnd(Process* process);
  void OnEvent(const AgentEvent& event);
  void OnRoundOver(const AgentEvent& event);
  void FormAgain(const std::string& reason);
  bool RestartAlone(Slot& slot, Process* process);
  void NoteFailure(absl::Duration settle);
  void AnnounceFailure();
  void OnTime();
  void Stop(Next next, int exit_code, absl::Duration grace);
  void CloseJob(const std::string& reason, int exit_code);
  void OnAllStopped();
  absl::Time NextDeadline() const;

  const NodeAgentOptions options_;
  Processes* const processes_;
  RendezvousHandler* const rendezvous_;
  const Variables own_;
  const std::string node_id_;
  std::vector<Slot> slots_;
  std::set<std::string> logs_;  // written in an earlier round, too

  // A living process may still speak to the store of the round before.
  std::unique_ptr<collectives::StoreServer> store_, old_store_;
  std::shared_ptr<rpc::EpochGate> store_gate_;  // store_'s: whom it serves once the round has an epoch
  std::unique_ptr<PortReservation> port_;
  std::unique_ptr<RoundMonitor> watch_;  // borrows store_'s membership
  std::optional<collectives::Round> round_;
  // Where processes that live on hear of the next round.
  std::unique_ptr<collectives::StoreServer> agent_store_;
  std::unique_ptr<LauncherControl> control_;
  bool round_over_ = false;  // the rendezvous has said so
  bool finish_told_ = false;
  bool closed_ = false;
  bool failed_here_ = false;  // which has ended the job, or came at the same time as what has
  int64_t assignment_ = 0;

  std::vector<Process*> failed_;  // in the order in which they ended
  std::string job_failure_;       // what the members say
  Phase phase_ = Phase::kJoining;
  Next next_ = Next::kEnd;
  absl::Time deadline_ = absl::InfiniteFuture();  // of the phase
  absl::Time end_by_ = absl::InfiniteFuture();    // of the job
  int exit_code_ = 0;
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_NODE_AGENT_H_
