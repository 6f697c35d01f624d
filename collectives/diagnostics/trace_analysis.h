// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_DIAGNOSTICS_TRACE_ANALYSIS_H_
#define TANDEM_COLLECTIVES_DIAGNOSTICS_TRACE_ANALYSIS_H_

// Finds, in the dumps of all ranks, the rank for which the others wait: torch.distributed's flight recorder
// analyser.

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/diagnostics/trace_file.h"

namespace tandem::collectives {

// One problem that was found. Ranks are global.
struct TraceFinding {
  enum class Kind {
    kDisagree,  // `ranks` call another operation than `waiting` at the same place
    kBehind,    // `ranks` have not called the operation in which `waiting` wait
    kCircle,    // `ranks` wait for each other, through several groups
    kDead,      // `ranks` have left no dump
    kSlow,      // `ranks` have not finished an operation that others have
    kStuck,     // all are in the operation, none finishes it
    kMessage,   // `waiting` waits for a message of, or to, `ranks`
  };
  Kind kind = Kind::kBehind;
  std::string group;
  std::vector<int> ranks, waiting;
  int64_t sequence = -1;
  std::string operation;
  std::string text;  // a sentence or two
};

struct TraceAnalysis {
  std::vector<TraceFinding> findings;  // causes before their consequences; empty: no rank is behind
  // One row for each rank of each group.
  struct Row {
    int rank = 0;
    std::string group, backend;
    bool has_dump = false;
    int64_t last_completed = -1;
    std::string now;  // "started all_reduce #4 (sum of f32 x 1024)"; empty: no operation
    double now_us = 0;
    std::string error;
  };
  std::vector<Row> rows;
};

// Formats a duration as findings and reports do: "1.5s".
std::string DurationText(double microseconds);

// Analyses the dumps. Pure: reads `directory` only.
TraceAnalysis Analyze(const TraceDirectory& directory);

// Returns a report for people: the sentences, then a table.
std::string TraceText(const std::string& path, const TraceDirectory& directory,
                      const TraceAnalysis& analysis);
// Returns one JSON object with the fields dumps, findings, ranks, not_read.
std::string TraceJson(const std::string& path, const TraceDirectory& directory,
                      const TraceAnalysis& analysis);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_DIAGNOSTICS_TRACE_ANALYSIS_H_
