// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_DIAGNOSTICS_WATCHDOG_H_
#define TANDEM_COLLECTIVES_DIAGNOSTICS_WATCHDOG_H_

// Watchdog turns silent hangs into errors. Backends bound every wait themselves; the watchdog finds
// operations that hang all the same, such as in a library call that never returns.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "collectives/diagnostics/flight_recorder.h"

namespace tandem::collectives {

// A thread that watches the operations in flight of all groups that share a recorder. When an operation has
// run for longer than its time-out plus a grace period, the watchdog writes a dump and calls its group's hook
// once with a DeadlineExceeded that names group and operation. Operations without a time-out never count as
// stuck. A queued operation counts as stuck only if no operation before it runs.
//
// Time in which the watchdog itself could not run (a stopped process, a machine that sleeps, a clock that was
// set) is not counted against an operation, and is logged.
//
// Thread-safe.
class Watchdog {
 public:
  struct Options {
    bool enabled = true;
    absl::Duration interval = absl::Seconds(1);  // between checks
    absl::Duration grace = absl::Seconds(5);     // beyond an operation's own time-out
    absl::Duration starved = absl::Seconds(10);  // a check that is later than this is logged
    bool kill = false;                           // end the process after dump and message
    Clock* clock = Clock::Real();
    // Ends the process; replaced by tests. The default prints the message and exits with code 124.
    std::function<void(const std::string& message)> end_process;
  };
  // Reads TANDEM_WATCHDOG (off, abort (default), kill) and TANDEM_WATCHDOG_GRACE (a duration: "5s"). Invalid
  // values are logged, and the default taken.
  static Options OptionsFromEnv();

  Watchdog(std::shared_ptr<FlightRecorder> recorder, Options options);
  // Waits for a hook that is running.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // `group` is the recorder's number of the group. The hook aborts the group's backends (Backend::Abort). It
  // runs on the watchdog's thread, must not block on a peer and must not call the watchdog.
  using AbortHook = std::function<void(const absl::Status& reason)>;
  void AddGroup(uint32_t group, AbortHook hook);
  // Removes a group. When it has returned, the hook is not running and will not run.
  void RemoveGroup(uint32_t group);

 private:
  struct Seen {
    absl::Duration age;  // as far as the watchdog could observe it
    bool reported = false;
  };

  void Run();
  void CheckOperations(absl::Duration elapsed);
  void Report(const FlightRecorder::InFlight& operation, absl::Duration age);

  const std::shared_ptr<FlightRecorder> recorder_;
  const Options options_;
  // Used by the thread only.
  absl::Time last_check_;
  std::map<uint64_t, Seen> seen_;  // operations in flight at the last look

  absl::Mutex mutex_;
  std::map<uint32_t, std::shared_ptr<const AbortHook>> hooks_ ABSL_GUARDED_BY(mutex_);
  int64_t running_hook_ ABSL_GUARDED_BY(mutex_) = -1;  // the group whose hook runs
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_DIAGNOSTICS_WATCHDOG_H_
