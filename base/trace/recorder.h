// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_TRACE_RECORDER_H_
#define TANDEM_BASE_TRACE_RECORDER_H_

// Records the events marked with base/trace/trace.h, for a limited time and in bounded memory.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/ticks.h"
#include "base/trace/ring.h"
#include "base/trace/trace.h"

namespace tandem::trace {

// A recorded event. Times are nanoseconds of this machine's steady clock.
struct Event {
  const Kind* kind = nullptr;
  int64_t begin_ns = 0, end_ns = 0;  // end_ns >= begin_ns
  Flow flow;
  std::array<int64_t, 3> arguments{};
};

// The recorded events of one thread.
struct ThreadEvents {
  int64_t id = 0;  // the kernel's thread id
  std::string name;
  // Number of older events that were overwritten or left out.
  uint64_t lost = 0;
  std::vector<Event> events;  // in the order of their end
};

// The events of all threads between two times of the steady clock.
struct Recording {
  int64_t from_ns = 0, to_ns = 0;
  std::vector<ThreadEvents> threads;  // the threads that recorded events
  // Number of events of threads for which there was no ring.
  uint64_t unplaced = 0;
};

// Records the events of a process. Thread-safe. Created once per process by its main function, and shared
// with the code that starts and stops recordings. Each thread gets a ring when it records its first event.
// The ring is kept for later recordings until the thread has ended and the next recording starts. No other
// thread may record while the destructor runs, so the recorder must be destroyed last.
class Recorder {
 public:
  struct Options {
    size_t events_per_thread = size_t{1} << 15;  // a power of two; 64 bytes each
    size_t max_threads = 128;
  };

  Recorder() : Recorder(Options()) {}
  explicit Recorder(const Options& options);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Starts recording. FailedPrecondition if a recorder of this process, this one or another, is already
  // recording.
  absl::Status Start();
  // Stops recording. No effect if this recorder is not recording.
  void Stop();
  // Returns the events of the current or the last recording: at most the newest `max_events` of all threads
  // together, with each thread limited to an equal share. Threads with fewer events leave the rest of their
  // share to the others.
  Recording Collect(size_t max_events);

  // Returns a Kind, whose events may overlap, for a name known only at run time. The same name and category
  // give the same Kind. `category` and `argument` are literals; `argument` may be nullptr. The Kind lives as
  // long as the recorder. After 4096 names, all further names share the kind "other".
  const Kind& Intern(absl::string_view name, const char* category, const char* argument);

  const Options& options() const { return options_; }

 private:
  friend uint64_t internal::Now();
  friend void internal::Put(const Kind&, uint64_t, const Flow&, int64_t, int64_t, int64_t);
  struct Slot {
    std::shared_ptr<Ring> ring;
    // Events before this one belong to an earlier recording.
    uint64_t from = 0;
  };
  struct Local;
  // Keyed by category (the literal's address), then by name.
  using Names = absl::flat_hash_map<const char*, absl::flat_hash_map<std::string, const Kind*>>;

  void Put(const RawEvent& event);
  // Returns a new ring for the calling thread, or nullptr if there are too many threads.
  std::shared_ptr<Ring> AddThread();

  const Options options_;
  const uint64_t id_;  // unique among all recorders of the process
  const TickClock clock_;
  std::atomic<uint64_t> unplaced_{0};

  absl::Mutex mutex_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  uint64_t from_ ABSL_GUARDED_BY(mutex_) = 0;  // in ticks
  uint64_t to_ ABSL_GUARDED_BY(mutex_) = 0;    // in ticks; 0: still recording
  std::deque<std::string> names_ ABSL_GUARDED_BY(mutex_);
  std::deque<Kind> kinds_ ABSL_GUARDED_BY(mutex_);
  Names interned_ ABSL_GUARDED_BY(mutex_);
};

// Like trace::End, with a Kind interned for `name`.
inline void EndNamed(absl::string_view name, const char* category, uint64_t begin) {
  if (ABSL_PREDICT_TRUE(begin == 0)) return;
  if (Recorder* const recorder = Active()) End(recorder->Intern(name, category, nullptr), begin);
}

}  // namespace tandem::trace

#endif  // TANDEM_BASE_TRACE_RECORDER_H_
