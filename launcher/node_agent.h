// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_NODE_AGENT_H_
#define TANDEM_LAUNCHER_NODE_AGENT_H_

// Runs a node's part in a job, like torchrun's elastic agent: joins a round of the rendezvous, starts this
// node's processes with the round's ranks, and continues round by round until the job is over for all nodes.
//
//   joining -> running -> (a failure) settling -> stopping -> joining ...
//                      -> (all have finished, or no restart is left) stopping -> over
//
// NodeAgent is the state machine that decides what happens next. Others do the work: RoundMonitor calls the
// rendezvous, RoundProcesses starts and stops the processes, RoundServices serves the job's store.
//
// A replaceable node (LaunchPlan::IsReplaceable) may die without ending the round. Its launcher, started
// again, joins the running round in the same place. So does a launcher that was only cut off, once it has
// stopped its processes.
//
// A process whose role is restarted alone is started again within its round. In a job that re-forms
// (--on-failure reform), running processes are not stopped: LauncherControl tells them about the next round.
// That holds also if this node was cut off from the rendezvous for a while and no round took place without
// it.

#include <signal.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cluster/rendezvous/rendezvous.h"
#include "cluster/store/store_server.h"
#include "launcher/beat_watch.h"
#include "launcher/host/socket_directory.h"
#include "launcher/launcher_control.h"
#include "launcher/process/processes.h"
#include "launcher/process_spec.h"
#include "launcher/rendezvous_handler.h"
#include "launcher/round_monitor.h"
#include "launcher/round_processes.h"
#include "launcher/round_services.h"

namespace tandem::launcher {

// The exit code of a process that has saved its state and wishes to be run again: EX_TEMPFAIL of sysexits(3).
inline constexpr int kRunAgain = 75;

struct NodeAgentOptions {
  NodeOptions node;                                   // `advertise` is filled in
  int master_port = 0;                                // 0: a free port in every round
  absl::Duration grace = absl::Seconds(30);           // between the first signal and SIGKILL
  absl::Duration timeout = absl::InfiniteDuration();  // of the whole job
};

// One per launcher. For use by the launcher's main thread.
class NodeAgent {
 public:
  // `processes` and `rendezvous` are borrowed. Derives the job's key from that of this process, writes
  // its file, and looks up the programs of all roles. Errors: those of JobKey::Load, WriteKeyFile and
  // FindProgram.
  static absl::StatusOr<std::unique_ptr<NodeAgent>> Create(NodeAgentOptions options, Processes* processes,
                                                           RendezvousHandler* rendezvous);
  ~NodeAgent();

  // Blocks until the job is over and all started processes have ended. Call it once. Returns the exit code:
  //
  // - 0 if all workers of the job have finished.
  // - after a failure, the exit code of its root cause (128 + signal for a process killed by a signal). The
  //   launcher of the node where it happened prints the last lines of that process.
  // - 128 + signal after a signal that the launcher handles.
  // - kRunAgain if the workers have ended with it: they have saved their state, and wish to be run again.
  // - 124 after the timeout.
  // - 1 if there is no better code.
  int Run();

 private:
  // kSettling: something failed, and a better explanation may still come. kWaiting: for the rendezvous to end
  // the round.
  enum class Phase { kJoining, kRunning, kSettling, kStopping, kKilling, kWaiting, kOver };
  // The action once all processes are stopped: join the next round, start the processes of the current round
  // again, or end.
  enum class Next { kJoin, kStart, kEnd };

  NodeAgent(const NodeAgentOptions& options, const rpc::JobKey& key, std::unique_ptr<RoundProcesses> local,
            Processes* processes, RendezvousHandler* rendezvous);

  // The beginning of a round.
  void BeginJoin();
  void OnRound(const AgentEvent& event);
  void BeginRound();
  absl::Status StartRound();

  // Events.
  void OnSignal(int signal);
  void OnEnd(Process* process);
  void OnEvent(const AgentEvent& event);
  // Reports nodes that became absent or have returned.
  void OnNodes(const AgentEvent& event);
  void OnRoundOver(const AgentEvent& event);
  void OnTime();
  // Looks for members and for processes of this node that are silent, and ends the latter.
  void OnTick(absl::Time now);
  // Returns how long a process may take to end after SIGKILL while all are stopped.
  absl::Duration AfterKill() const;
  // Gives up processes that have taken longer.
  void LoseUnkilled();
  // Fails the round because of a process that does not end after SIGKILL.
  void FailBecauseOfLost();
  void OnAllStopped();

  // The end of a round or of the job.
  void FinishIfDone();
  // Begins to settle; after `settle` at most, the failure is announced.
  void NoteFailure(absl::Duration settle);
  // Does what NoteFailure does, for an error that a member of the job has reported.
  void NoteReport(const std::string& reason);
  // Does that for reported_, if this node acts for all (Round::Leader).
  void NoteReported();
  // Returns whether the round's store is in etcd.
  bool InEtcd() const;
  // Returns the address of the round's store.
  std::string StoreOf(const cluster::Round& round) const;
  // Returns how long to wait for the cause of a failure that is a consequence.
  absl::Duration ConsequenceSettle() const;
  // Starts to look whether a shard of the parameter servers has no copy left because nodes are absent. Only
  // on the first node that is not absent. OnMembers fails the round then; while a copy may live, it plans to
  // look again.
  void LookForCopies();
  void OnMembers(const AgentEvent& event);
  // Says that the job waits for absent nodes, if this one has finished.
  void SayWhatIsMissing();
  // Returns whether processes may be restarted alone now: this node has its place in the round, and the
  // rendezvous knows how often they were, for a node that takes the place. If it does not, begins to tell it.
  bool MayStart();
  void AnnounceFailure();
  void FormAgain(const std::string& reason);
  // Stops this node's processes: those that do not serve get `signal`, the others SIGTERM when those have
  // ended. Each step lasts at most `grace`.
  void Stop(Next next, int exit_code, absl::Duration grace, int signal = SIGTERM);
  // Stops this node's serving processes once no worker needs them: those of this node have ended, and after
  // Stop because of a signal, also those of the other nodes, which may be saving a checkpoint.
  void StopServers();
  // Starts to wait for the workers of other nodes. A kWorkersEnded event follows soon, and may be an error.
  void AwaitOtherWorkers();
  void OnWorkersEnded(const AgentEvent& event);
  void NoteStopped(const RoundProcesses::Slot& slot, const Process& process);
  void CloseJob(const std::string& reason, int exit_code);
  // Ends a failed job for the members of the round, if this node knows them. A worker that waits for a
  // peer that has died cannot act on SIGTERM; it learns of the end within a quarter of its lease and exits.
  void EndForMembers(int exit_code, const std::string& reason);

  absl::Status StartControl();
  absl::Time NextDeadline() const;
  bool stopping() const { return phase_ == Phase::kStopping || phase_ == Phase::kKilling; }
  const LaunchPlan& plan() const { return local_->options().plan; }

  const rpc::JobKey key_;  // the job's
  const absl::Duration grace_, timeout_;
  Processes* const processes_;
  RendezvousHandler* const rendezvous_;
  const std::unique_ptr<RoundProcesses> local_;
  BeatWatch beats_;
  std::string node_id_;
  std::unique_ptr<SocketDirectory> sockets_;  // of this node's processes
  RoundServices services_;
  std::unique_ptr<RoundMonitor> monitor_;  // borrows the membership of services_

  // The store and the LauncherControl through which running processes of a job that re-forms learn of the
  // next round.
  std::unique_ptr<cluster::StoreServer> agent_store_;
  std::unique_ptr<LauncherControl> control_;

  std::optional<cluster::Round> round_;  // nodes[0].store is the address of the round's store
  int64_t assignment_ = 0;               // counts this node's rounds
  bool round_over_ = false;              // the rendezvous has ended the round
  bool finish_told_ = false;             // the rendezvous knows that this node's processes have finished
  bool closed_ = false;                  // the job is over
  // A failure on this node has ended the job, or came at the same time as the one that has.
  bool failed_here_ = false;
  std::string job_failure_;              // the error that a member of the job has reported
  std::optional<std::string> reported_;  // the same in the round's store, for the node that acts for all

  Phase phase_ = Phase::kJoining;
  Next next_ = Next::kEnd;
  absl::Time deadline_ = absl::InfiniteFuture();  // of the phase
  absl::Time end_by_ = absl::InfiniteFuture();    // of the job
  absl::Time tick_at_ = absl::InfinitePast();     // of OnTick
  absl::Time look_for_copies_at_ = absl::InfiniteFuture();
  std::atomic<bool> recording_ = false;  // a call of RecordRestarts is under way
  int exit_code_ = 0;
  absl::Duration stop_grace_;                       // of Stop
  bool asked_to_stop_ = false;                      // a signal ends the job, here or on another node
  absl::Time signalled_at_ = absl::InfinitePast();  // when this launcher got the last signal
  bool ended_told_ = false;    // the other launchers know that this node's workers have ended
  bool await_others_ = false;  // the servers must not end before the workers of the other nodes
  int unanswered_ = 0;         // how often the store did not answer when it was asked for them
  // Since then a process of the main role has ended with kRunAgain; one has ended otherwise, and not with
  // success. Includes other nodes if this one has waited for them.
  bool saved_ = false, unsaved_ = false;
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_NODE_AGENT_H_
