// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_DIAGNOSTICS_TRACE_FILE_H_
#define TANDEM_COLLECTIVES_DIAGNOSTICS_TRACE_FILE_H_

// Reads the dumps of flight recorders.

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::collectives {

// The following structs are plain values with the fields of a dump, which docs/debugging.md describes. Names
// that end in unix_us are microseconds since the Unix epoch; -1 as a sequence number means none.

// One operation.
struct TraceEntry {
  uint32_t group = 0;     // TraceGroup::number
  uint64_t sequence = 0;  // counts the group's collectives, or its point-to-point operations, from 0
  bool point_to_point = false;
  std::string op, dtype, reduce;
  uint64_t count = 0;
  bool even = true;
  uint64_t parts_hash = 0;
  int64_t root = 0;  // point to point: the peer; ranks of the group
  uint64_t tag = 0;
  std::string state;  // queued, started, completed, failed
  int64_t ended_unix_us = 0;
  double duration_us = 0;  // until the end, or until the dump
  std::string error;
  std::string description;

  bool completed() const { return state == "completed"; }
  // The fields that must be equal on all ranks.
  auto signature() const { return std::tie(op, dtype, reduce, count, even, parts_hash, root); }
};

// One group, as one rank sees it.
struct TraceGroup {
  uint32_t number = 0;
  std::string name, backend;
  int rank = 0;                                   // of the rank that left the dump, in this group
  std::vector<int> global_ranks;                  // by rank of the group
  bool closed = false;                            // the rank has destroyed the group
  int64_t last_issued = -1, last_completed = -1;  // sequence numbers of collectives
};

// The dump of one rank.
struct Trace {
  std::string file;  // without the directory
  int rank = 0;      // global
  int64_t pid = 0;
  std::string host, reason;
  int64_t dumped_unix_us = 0;
  std::vector<TraceGroup> groups;
  std::vector<TraceEntry> entries;  // oldest first
};

// Parses a dump. InvalidArgument says what is wrong with the text: truncated, no dump, or of a newer format.
absl::StatusOr<Trace> ParseTrace(absl::string_view text);

// All dumps in a directory.
struct TraceDirectory {
  std::vector<Trace> traces;  // by rank; the newest if a rank has left several
  struct NotRead {
    std::string file, why;
  };
  std::vector<NotRead> not_read;
};

// Reads all dumps in a directory. NotFound if there is no directory or no dump in it; not_read names files
// that cannot be read.
absl::StatusOr<TraceDirectory> ReadTraces(const std::string& directory);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_DIAGNOSTICS_TRACE_FILE_H_
