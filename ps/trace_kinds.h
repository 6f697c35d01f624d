#ifndef TANDEM_PS_TRACE_KINDS_H_
#define TANDEM_PS_TRACE_KINDS_H_

// What pulls and pushes consist of, in traces (base/trace/trace.h). The wait for a server is the call's.

#include "base/trace/trace.h"

namespace tandem::ps {

// A worker's: from the request to the last server's answer; then their parts.
inline constexpr trace::Kind kTracePull{"pull", "ps", {"step"}, /*beside=*/true};
inline constexpr trace::Kind kTraceEncodePull{"encode pull", "ps", {"server"}};
inline constexpr trace::Kind kTraceDecodePull{"decode pull", "ps", {"server"}};
inline constexpr trace::Kind kTracePush{"push", "ps", {"step"}, /*beside=*/true};
inline constexpr trace::Kind kTraceEncodePush{"encode push", "ps", {"server"}};

// A server's.
inline constexpr trace::Kind kTraceLookup{"lookup", "ps", {"step", "worker"}};
inline constexpr trace::Kind kTraceParsePush{"parse push", "ps"};
inline constexpr trace::Kind kTraceQueuedPush{
    "queued push", "ps", {"step", "worker", "rows"}, /*beside=*/true};
inline constexpr trace::Kind kTraceApply{"apply", "ps", {"rows", "pushes"}};

// Has the end of what `done` tells in the trace: "pull" or "push".
template <typename Done, typename Result>
void TraceUntilDone(const trace::Kind& kind, uint64_t step, Done* done) {
  const uint64_t begin = trace::Begin();
  if (ABSL_PREDICT_TRUE(begin == 0)) return;
  *done = [&kind, begin, step, inner = std::move(*done)](Result result) mutable {
    trace::End(kind, begin, static_cast<int64_t>(step));
    std::move(inner)(std::move(result));
  };
}

}  // namespace tandem::ps

#endif  // TANDEM_PS_TRACE_KINDS_H_
