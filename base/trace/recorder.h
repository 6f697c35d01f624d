#ifndef TANDEM_BASE_TRACE_RECORDER_H_
#define TANDEM_BASE_TRACE_RECORDER_H_

// Records what the marks of base/trace/trace.h say, for a while and in bounded memory.

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

// An event as others want it. Nanoseconds of this machine's steady clock.
struct Event {
  const Kind* kind = nullptr;
  int64_t begin_ns = 0, end_ns = 0;  // end_ns >= begin_ns
  Flow flow;
  std::array<int64_t, 3> arguments{};
};

struct ThreadEvents {
  int64_t id = 0;  // the kernel's
  std::string name;
  uint64_t lost = 0;          // older ones, for which there was no room
  std::vector<Event> events;  // in the order in which they ended
};

struct Recording {
  int64_t from_ns = 0, to_ns = 0;
  std::vector<ThreadEvents> threads;  // that recorded anything
  uint64_t unplaced = 0;              // events of threads for which there was no ring
};

// Thread-safe. One per process, made by its main and handed to who starts and stops it. Threads get a ring
// each when they record their first event; it stays, for the next recording, until the thread has ended and
// its events were collected. The destructor may run only when no other thread records: keep it to the end.
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

  // From now on events are recorded. FailedPrecondition when this, or another recorder of the process, is at
  // it.
  absl::Status Start();
  // From now on they are not. Nothing happens when they were not.
  void Stop();
  // Of the current recording, or the last one; at most the newest `max_events` of all threads together,
  // fairly.
  Recording Collect(size_t max_events);

  // A kind, whose events may overlap, for a name that is known only at run time; the same one for the same
  // name and category. `category` and `argument`, which may be null, are literals. It lives as long as the
  // recorder. Programs have few names: past 4096 they share the kind "other".
  const Kind& Intern(absl::string_view name, const char* category, const char* argument);

  const Options& options() const { return options_; }

 private:
  friend uint64_t internal::Now();
  friend void internal::Put(const Kind&, uint64_t, const Flow&, int64_t, int64_t, int64_t);
  struct Slot {
    std::shared_ptr<Ring> ring;
    uint64_t from = 0;  // what came before belongs to an earlier recording
  };
  struct Local;
  // By category (the literal), then name.
  using Names = absl::flat_hash_map<const char*, absl::flat_hash_map<std::string, const Kind*>>;

  void Put(const RawEvent& event);
  // The calling thread's; nullptr when there are too many threads.
  std::shared_ptr<Ring> AddThread();

  const Options options_;
  const uint64_t id_;  // of this recorder among all there were
  const TickClock clock_;
  std::atomic<uint64_t> unplaced_{0};

  absl::Mutex mutex_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  uint64_t from_ ABSL_GUARDED_BY(mutex_) = 0;  // ticks
  uint64_t to_ ABSL_GUARDED_BY(mutex_) = 0;    // 0: goes on
  std::deque<std::string> names_ ABSL_GUARDED_BY(mutex_);
  std::deque<Kind> kinds_ ABSL_GUARDED_BY(mutex_);
  Names interned_ ABSL_GUARDED_BY(mutex_);
};

// As trace::End, of a kind that is interned for `name`.
inline void EndNamed(absl::string_view name, const char* category, uint64_t begin) {
  if (ABSL_PREDICT_TRUE(begin == 0)) return;
  if (Recorder* const recorder = Active()) End(recorder->Intern(name, category, nullptr), begin);
}

}  // namespace tandem::trace

#endif  // TANDEM_BASE_TRACE_RECORDER_H_
