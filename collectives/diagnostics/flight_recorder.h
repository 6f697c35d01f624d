// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_DIAGNOSTICS_FLIGHT_RECORDER_H_
#define TANDEM_COLLECTIVES_DIAGNOSTICS_FLIGHT_RECORDER_H_

// FlightRecorder remembers the last operations of all groups of a process, so that after a time-out one can
// see where each rank was: torch.distributed's flight recorder. `tandem doctor trace DIR` reads the dumps of
// all ranks.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/ticks.h"
#include "collectives/operation.h"

namespace tandem::collectives {

// Thread-safe. Begin, BeginStarted, Start and End take a few nanoseconds each and no lock; the other calls
// may be slow. An operation in flight keeps its entry in the ring, however many follow it. When no entry is
// free, the new operation is not recorded, and the dump contains the number of such operations.
class FlightRecorder {
 public:
  struct Options {
    size_t entries = 2048;  // of the ring; 0: nothing is recorded
    std::string directory;  // of dumps, created if needed; empty: no automatic dump
    int rank = 0;           // global, for the dump's name: DIR/tandem-trace-rank<r>-pid<p>.json
  };
  // Reads TANDEM_TRACE_ENTRIES and TANDEM_TRACE_DIR. An invalid number is logged, and the default taken.
  static Options OptionsFromEnv(int rank);

  explicit FlightRecorder(const Options& options);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // Registers a group and returns the number by which Begin refers to it. `global_ranks` is indexed by group
  // rank.
  uint32_t AddGroup(absl::string_view name, absl::string_view backend, int rank,
                    absl::Span<const int> global_ranks);
  // Removes a group, all of whose operations have ended. Dumps list it as closed while the ring holds any of
  // its operations; then the number may be given to another group.
  void RemoveGroup(uint32_t group);

  // Record that an operation was issued (queued), has begun to run, has ended. `id` is Begin's result. Start
  // may be left out; End is called once.
  uint64_t Begin(uint32_t group, const Operation& operation);
  void Start(uint64_t id);
  void End(uint64_t id, const absl::Status& status);
  // Records that a started operation was issued on a device, where it waits for earlier work: it is queued
  // until the next Start.
  void Requeue(uint64_t id);
  // Does Begin and Start at once, for operations that never wait in a queue; saves one reading of the clock.
  uint64_t BeginStarted(uint32_t group, const Operation& operation);

  // Operations that are queued or have started, and have not ended, oldest first. Operations of several
  // threads are read one after the other, not at one moment.
  struct InFlight {
    uint64_t id;
    uint32_t group;
    std::string group_name;
    std::string description;  // Describe(operation)
    bool started;
    bool on_device;          // the operation is on GPU tensors
    absl::Duration running;  // since Start; zero while queued
    absl::Duration queued;   // since Begin, until Start or now
    absl::Duration timeout;
  };
  std::vector<InFlight> Running() const;

  // Returns everything in the ring, oldest first, with the groups. docs/debugging.md describes the fields.
  std::string ToJson(absl::string_view reason) const;
  // Writes ToJson to the directory, replacing this process's earlier dump atomically. Returns OK without
  // doing anything if there is no directory. An error names the path; it is also logged, once.
  absl::Status Dump(absl::string_view reason) const;

  const Options& options() const { return options_; }

 private:
  struct Entry;
  struct Record;
  struct Progress;
  struct Group {
    std::string name, backend;
    int rank = 0;
    std::vector<int> global_ranks;
    bool closed = false;
    bool used = false;
  };

  uint64_t Claim(uint32_t group, const Operation& operation, bool started);
  // Returns the entry of an operation in flight.
  Entry& At(uint64_t id) const;
  // Returns copies of all used entries, oldest first.
  std::vector<Record> Records() const;
  std::string GroupName(uint32_t group) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteDump(absl::string_view reason) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(dump_mutex_);

  const Options options_;
  const TickClock clock_;
  const std::unique_ptr<Entry[]> ring_;
  const std::unique_ptr<Progress[]> progress_;  // by group
  std::atomic<uint64_t> next_{1};
  std::atomic<uint64_t> not_recorded_{0};

  mutable absl::Mutex dump_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // one writer of the file at a time
  mutable std::string last_error_ ABSL_GUARDED_BY(dump_mutex_);
  mutable absl::Mutex mutex_;
  std::vector<Group> groups_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::string> errors_ ABSL_GUARDED_BY(mutex_);  // of the most recent failed operations
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_DIAGNOSTICS_FLIGHT_RECORDER_H_
