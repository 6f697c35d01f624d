// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_HARNESS_REPLAY_FLAGS_H_
#define TANDEM_BENCH_HARNESS_REPLAY_FLAGS_H_

// The flags of `tandem bench replay`, the cases that they select, and their measurement.
// bench/peers/plain_grpc_replay uses it too, so it does not depend on Tandem's libraries.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace CLI {
class App;
}

namespace tandem::bench {

struct ReplayFlags {
  // Comma-separated lists.
  std::string transports = "in-process,shm,tcp";
  std::string ops = "insert,sample,priorities";
  std::string bytes = "28224,100";
  uint64_t items = 0;  // in the table; 0: DefaultItems
  uint32_t batch = 256;
  double time_ms = 500;
  bool json = false;
};

// The parameters of one measurement. An item is one step of `bytes` bytes.
struct ReplayCase {
  std::string transport;  // "in-process", "shm", "tcp"
  // "insert": into a full table, from which the oldest items leave; "sample": uniform; "priorities": a
  // prioritized sample and an update of the priorities of its items.
  std::string op;
  size_t bytes = 0;
  uint64_t items = 0;     // in the table
  uint32_t per_call = 0;  // items of one call
};

// The system that is measured. Used by one thread.
class ReplayTarget {
 public:
  virtual ~ReplayTarget() = default;
  // Makes a table for the case and fills it with items. Not measured.
  virtual absl::Status Prepare(const ReplayCase& replay_case) = 0;
  // Makes one call of the case and waits for its end, or for that of an earlier one if the system works
  // ahead.
  virtual absl::Status Call() = 0;
};

// Returns how many items of this size a table has if the flags do not say: a million, but at most 128 MiB of
// them.
uint64_t DefaultItems(size_t bytes);
// Returns how many items an insert has: 64, or 16 of more than 8 KiB.
uint32_t ItemsOfInsert(size_t bytes);

// Declares the flags. `flags` must outlive the parsing.
void DeclareReplayFlags(CLI::App* command, ReplayFlags* flags);
// Parses the command line of a program that has no other flags. Returns the exit code if the program must
// end: after --help, or after it has printed an error.
std::optional<int> ParseReplayFlags(const char* description, int argc, char** argv, ReplayFlags* flags);
// Returns the cases that the flags select, by transport, size and operation. InvalidArgument names the flag.
absl::StatusOr<std::vector<ReplayCase>> ReplayCasesOf(const ReplayFlags& flags);
// Makes calls for a fifth of the time to warm up, then measures, and prints a line. Prints a header before
// the first case, which `first` says.
absl::Status MeasureReplay(ReplayTarget* target, const ReplayCase& replay_case, const ReplayFlags& flags,
                           bool first);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_HARNESS_REPLAY_FLAGS_H_
