// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_PROCESS_PROCESSES_H_
#define TANDEM_LAUNCHER_PROCESS_PROCESSES_H_

// Starts a launcher's child processes, and waits in one call for their ends, their output, signals, and
// events of the launcher's own threads. What an event means for the job is decided by the caller (NodeAgent).

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/process/own_launcher.h"
#include "base/process/signal_pipe.h"
#include "cluster/membership/beat.h"
#include "launcher/process/child_output.h"
#include "launcher/process/console.h"
#include "launcher/process/process_reaper.h"
#include "launcher/process/spawn.h"

namespace tandem::launcher {

struct ProcessSpec {
  std::string name;     // "worker/0"
  bool front = false;   // whether a terminal gets its output unchanged, without a prefix
  std::string program;  // path of the executable
  std::vector<std::string> args;
  std::vector<std::string> environment;  // "NAME=value", complete
  std::vector<int> cpus;                 // the processors it may use; empty: those of the launcher
  OutputFiles files;
  std::string error_file;  // the file in which the program may leave its error message
  bool serves = false;     // whether it serves the others and is stopped after them
  bool terminal = false;   // whether the launcher's terminal becomes its stdin
  // The directory in which a parameter server that is durable or has followers tells that it serves.
  std::string serving_dir;
  // The time between two beats that the process is asked for (cluster/membership/beat.h). Zero: none.
  absl::Duration beat_period;
};

// One started process. Owned by Processes, and for the same thread.
class Process {
 public:
  Process(ProcessSpec spec, std::unique_ptr<ChildOutput> output)
      : spec_(std::move(spec)), output_(std::move(output)) {}

  const ProcessSpec& spec() const { return spec_; }
  const std::string& name() const { return spec_.name; }
  // Changes the name in messages and output prefixes, because the process's rank has changed.
  void Rename(std::string name);
  const ChildOutput& output() const { return *output_; }
  pid_t pid() const { return spawned_.pid; }
  absl::Time started() const { return started_; }
  // Counts the processes that the launcher has started.
  int number() const { return number_; }
  // The page in which the process beats; nullptr if it was not asked to.
  const cluster::BeatPage* beat() const { return beat_.get(); }
  // Declares that the process does not end after SIGKILL, since it hangs in the kernel. Nobody waits for it
  // from now on. It still counts as running, until it ends after all.
  void SetLost() { lost_ = true; }
  bool lost() const { return lost_ && !ended_; }
  bool ended() const { return ended_; }
  // The following require ended().
  bool killed() const;     // by a signal
  bool succeeded() const;  // exit code 0
  int exit_code() const;   // 128 + signal if it was killed by a signal
  // Returns how the process ended, for messages: "worker/1 (pid 12) was killed by signal 9 (SIGKILL)".
  std::string HowItEnded() const;

 private:
  friend class Processes;
  ipc::Descriptor& stream(Console::Stream stream) {
    return stream == Console::kOut ? spawned_.out : spawned_.err;
  }

  ProcessSpec spec_;
  const std::unique_ptr<ChildOutput> output_;
  Spawned spawned_;
  int number_ = 0;  // of the processes that the launcher has started
  absl::Time started_;
  std::unique_ptr<cluster::BeatPage> beat_;
  std::string end_reason_;
  bool lost_ = false;
  bool ended_ = false;
  int status_ = 0;  // waitpid's
};

// The events that one Processes::Wait returns.
struct ProcessEvents {
  std::vector<int> signals;
  std::vector<Process*> ended;
  bool woken = false;  // whether `wake` was readable
};

// The child processes of a launcher. For use by the main thread only: the kernel kills the children when the
// thread that started them ends (PR_SET_PDEATHSIG).
class Processes {
 public:
  // Forks the ProcessReaper, installs handlers of `signals` and SIGCHLD (SignalPipe), ignores SIGPIPE from
  // then on, and adopts the orphans among its descendants. Requires that the process has only one thread.
  // Errors are those of ProcessReaper::Start and SignalPipe::Install.
  static absl::StatusOr<std::unique_ptr<Processes>> Create(const std::vector<int>& signals);
  // Kills the processes that still run and blocks until they have ended, except those that are lost, then
  // blocks at most 2 s until the console is written.
  ~Processes();

  // Starts a process. Blocks until its program is executed. Errors name the process, and the program that
  // cannot be executed or the file that cannot be written. The result is valid until ForgetEnded removes it.
  absl::StatusOr<Process*> Start(ProcessSpec spec);
  // Blocks until there is an event, or until `deadline`; meanwhile it distributes the processes' output. It
  // may also return without an event. `wake` is one more descriptor to wait for. With `patient`, output stays
  // in the processes' pipes (so that they block) while more than 1 MiB waits for the reader of the launcher's
  // output; without it, output is read and kept in memory.
  ProcessEvents Wait(absl::Time deadline, int wake, bool patient);
  // Sends `signal` to the process groups of the running processes that serve, or of those that do not. Then
  // also SIGCONT, since a stopped process would not see the signal.
  void Signal(bool serving, int signal);
  // Sends SIGKILL to the process groups of all running processes.
  void KillAll();
  // Sends SIGKILL to the process group of a running process. `reason` says why ("was silent for 10s (...)"):
  // HowItEnded has it in place of the signal if the process dies of that.
  void Kill(Process& process, std::string reason);
  // Tests replace the function that sends SIGKILL to a process group by one without effect, as if the
  // processes hung in the kernel.
  void ReplaceKill(std::function<void(pid_t group)> kill) { kill_ = std::move(kill); }
  // Has another process do so at `deadline`, even if this one is stopped or hangs then, unless the deadline
  // is put off in time (ProcessReaper::KillAt). Any thread may call it.
  void KillAllAt(absl::Time deadline) { guardian_->KillAt(deadline); }
  // Return whether all processes have ended, or all that do not serve. Lost ones (Process::SetLost) are not
  // waited for.
  bool AllEnded() const;
  bool OnlyServing() const;
  // Distributes the last output of the processes that have ended and deletes them; pointers to them dangle.
  void ForgetEnded();
  Console& console() { return console_; }

 private:
  Processes(std::string mark, std::unique_ptr<ProcessReaper> guardian, std::unique_ptr<SignalPipe> signals);
  bool Reap(Process& process);
  // Returns the children that are no orphans.
  std::set<pid_t> Own() const;
  std::string MarkOf(int number) const { return absl::StrCat(mark_, number, ";"); }
  static void ReadOutput(Process& process, Console::Stream stream);

  Console console_;
  std::function<void(pid_t group)> kill_;
  const std::string mark_;  // the beginning of kProcessVariable in all processes
  const std::unique_ptr<ProcessReaper> guardian_;
  const std::unique_ptr<SignalPipe> signals_;
  std::vector<std::unique_ptr<Process>> processes_;
  int started_ = 0;
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PROCESS_PROCESSES_H_
