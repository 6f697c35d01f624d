#ifndef TANDEM_CLI_LAUNCH_LAUNCHER_H_
#define TANDEM_CLI_LAUNCH_LAUNCHER_H_

// Runs the processes of a job on this machine: one event loop over their ends, their output, signals and the
// job's own state. Whatever happens, when Run returns nothing that was started is left.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/launch/child_output.h"
#include "cli/launch/console.h"
#include "cli/launch/guardian.h"
#include "cli/launch/signal_pipe.h"
#include "cli/launch/spawn.h"
#include "collectives/membership/membership.h"

namespace tandem::cli {

struct LauncherOptions {
  std::string log_dir;                                // exists
  absl::Duration grace = absl::Seconds(5);            // between SIGTERM and SIGKILL
  absl::Duration timeout = absl::InfiniteDuration();  // of the whole job
};

struct ProcessSpec {
  std::string name;     // "worker/0"
  bool server = false;  // serves until the workers have finished; its own end before that is a failure
  bool front = false;   // its output goes to a terminal as it is
  std::string program;  // path of the executable
  std::vector<std::string> args;
  std::vector<std::string> environment;
};

// Belongs to the main thread: children are tied to the life of the thread that starts them.
class Launcher {
 public:
  // Forks a guardian and listens to SIGINT, SIGTERM and SIGHUP: call before the process starts threads.
  static absl::StatusOr<std::unique_ptr<Launcher>> Create();
  // Kills what Run has not ended.
  ~Launcher();

  void Configure(LauncherOptions options) { options_ = std::move(options); }
  // On error, processes started before go on until the destructor.
  absl::Status Start(const ProcessSpec& spec);

  // Blocks until the job is over; its exit code: 0 when all workers ended with 0; the root cause's code (128
  // + signal for a death by signal) after a failure, which is told in one line with the last lines of its
  // log; 130 or 143 after SIGINT or SIGTERM; 124 after the time-out.
  int Run(collectives::Membership* membership);

  Console& console() { return console_; }

 private:
  struct Child;
  struct JobWatch;
  // kSettling: something failed, and for a moment a better-placed witness may still turn up.
  enum class Phase { kRunning, kSettling, kStopping, kKilling };

  Launcher(std::unique_ptr<Guardian> guardian, std::unique_ptr<SignalPipe> signals);
  void Poll(JobWatch& watch);
  void OnSignal();
  void OnJobState(const collectives::JobState& state);
  void OnChildEnd(Child& child);
  void ReadOutput(Child& child, Console::Stream stream);
  void OnDeadline();
  void NoteFailure(absl::Duration settle);
  void AnnounceFailure();
  void Stop(int exit_code);
  void SignalAll(int signal);
  bool AllEnded() const;

  LauncherOptions options_;
  Console console_;
  const std::unique_ptr<Guardian> guardian_;
  const std::unique_ptr<SignalPipe> signals_;
  std::vector<std::unique_ptr<Child>> children_;
  std::vector<Child*> failed_;  // in the order in which they ended
  std::string job_failure_;     // what the members say
  Phase phase_ = Phase::kRunning;
  absl::Time deadline_ = absl::InfiniteFuture();  // of the phase
  int exit_code_ = 0;
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_LAUNCHER_H_
