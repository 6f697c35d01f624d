// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_TRACE_TRACE_H_
#define TANDEM_BASE_TRACE_TRACE_H_

// Marks events in a program, so that `tandem trace` can show how it spends its time.
//
//   constexpr trace::Kind kGather{"gather", "train", {"rows"}};
//   { trace::Span span(kGather, rows); ... }                    // an event that ends with a block
//
//   const uint64_t begin = trace::Begin();                      // an event that ends elsewhere
//   StartCall([begin] { trace::End(kCall, begin, bytes); });
//
// Events are recorded only after a Recorder (recorder.h) of this process has been started; until then a mark
// costs one load and one branch. A recorded event costs two reads of the processor's time-stamp counter and
// one cache line.

#include <atomic>
#include <cstdint>

#include "absl/base/optimization.h"

namespace tandem::trace {

// The kind of an event. Usually a constant: it must live as long as the recorder of its events.
struct Kind {
  const char* name;      // "forward"
  const char* category;  // "train", "rpc", "ps", "data", "collective"
  // The meaning and unit of the numbers in its events: "bytes".
  const char* arguments[3] = {};
  // True if its events may overlap other events of the same thread, as calls in flight do.
  bool may_overlap = false;
};

// Joins events of two processes: the sender's and the receiver's event have the same id (not 0), and one of
// them encloses the other in time.
struct Flow {
  enum class End : uint8_t { kNone, kSends, kReceives };
  uint64_t id = 0;
  End end = End::kNone;
};

class Recorder;

namespace internal {
// The recorder that is running. Global, because passing it to every place that marks an event would change
// the signatures of much unrelated code. Set by Recorder::Start, cleared by Stop.
extern std::atomic<Recorder*> active;
uint64_t Now();
void Put(const Kind& kind, uint64_t begin, const Flow& flow, int64_t a, int64_t b, int64_t c);
}  // namespace internal

// Returns the recorder that is running, or nullptr.
inline Recorder* Active() { return internal::active.load(std::memory_order_acquire); }

// Returns true while events are recorded.
inline bool IsOn() { return ABSL_PREDICT_FALSE(internal::active.load(std::memory_order_relaxed) != nullptr); }

// Begins an event and returns its start, for End. Returns 0, which End ignores, while nothing is recorded.
// Any thread may end the event.
inline uint64_t Begin() { return IsOn() ? internal::Now() : 0; }

// Ends an event and records it. `a`, `b` and `c` are the numbers that Kind::arguments names. The event is
// dropped if recording has stopped.
inline void End(const Kind& kind, uint64_t begin, int64_t a = 0, int64_t b = 0, int64_t c = 0) {
  if (ABSL_PREDICT_FALSE(begin != 0)) internal::Put(kind, begin, Flow(), a, b, c);
}
inline void End(const Kind& kind, uint64_t begin, const Flow& flow, int64_t a = 0, int64_t b = 0,
                int64_t c = 0) {
  if (ABSL_PREDICT_FALSE(begin != 0)) internal::Put(kind, begin, flow, a, b, c);
}

// Records an event from its construction to the end of the block.
class Span {
 public:
  explicit Span(const Kind& kind, int64_t a = 0, int64_t b = 0, int64_t c = 0)
      : begin_(Begin()), kind_(kind), a_(a), b_(b), c_(c) {}
  ~Span() { End(kind_, begin_, a_, b_, c_); }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  const uint64_t begin_;
  const Kind& kind_;
  const int64_t a_, b_, c_;
};

// Divides a thread's time into consecutive events: each call ends one and begins the next.
class Laps {
 public:
  void EndWith(const Kind& kind, int64_t a = 0, int64_t b = 0, int64_t c = 0) {
    End(kind, begin_, a, b, c);
    begin_ = Begin();
  }

 private:
  uint64_t begin_ = Begin();
};

// Sets the calling thread's name, as shown in traces, `top -H` and debuggers: at most 15 characters.
void NameThread(const char* name);

}  // namespace tandem::trace

#endif  // TANDEM_BASE_TRACE_TRACE_H_
