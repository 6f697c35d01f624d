#ifndef TANDEM_CLI_PROFILING_TIMELINE_H_
#define TANDEM_CLI_PROFILING_TIMELINE_H_

// The traces of a job's processes as one picture: on one clock, with every call's two halves joined. Pure
// functions.

#include <cstdint>
#include <string>
#include <vector>

#include "cli/profiling/collect.h"

namespace tandem::cli {

struct TimelineEvent {
  const rpc::ProcessTrace::Kind* kind = nullptr;
  int64_t begin_ns = 0, end_ns = 0;  // since the timeline's beginning
  std::array<int64_t, 3> arguments{};
  uint64_t flow =
      0;  // of this timeline: exactly two events have it, one that sends and one that receives; 0: none
  bool sends = false;
};

// Events of a track do not overlap unless one lies within the other; they are ordered by begin, the outer one
// first.
struct TimelineTrack {
  int64_t id = 0;    // unique in its process
  std::string name;  // "compute"; "pull 2": the second of those under way at a time
  std::vector<TimelineEvent> events;
};

struct TimelineProcess {
  const CollectedTrace* from = nullptr;
  std::vector<TimelineTrack> tracks;  // threads, then what is under way beside them
  uint64_t lost = 0;                  // events that were recorded and had no room
};

struct Timeline {
  int64_t begin_ns = 0;                    // by our clock
  std::vector<TimelineProcess> processes;  // of which there is a trace
  uint64_t joined = 0;                     // calls
  uint64_t unjoined = 0;                   // halves whose other half was not recorded
  int64_t error_ns = 0;                    // of times of different processes, at most
};

// `collected` outlives the result.
Timeline MakeTimeline(const std::vector<CollectedTrace>& collected);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_PROFILING_TIMELINE_H_
