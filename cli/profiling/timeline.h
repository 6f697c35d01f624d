// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_PROFILING_TIMELINE_H_
#define TANDEM_CLI_PROFILING_TIMELINE_H_

// Merges the traces of a job's processes into one timeline: on one clock, with the two halves of each call
// joined. The functions are pure.

#include <cstdint>
#include <string>
#include <vector>

#include "cli/profiling/collect.h"

namespace tandem::cli {

struct TimelineEvent {
  const rpc::ProcessTrace::Kind* kind = nullptr;
  int64_t begin_ns = 0, end_ns = 0;  // since Timeline::begin_ns
  std::array<int64_t, 3> arguments{};
  // Identifies a joined call in this timeline: exactly two events have it, one that sends and one that
  // receives. 0: the event is not joined.
  uint64_t flow = 0;
  bool sends = false;
};

// One line of the timeline. Its events are ordered by begin, the outer one first. Two events do not overlap
// unless one lies within the other.
struct TimelineTrack {
  int64_t id = 0;    // unique in its process
  std::string name;  // "compute"; "pull 2" for the second of several concurrent pulls
  std::vector<TimelineEvent> events;
};

struct TimelineProcess {
  const CollectedTrace* from = nullptr;
  std::vector<TimelineTrack> tracks;  // threads, then events that overlap those of their thread, by kind
  uint64_t lost = 0;                  // recorded events for which there was no space
};

struct Timeline {
  int64_t begin_ns = 0;                    // the earliest recorded time, by our clock
  std::vector<TimelineProcess> processes;  // those that have a trace
  uint64_t joined = 0;                     // joined calls
  uint64_t unjoined = 0;                   // halves of calls whose other half was not recorded
  int64_t error_ns = 0;                    // the largest error between times of different processes
};

// Makes the timeline. `collected` must outlive the result.
Timeline MakeTimeline(const std::vector<CollectedTrace>& collected);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_PROFILING_TIMELINE_H_
