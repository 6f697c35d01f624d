// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_PROFILING_OVERLAP_H_
#define TANDEM_CLI_PROFILING_OVERLAP_H_

// Measures how much of a worker's communication is hidden by its computation. The functions are pure.

#include <string>
#include <vector>

#include "cli/profiling/timeline.h"

namespace tandem::cli {

// The overlap of one worker. Each value is the wall-clock time in seconds during which at least one event of
// the kind was in progress. `hidden` is the part of it during which the worker also computed.
struct Overlap {
  struct Share {
    double seconds = 0, hidden = 0;
    double percent() const { return seconds > 0 ? 100 * hidden / seconds : 0; }
  };
  std::string member;
  double compute = 0;  // gather, forward, backward, optimizer
  Share pull, push, all_reduce;
  // The time of collectives; `hidden` is here the part concurrent with the backward pass, and the part
  // concurrent with pulls or pushes.
  Share all_reduce_backward, all_reduce_traffic;
};

// Returns the overlap of each process that did training steps.
std::vector<Overlap> MeasureOverlap(const Timeline& timeline);
// Returns one sentence for each process.
std::string OverlapToText(const std::vector<Overlap>& overlaps);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_PROFILING_OVERLAP_H_
