#ifndef TANDEM_COLLECTIVES_DEBUG_FLIGHT_RECORDER_H_
#define TANDEM_COLLECTIVES_DEBUG_FLIGHT_RECORDER_H_

// Remembers the last operations of all groups of a process, so that after a time-out one can see which rank
// was where: torch.distributed's flight recorder. `tandem doctor trace DIR` reads the dumps of all ranks.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collectives/operation.h"

namespace tandem::collectives {

// Thread-safe; Begin and End take a few nanoseconds and no lock.
class FlightRecorder {
 public:
  struct Options {
    size_t entries = 2048;  // of the ring; 0: nothing is recorded
    std::string directory;  // where dumps go; empty: no dump is written by itself
    int rank = 0;           // global, for the dump's name: DIR/tandem-trace-rank<r>-pid<p>.json
  };
  // TANDEM_TRACE_ENTRIES, TANDEM_TRACE_DIR.
  static Options OptionsFromEnv(int rank);

  explicit FlightRecorder(const Options& options);
  ~FlightRecorder();

  // Makes a group known; the number stands for it in Begin. `global_ranks`: by group rank.
  uint32_t AddGroup(absl::string_view name, absl::string_view backend, int rank,
                    absl::Span<const int> global_ranks);

  // An operation was issued (queued), has begun to run, is over. `id` is Begin's.
  uint64_t Begin(uint32_t group, const Operation& operation);
  void Start(uint64_t id);
  void End(uint64_t id, const absl::Status& status);

  // Operations that have started, or been queued, and are not over, oldest first.
  struct InFlight {
    uint64_t id;
    uint32_t group;
    std::string group_name;
    std::string description;  // Describe(operation)
    absl::Duration running;   // since Start; zero while queued
    absl::Duration timeout;
  };
  std::vector<InFlight> Running() const;

  // Everything in the ring, oldest first, with the groups.
  std::string ToJson(absl::string_view reason) const;
  // Writes ToJson to the directory, replacing this process's earlier dump. OK without doing anything when
  // there is no directory.
  absl::Status Dump(absl::string_view reason) const;

 private:
  struct Entry;
  const Options options_;
  std::unique_ptr<Entry[]> ring_;
  std::atomic<uint64_t> next_{0};
  struct Group {
    std::string name, backend;
    int rank;
    std::vector<int> global_ranks;
  };
  mutable absl::Mutex mutex_;
  std::vector<Group> groups_ ABSL_GUARDED_BY(mutex_);
  std::string last_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_DEBUG_FLIGHT_RECORDER_H_
