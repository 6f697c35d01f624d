#ifndef TANDEM_CLI_PROFILING_COLLECT_H_
#define TANDEM_CLI_PROFILING_COLLECT_H_

// Has the processes of a job record what they do, all at the same time.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/profiling/clock_offset.h"
#include "cli/profiling/members.h"
#include "rpc/diagnostics/trace_codec.h"

namespace tandem::cli {

struct CollectOptions {
  absl::Duration length = absl::Seconds(5);
  absl::Duration timeout = absl::Seconds(5);  // for each answer
  uint64_t max_events = 200'000;              // of each process
};

struct CollectedTrace {
  Member member;
  absl::Status status;  // unless OK the rest is empty: says what the process did not do
  rpc::ProcessTrace trace;
  ClockLine clock;
  bool own_clock = false;  // it reads the same clock as we
};

// One for each member that has not left, in order. Blocks for `length` and at most some time-outs more. A
// process that does not answer keeps nobody waiting longer than that.
std::vector<CollectedTrace> CollectTraces(const std::vector<Member>& members, const CollectOptions& options);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_PROFILING_COLLECT_H_
