#ifndef TANDEM_COLLECTIVES_DIAGNOSTICS_TRACE_ANALYSIS_H_
#define TANDEM_COLLECTIVES_DIAGNOSTICS_TRACE_ANALYSIS_H_

// From the dumps of all ranks to the rank that holds up the others: torch.distributed's flight recorder
// analyser.

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/diagnostics/trace_file.h"

namespace tandem::collectives {

// One thing that is wrong. Ranks are global.
struct TraceFinding {
  enum class Kind {
    kDisagree,  // `ranks` call something else than `waiting` at the same place
    kBehind,    // `ranks` have not called what `waiting` wait in
    kCircle,    // `ranks` wait for each other, through several groups
    kDead,      // `ranks` have left no dump
    kSlow,      // `ranks` have not finished what others have
    kStuck,     // all are in the operation, none comes out
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
  std::vector<TraceFinding> findings;  // the cause before what follows from it; empty: nobody is behind
  // One for each rank of each group.
  struct Row {
    int rank = 0;
    std::string group, backend;
    bool has_dump = false;
    int64_t last_completed = -1;
    std::string now;  // "started all_reduce #4 (sum of f32 x 1024)"; empty: nothing
    double now_us = 0;
    std::string error;
  };
  std::vector<Row> rows;
};

// As findings and reports say it: "1.5s".
std::string DurationText(double microseconds);

// Pure: reads `directory` only.
TraceAnalysis Analyze(const TraceDirectory& directory);

// For people: the sentences, then a table.
std::string TraceText(const std::string& path, const TraceDirectory& directory,
                      const TraceAnalysis& analysis);
// One object: dumps, findings, ranks, not_read.
std::string TraceJson(const std::string& path, const TraceDirectory& directory,
                      const TraceAnalysis& analysis);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_DIAGNOSTICS_TRACE_ANALYSIS_H_
