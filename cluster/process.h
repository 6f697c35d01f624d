// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_PROCESS_H_
#define TANDEM_CLUSTER_PROCESS_H_

// Process owns what exists once in a process of a job: its signals and its end. Member (member.h) is an
// ordinary object, of which a process may have several.

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/wait_log.h"

namespace tandem {
class SignalPipe;
}

namespace tandem::cluster {

struct ProcessOptions {
  std::vector<int> signals;  // empty: SIGTERM and SIGINT
  // If `tandem run` has started this process, it obeys signals of that launcher only; those of others are
  // logged. systemd and Slurm stop a job by signalling each of its processes, but workers need the servers to
  // save a checkpoint. The launcher signals the servers once the workers have ended.
  bool only_launcher = false;
  // The exit code of a process that gets a signal before it handles signals: it still joins its job.
  int exit_code = 0;
};

// Handles the signals of this process. Thread-safe. Owns one thread. At most one exists at a time.
class Process {
 public:
  // Until OnSignal, StopOnSignals or AwaitSignal is called, a signal ends the process at once with
  // options.exit_code: a process that waits for its job has nothing to save. The log says what it has waited
  // for. Errors: those of SignalPipe::Install.
  static absl::StatusOr<std::unique_ptr<Process>> Start(ProcessOptions options = {});
  // Restores the default handling of the signals.
  ~Process();

  // Returns whether `tandem run` has started this process.
  bool launched() const { return launcher_ != 0; }
  // Lets `handler` handle the signals that the process obeys, on a thread of this object, one at a time. It
  // must not call this object. Replaces the handler of before, which does not run any more once this has
  // returned.
  void OnSignal(std::function<void(int signal)> handler);
  // Lets the first signal set `*stop`, which outlives this object, and log `hint`, which says what that does,
  // if it is a Ctrl-C of the user. A second Ctrl-C ends the process, and so does a second SIGTERM, unless it
  // comes within a second: systemd and Slurm signal each process of a job, and a parent may pass its own
  // signal on as well. In a launched process a second SIGTERM does not, because the launcher decides how long
  // it waits, and a second Ctrl-C only after a second. Replaces the handler.
  void StopOnSignals(std::atomic<bool>* stop, std::string hint = "");
  // Logs what this process waits for.
  WaitLog& waits() { return waits_; }
  // Blocks until the process gets a signal that it obeys. Returns its number. Replaces the handler.
  int AwaitSignal();

  // Ends the process with `code`, after it has logged `reason`, unless that is "" because it is in the log
  // already, and has written out the streams of stdio. Blocks two seconds at most. No destructor runs,
  // because other threads may hang or be in any state. This is the only place where a library of Tandem ends
  // its process, beside the watchdog of collectives.
  [[noreturn]] static void Exit(int code, absl::string_view reason);

 private:
  Process(ProcessOptions options, std::unique_ptr<SignalPipe> signals, int stop);
  void Run();

  const ProcessOptions options_;
  const pid_t launcher_;  // 0: none has started this process
  const std::unique_ptr<SignalPipe> signals_;
  WaitLog waits_;
  const int stop_;     // an event descriptor
  absl::Mutex mutex_;  // held while the handler runs
  std::function<void(int)> handler_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_PROCESS_H_
