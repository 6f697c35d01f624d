// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_TRACE_KINDS_H_
#define TANDEM_PS_TRACE_KINDS_H_

// Trace kinds of pulls and pushes (base/trace/trace.h). The wait for a server belongs to the RPC's own event.

#include "base/trace/trace.h"

namespace tandem::ps {

// At a worker. kTracePull and kTracePush last from the request to the last server's response; the others are
// stages of them.
inline constexpr trace::Kind kTracePull{"pull", "ps", {"step"}, /*may_overlap=*/true};
inline constexpr trace::Kind kTraceEncodePull{"encode pull", "ps", {"server"}};
inline constexpr trace::Kind kTraceDecodePull{"decode pull", "ps", {"server"}};
inline constexpr trace::Kind kTracePush{"push", "ps", {"step"}, /*may_overlap=*/true};
inline constexpr trace::Kind kTraceEncodePush{"encode push", "ps", {"server"}};

// At a server.
inline constexpr trace::Kind kTraceLookup{"lookup", "ps", {"step", "worker"}};
inline constexpr trace::Kind kTraceParsePush{"parse push", "ps"};
inline constexpr trace::Kind kTraceQueuedPush{
    "queued push", "ps", {"step", "worker", "rows"}, /*may_overlap=*/true};
inline constexpr trace::Kind kTraceApply{"apply", "ps", {"rows", "pushes"}};

// Wraps `*done`, the callback of a pull or push, so that an event of `kind` that begins now ends when the
// callback is called. Does nothing if no trace is recorded.
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
