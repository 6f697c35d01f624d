#ifndef TANDEM_CLI_PROFILING_OVERLAP_H_
#define TANDEM_CLI_PROFILING_OVERLAP_H_

// What of a worker's communication its computation hides. Pure functions.

#include <string>
#include <vector>

#include "cli/profiling/timeline.h"

namespace tandem::cli {

// Of one worker, in seconds of the wall clock in which at least one such thing was under way; `hidden`: of
// these, the seconds in which it computed.
struct Overlap {
  struct Share {
    double seconds = 0, hidden = 0;
    double percent() const { return seconds > 0 ? 100 * hidden / seconds : 0; }
  };
  std::string member;
  double compute = 0;  // gather, forward, backward, optimizer
  Share pull, push, all_reduce;
  // Of collectives: what went on beside the backward pass, and beside pulls or pushes.
  Share all_reduce_backward, all_reduce_traffic;
};

// Of the processes that did training steps.
std::vector<Overlap> MeasureOverlap(const Timeline& timeline);
// A sentence for each.
std::string OverlapToText(const std::vector<Overlap>& overlaps);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_PROFILING_OVERLAP_H_
