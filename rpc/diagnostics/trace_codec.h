// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_DIAGNOSTICS_TRACE_CODEC_H_
#define TANDEM_RPC_DIAGNOSTICS_TRACE_CODEC_H_

// Encodes recorded events for the process that requested them. Pure functions.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/trace/recorder.h"
#include "tandem/v1/diagnostics.pb.h"

namespace tandem::rpc {

// The recording of another process. Times are nanoseconds of that process's steady clock.
struct ProcessTrace {
  struct Kind {
    std::string name, category;
    std::vector<std::string> arguments;  // at most 3
    bool may_overlap = false;
  };
  struct Event {
    uint32_t kind = 0;  // index into `kinds`
    int64_t begin_ns = 0, end_ns = 0;
    trace::Flow flow;
    std::array<int64_t, 3> arguments{};
  };
  struct Thread {
    int64_t id = 0;
    std::string name;
    uint64_t lost = 0;
    std::vector<Event> events;
  };
  int64_t from_ns = 0, to_ns = 0;
  std::vector<Kind> kinds;
  std::vector<Thread> threads;
  uint64_t unplaced = 0;
};

// Returns `recording` as a message. `skew_ns` is added to every time.
tandem::v1::TraceRecording EncodeTrace(const trace::Recording& recording, int64_t skew_ns);

// Parses a recording. DataLoss, which says what is wrong, if lists differ in length, an event's kind does not
// exist, or a time is more than 73 years from the clock's zero.
absl::StatusOr<ProcessTrace> DecodeTrace(const tandem::v1::TraceRecording& recording);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_DIAGNOSTICS_TRACE_CODEC_H_
