#ifndef TANDEM_BASE_TRACE_TRACE_H_
#define TANDEM_BASE_TRACE_TRACE_H_

// What a program marks so that `tandem trace` can show where its time goes:
//
//   constexpr trace::Kind kGather{"gather", "train", {"rows"}};
//   { trace::Span span(kGather, rows); ... }                       a stretch of this thread's time
//
//   const uint64_t begin = trace::Begin();                         what ends elsewhere
//   StartCall([begin] { trace::End(kCall, begin, bytes); });
//
// Nothing is recorded unless a Recorder (recorder.h) of this process has been started; then a mark costs one
// load and one branch. A recorded event costs two looks at the processor's counter and one cache line.

#include <atomic>
#include <cstdint>

#include "absl/base/optimization.h"

namespace tandem::trace {

// What an event is. Usually a constant: it must live as long as the recorder of its events.
struct Kind {
  const char* name;               // "forward"
  const char* category;           // "train", "rpc", "ps", "data", "collective"
  const char* arguments[3] = {};  // what the numbers of its events mean, units included: "bytes"
  bool beside = false;            // its events may overlap others of the same thread, as calls under way do
};

// Joins the events of two processes: equal numbers (not 0) on a sender and on a receiver, one within the
// other.
struct Flow {
  enum class End : uint8_t { kNone, kSends, kReceives };
  uint64_t id = 0;
  End end = End::kNone;
};

class Recorder;

namespace internal {
// The one ambient pointer: marks stand deep in code that has no business with who records. Set by
// Recorder::Start, cleared by Stop.
extern std::atomic<Recorder*> active;
uint64_t Now();
void Put(const Kind& kind, uint64_t begin, const Flow& flow, int64_t a, int64_t b, int64_t c);
}  // namespace internal

// The recorder that is at it, or nullptr.
inline Recorder* Active() { return internal::active.load(std::memory_order_acquire); }

// Whether events are recorded just now.
inline bool IsOn() { return ABSL_PREDICT_FALSE(internal::active.load(std::memory_order_relaxed) != nullptr); }

// The beginning of an event; 0, which End takes for "not recorded", while nothing is. Any thread may end it.
inline uint64_t Begin() { return IsOn() ? internal::Now() : 0; }

// The numbers are those of Kind::arguments. An event that ends when nothing is recorded any more is dropped.
inline void End(const Kind& kind, uint64_t begin, int64_t a = 0, int64_t b = 0, int64_t c = 0) {
  if (ABSL_PREDICT_FALSE(begin != 0)) internal::Put(kind, begin, Flow(), a, b, c);
}
inline void End(const Kind& kind, uint64_t begin, const Flow& flow, int64_t a = 0, int64_t b = 0,
                int64_t c = 0) {
  if (ABSL_PREDICT_FALSE(begin != 0)) internal::Put(kind, begin, flow, a, b, c);
}

// From here to the end of the block.
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

// Cuts a thread's time into consecutive events: each call ends one and begins the next.
class Laps {
 public:
  void EndWith(const Kind& kind, int64_t a = 0, int64_t b = 0, int64_t c = 0) {
    End(kind, begin_, a, b, c);
    begin_ = Begin();
  }

 private:
  uint64_t begin_ = Begin();
};

// The calling thread's name in traces, and in `top -H` and debuggers: at most 15 characters.
void NameThread(const char* name);

}  // namespace tandem::trace

#endif  // TANDEM_BASE_TRACE_TRACE_H_
