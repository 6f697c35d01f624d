// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_GRPC_TIME_H_
#define TANDEM_RPC_GRPC_GRPC_TIME_H_

// Converts deadlines between MonotonicNow() and gRPC, by the time that is left. A time of the system clock,
// as absl::ToChronoTime makes it, would be wrong by every step of that clock.

#include "absl/time/time.h"
#include "base/clock.h"
#include "grpc/support/time.h"

namespace tandem::rpc {

// How long after a deadline gRPC may report it, before the caller cancels the call itself. gRPC 1.51 sleeps
// until its deadlines by the wall clock, and is late by as much as that is set back.
inline constexpr absl::Duration kGrpcLate = absl::Milliseconds(100);

inline gpr_timespec ToGrpcDeadline(absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(absl::ToInt64Nanoseconds(deadline - MonotonicNow()), GPR_TIMESPAN));
}

inline gpr_timespec GrpcDeadlineIn(absl::Duration timeout) {
  return ToGrpcDeadline(MonotonicNow() + timeout);
}

inline absl::Time FromGrpcDeadline(gpr_timespec deadline) {
  const gpr_timespec moment = gpr_convert_clock_type(deadline, GPR_CLOCK_MONOTONIC);
  if (gpr_time_cmp(moment, gpr_inf_future(GPR_CLOCK_MONOTONIC)) == 0) return absl::InfiniteFuture();
  const gpr_timespec left = gpr_time_sub(moment, gpr_now(GPR_CLOCK_MONOTONIC));
  return MonotonicNow() + absl::Seconds(left.tv_sec) + absl::Nanoseconds(left.tv_nsec);
}

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_GRPC_TIME_H_
