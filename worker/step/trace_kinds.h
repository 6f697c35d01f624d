// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_STEP_TRACE_KINDS_H_
#define TANDEM_WORKER_STEP_TRACE_KINDS_H_

// Trace kinds of the stages of a training step (base/trace/trace.h). `tandem trace` counts gather, forward,
// both halves of the backward pass and optimizer as computation.

#include "base/trace/trace.h"

namespace tandem::worker {

inline constexpr trace::Kind kTraceStep{"step", "train", {"step", "examples"}};
inline constexpr trace::Kind kTraceWaitRows{"wait for rows", "train"};
inline constexpr trace::Kind kTraceGather{"gather", "train"};
inline constexpr trace::Kind kTraceForward{"forward", "train"};
inline constexpr trace::Kind kTraceBackwardInputs{"backward inputs", "train"};
inline constexpr trace::Kind kTraceBackwardParameters{"backward parameters", "train"};
inline constexpr trace::Kind kTraceWaitReduce{"wait for all-reduce", "train"};
inline constexpr trace::Kind kTraceOptimizer{"optimizer", "train"};
inline constexpr trace::Kind kTraceChangeReplicas{"change replicated rows", "train", {"step"}};
inline constexpr trace::Kind kTraceWaitBatch{"wait for batch", "train"};
inline constexpr trace::Kind kTraceDedupe{"dedupe", "train", {"ids", "distinct"}};
inline constexpr trace::Kind kTracePermit{"wait for permit", "train"};
inline constexpr trace::Kind kTraceSendPull{"send pull", "train", {"step"}};
inline constexpr trace::Kind kTraceScatter{"scatter", "train", {"step"}};
inline constexpr trace::Kind kTraceSendPush{"send push", "train", {"step"}};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_STEP_TRACE_KINDS_H_
