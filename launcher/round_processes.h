// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_ROUND_PROCESSES_H_
#define TANDEM_LAUNCHER_ROUND_PROCESSES_H_

// The processes of this node in the current round: starts them, records their ends, restarts single ones, and
// stops them. Which of that happens when is decided by NodeAgent.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/elastic/assignment.h"
#include "launcher/host/port_reservation.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/process/processes.h"
#include "launcher/process_spec.h"

namespace tandem::launcher {

// Has one slot for each process of the plan. For the main thread, as Processes. No call blocks, except that
// starting a process waits until its program is executed.
class RoundProcesses {
 public:
  // One process of the plan, and the running process in its place.
  struct Slot {
    PlannedProcess planned;
    Process* process = nullptr;  // nullptr: it does not run
    bool done = false;           // it has finished its work in this round
    int restarts_alone = 0;
    int deaths_in_a_row = 0;
    // A durable server keeps its port, so that workers find it again.
    std::unique_ptr<PortReservation> port = nullptr;
    absl::Time restart_at = absl::InfiniteFuture();  // when it is to be restarted alone
  };

  // `processes` is borrowed. Errors are those of PlanProcesses.
  static absl::StatusOr<std::unique_ptr<RoundProcesses>> Create(NodeOptions options, Processes* processes);

  const NodeOptions& options() const { return options_; }

  // Forgets what happened in the last round: which processes were done and which failed. Running processes
  // stay.
  void PrepareRound();
  // Returns the number of this node's processes by role, as the rendezvous needs it. Followers are counted as
  // kFollowersRole.
  std::map<std::string, int> CountByRole() const;
  // Returns a hash of the command line of each role, by role.
  std::map<std::string, uint64_t> CommandsByRole() const;
  // Sets the round for which processes are started from now on. TANDEM_PROCESS_RESTARTS of each counts from
  // that of the round on.
  void SetRound(NodeRound round);
  // Returns how often the process that was restarted alone most often was.
  int MostRestarts() const;
  // Returns each process's assignment in the round, by "role/local rank", and gives the running processes the
  // names of their new ranks.
  std::map<std::string, collectives::Assignment> Reassign();
  // Starts all processes that do not run. After an error some of them run.
  absl::Status StartAll();

  // Records that `process` has ended. Returns its slot, which is now empty, or nullptr if it had none.
  Slot* TakeEnded(Process* process);
  // Returns true if all processes of roles that end by themselves are done.
  bool AllDone() const;

  // Plans to restart the process of `slot` alone, after a pause that doubles with every death in a row, and
  // says so on the console. `process` is the one that has ended. Returns false if the role is not restarted
  // alone, or if its limit is reached, which is also said.
  bool PlanRestart(Slot& slot, const Process& process);
  // Starts the processes whose restart is due. Returns the last error.
  absl::Status StartDue(absl::Time now);
  // Puts off all planned restarts until `time`, unless they are due later.
  void PutOffRestarts(absl::Time time);
  // The time of the next planned restart; InfiniteFuture if there is none.
  absl::Time NextRestart() const;

  // Records a process as a failure of the round. It stays valid until PrepareRound.
  void AddFailed(Process* process) { failed_.push_back(process); }
  // The failed processes, in the order in which they ended.
  const std::vector<Process*>& failed() const { return failed_; }
  // Returns the running process with this role and local rank ("worker/1"), or nullptr.
  const Process* Find(absl::string_view role_and_local_rank) const;
  // Returns a process that is lost (Process::SetLost) and has not ended since, or nullptr.
  const Process* FindLost() const;
  // Returns whether the round lacks lost processes only: all others of roles that end by themselves are done.
  bool OnlyLostLeft() const;
  const std::vector<Slot>& slots() const { return slots_; }
  // Returns the running processes.
  std::vector<const Process*> Running() const;

  // Sends `signal` to the processes that do not serve, and cancels planned restarts. The others follow with
  // TerminateServing, so that a worker can still use its servers while it ends (to write a checkpoint).
  void Terminate(int signal);
  // Sends SIGTERM to the processes that serve, once the others have ended. Returns true if it has done so
  // now, and false if it is too early or has happened before.
  bool TerminateServing();
  // Sends SIGKILL to all processes.
  void Kill();
  bool AllEnded() const { return processes_->AllEnded(); }

 private:
  RoundProcesses(NodeOptions options, Processes* processes);
  absl::Status Start(Slot& slot);
  // Returns whether the processes of the role are servers with a log.
  bool IsDurable(const RolePlan& role) const;
  // Returns whether the death of a process of the role loses nothing: it is a server with a log or followers.
  bool LosesNothing(const RolePlan& role) const { return role.followers > 0 || IsDurable(role); }

  // Returns whether some server of the role on this node has begun to serve, and still runs.
  bool SomeServe(const RolePlan& role) const;

  const NodeOptions options_;
  Processes* const processes_;
  ProcessSpecFactory specs_;
  std::vector<Slot> slots_;
  NodeRound round_;
  std::vector<Process*> failed_;
  bool serving_told_ = false;  // TerminateServing has sent its signal
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_ROUND_PROCESSES_H_
