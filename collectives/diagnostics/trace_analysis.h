// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_DIAGNOSTICS_TRACE_ANALYSIS_H_
#define TANDEM_COLLECTIVES_DIAGNOSTICS_TRACE_ANALYSIS_H_

// Finds, in the dumps that the ranks of a job have left (trace_file.h), the rank for which the others wait.
// Corresponds to torch.distributed's flight recorder analyser. All functions are thread-safe: they have no
// state, read no files and do not block.

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/diagnostics/trace_file.h"

namespace tandem::collectives {

// One problem that was found.
struct TraceFinding {
  // Findings are listed in the order of these kinds: causes come before their consequences.
  enum class Kind {
    // The ranks call different operations with the same sequence number. `waiting` is the largest set of
    // ranks
    // that agree, and `ranks` are all others.
    kDisagree,
    // `ranks` have not called, or have queued but not begun, the operation in which `waiting` wait. `waiting`
    // is empty if all ranks have only queued it.
    kBehind,
    // `ranks` wait for each other in a cycle, through several groups. `waiting` are the same ranks.
    kCircle,
    // `ranks` have left no dump. `waiting` wait for them in an operation; empty if no rank does.
    kDead,
    // `ranks` have not finished an operation that `waiting` have finished.
    kSlow,
    // All ranks of the group are in the operation, and none has finished it. `waiting` are the same ranks.
    kStuck,
    // `waiting`, one rank, has not completed a send to, or a receive from, `ranks`. `ranks` is one rank, or
    // empty if the message may come from any rank.
    kMessage,
  };
  Kind kind = Kind::kBehind;
  std::string group;                // the group's name; empty if the finding concerns no single group
  std::vector<int> ranks, waiting;  // global ranks; `ranks` are the cause
  int64_t sequence = -1;            // TraceEntry::sequence of the operation; -1: no single operation
  std::string operation;            // the operation, "all_reduce #4 (sum of f32 x 1024)"; may be empty
  std::string text;                 // all of this for people, in a few sentences
};

struct TraceAnalysis {
  std::vector<TraceFinding> findings;  // in the order of TraceFinding::Kind; empty: no rank is behind
  // The state of one rank in one group, at the time of the rank's dump. There is one row for each rank of
  // each group. Point-to-point operations are not part of it.
  struct Row {
    int rank = 0;  // global
    std::string group, backend;
    bool has_dump = false;        // if false, the fields below have their defaults
    int64_t last_completed = -1;  // sequence number of the last completed collective; -1: none
    // State and description of the first collective that is not completed: "started all_reduce #4 (sum of f32
    // x 1024)". Empty if there is none.
    std::string now;
    double now_us = 0;  // how long that collective has taken, in microseconds
    std::string error;  // the error with which it failed; empty if it has not failed
  };
  std::vector<Row> rows;
};

// Formats a duration as findings and reports do, truncated to milliseconds: "1.5s", "20ms", "0".
std::string DurationText(double microseconds);

// Analyses the dumps in `directory`, which ReadTraces has read.
TraceAnalysis Analyze(const TraceDirectory& directory);

// Returns a report for people: the texts of the findings, a table of the rows, a table of the dumps, errors
// of operations, and the files that could not be read. `analysis` must be that of `directory`. `path` is the
// directory's path; it is only printed.
std::string TraceText(const std::string& path, const TraceDirectory& directory,
                      const TraceAnalysis& analysis);
// Returns the same as one JSON object, which docs/debugging.md describes, and a newline. Its fields are
// directory, missing, findings, ranks, dumps and not_read.
std::string TraceJson(const std::string& path, const TraceDirectory& directory,
                      const TraceAnalysis& analysis);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_DIAGNOSTICS_TRACE_ANALYSIS_H_
