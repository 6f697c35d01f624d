#ifndef TANDEM_LAUNCHER_PROCESS_PROCESSES_H_
#define TANDEM_LAUNCHER_PROCESS_PROCESSES_H_

// The processes that a launcher has started on this machine: one place to wait for their ends, their output,
// signals and the launcher's own threads. It has no opinion on what any of it means.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/process/child_output.h"
#include "launcher/process/console.h"
#include "launcher/process/process_reaper.h"
#include "launcher/process/signal_pipe.h"
#include "launcher/process/spawn.h"

namespace tandem::launcher {

struct ProcessSpec {
  std::string name;     // "worker/0"
  bool front = false;   // its output goes to a terminal as it is
  std::string program;  // path of the executable
  std::vector<std::string> args;
  std::vector<std::string> environment;
  std::vector<int> cpus;  // on which it may run; empty: on all
  OutputFiles files;
  std::string error_file;  // where it may leave why it failed
};

// One process. Owned by its Processes.
class Process {
 public:
  Process(ProcessSpec spec, std::unique_ptr<ChildOutput> output)
      : spec_(std::move(spec)), output_(std::move(output)) {}

  const ProcessSpec& spec() const { return spec_; }
  const std::string& name() const { return spec_.name; }
  // From now on it goes by another name: its place in the job has changed.
  void Rename(std::string name);
  const ChildOutput& output() const { return *output_; }
  pid_t pid() const { return spawned_.pid; }
  absl::Time started() const { return started_; }
  bool ended() const { return ended_; }
  // Of an ended one.
  bool killed() const;
  bool succeeded() const;
  int exit_code() const;  // 128 + signal for a death by signal
  // "worker/1 (pid 12) was killed by signal 9 (SIGKILL)"
  std::string HowItEnded() const;

 private:
  friend class Processes;
  ipc::Descriptor& stream(Console::Stream stream) {
    return stream == Console::kOut ? spawned_.out : spawned_.err;
  }

  ProcessSpec spec_;
  const std::unique_ptr<ChildOutput> output_;
  Spawned spawned_;
  absl::Time started_;
  bool ended_ = false;
  int status_ = 0;  // of waitpid
};

// What one Wait has seen.
struct ProcessEvents {
  std::vector<int> signals;
  std::vector<Process*> ended;
  bool woken = false;  // `wake` was readable
};

// Belongs to the main thread: children are tied to the life of the thread that starts them.
class Processes {
 public:
  // Forks a guardian and listens to SIGINT, SIGTERM and SIGHUP: call before the process starts threads.
  static absl::StatusOr<std::unique_ptr<Processes>> Create();
  // Kills what still runs.
  ~Processes();

  // Errors name the process, and what could not be executed or which file not be written.
  absl::StatusOr<Process*> Start(ProcessSpec spec);
  // Reads output and waits until something happens or `deadline`. `wake` is a descriptor to watch as well.
  // `patient`: while nobody reads what was printed, the children's output is left in their pipes.
  ProcessEvents Wait(absl::Time deadline, int wake, bool patient);
  // To the process groups of all that run. SIGTERM also wakes those that are stopped.
  void SignalAll(int signal);
  bool AllEnded() const;
  // Passes on the last output of those that have ended and forgets them: pointers to them are no more.
  void ForgetEnded();
  Console& console() { return console_; }

 private:
  Processes(std::unique_ptr<ProcessReaper> guardian, std::unique_ptr<SignalPipe> signals);
  bool Reap(Process& process);
  static void ReadOutput(Process& process, Console::Stream stream);

  Console console_;
  const std::unique_ptr<ProcessReaper> guardian_;
  const std::unique_ptr<SignalPipe> signals_;
  std::vector<std::unique_ptr<Process>> processes_;
  int started_ = 0;
};

// "SIGKILL"
std::string SignalName(int signal);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PROCESS_PROCESSES_H_
