// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_PROFILING_COLLECT_H_
#define TANDEM_CLI_PROFILING_COLLECT_H_

// Records traces in all processes of a job at the same time, and collects them.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/monitor/members.h"
#include "cli/profiling/clock_offset.h"
#include "rpc/diagnostics/trace_codec.h"

namespace tandem::cli {

struct CollectOptions {
  absl::Duration length = absl::Seconds(5);
  absl::Duration timeout = absl::Seconds(5);  // of each call
  uint64_t max_events = 200'000;              // of each process, the newest ones
};

// The trace of one process.
struct CollectedTrace {
  Member member;
  absl::Status status;  // an error says why there is no trace; the fields below are then empty
  rpc::ProcessTrace trace;
  ClockLine clock;
  bool own_clock = false;  // whether the process reads the same clock as this one
};

// Records and returns a trace of each member that has not left, in the order of `members`. Blocks for
// `length` plus a few timeouts, even if a process does not respond.
std::vector<CollectedTrace> CollectTraces(const std::vector<Member>& members, const CollectOptions& options);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_PROFILING_COLLECT_H_
