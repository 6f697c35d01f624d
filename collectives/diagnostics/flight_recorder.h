#ifndef TANDEM_COLLECTIVES_DIAGNOSTICS_FLIGHT_RECORDER_H_
#define TANDEM_COLLECTIVES_DIAGNOSTICS_FLIGHT_RECORDER_H_

// Remembers the last operations of all groups of a process, so that after a time-out one can see which rank
// was where: torch.distributed's flight recorder. `tandem doctor trace DIR` reads the dumps of all ranks.

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

// Thread-safe. Begin, BeginStarted, Start and End take a few nanoseconds each and no lock; everything else
// may take its time. An operation in flight keeps its place in the ring, however many come after it; when no
// place is free the new operation is not recorded, and the dump says how many were not.
class FlightRecorder {
 public:
  struct Options {
    size_t entries = 2048;  // of the ring; 0: nothing is recorded
    std::string directory;  // where dumps go, made if need be; empty: no dump is written by itself
    int rank = 0;           // global, for the dump's name: DIR/tandem-trace-rank<r>-pid<p>.json
  };
  // TANDEM_TRACE_ENTRIES, TANDEM_TRACE_DIR. A number that is none is logged and the default taken.
  static Options OptionsFromEnv(int rank);

  explicit FlightRecorder(const Options& options);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // Makes a group known; the number stands for it in Begin. `global_ranks`: by group rank.
  uint32_t AddGroup(absl::string_view name, absl::string_view backend, int rank,
                    absl::Span<const int> global_ranks);
  // The group is gone, all its operations have ended: dumps say so for as long as the ring holds any of them,
  // then the number may be given to another.
  void RemoveGroup(uint32_t group);

  // An operation was issued (queued), has begun to run, is over. `id` is Begin's; Start may be left out; End
  // is called once.
  uint64_t Begin(uint32_t group, const Operation& operation);
  void Start(uint64_t id);
  void End(uint64_t id, const absl::Status& status);
  // Begin and Start at once, for operations that never wait in a queue: one look at the clock less.
  uint64_t BeginStarted(uint32_t group, const Operation& operation);

  // Operations that have started, or been queued, and are not over, oldest first. Those of other threads are
  // seen one after the other, not at one moment.
  struct InFlight {
    uint64_t id;
    uint32_t group;
    std::string group_name;
    std::string description;  // Describe(operation)
    bool started;
    absl::Duration running;  // since Start; zero while queued
    absl::Duration queued;   // since Begin, until Start or now
    absl::Duration timeout;
  };
  std::vector<InFlight> Running() const;

  // Everything in the ring, oldest first, with the groups. docs/debugging.md describes the fields.
  std::string ToJson(absl::string_view reason) const;
  // Writes ToJson to the directory, replacing this process's earlier dump at once and whole. OK without doing
  // anything when there is no directory. An error names the path; it is also logged, once.
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
  // The place of an operation in flight.
  Entry& At(uint64_t id) const;
  // What every used place holds, oldest first.
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
  std::map<uint64_t, std::string> errors_ ABSL_GUARDED_BY(mutex_);  // of failed operations, the last ones
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_DIAGNOSTICS_FLIGHT_RECORDER_H_
