#ifndef TANDEM_BENCH_SUITES_ROW_BENCH_H_
#define TANDEM_BENCH_SUITES_ROW_BENCH_H_

// `tandem bench rows`: how much memory a table of many rows takes in this process, and how fast its rows are
// made, read and updated, with no wire between.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/host/machine.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::bench {

struct RowBenchOptions {
  uint64_t rows = 1'000'000;
  uint32_t dim = 16;
  std::string row_type = "f32";       // f32, f16 or bf16
  std::string optimizer = "adagrad";  // sgd, adagrad, rowwise_adagrad or adam
  uint64_t batch = 4096;              // ids a call
  int threads = 1;                    // that read or update at once
  double seconds = 3;                 // of reading, and of updating
};

struct RowBenchResult {
  double load_rows_per_s = 0;    // made by one thread, initial values and state included
  double lookup_rows_per_s = 0;  // of random ids, all threads together
  double update_rows_per_s = 0;
  double load_longest_pause_us = 0;  // the longest that one lock was held alone while rows were made
  double longest_pause_us = 0;       // and to the end
  uint64_t table_bytes = 0;          // as the table counts them
  uint64_t resident_bytes = 0;       // of the whole process when all rows are made, as the system counts them
};

// The table that the options ask for. InvalidArgument names the flag.
absl::StatusOr<v1::TableConfig> TableOf(const RowBenchOptions& options);
// Bytes of embedding and optimizer state in a row; `config` is TableOf(options).
uint64_t PayloadBytes(const v1::TableConfig& config);
// ResourceExhausted when the machine has not that much memory left; says what is missing.
absl::Status CheckMemoryFor(uint64_t bytes, const launcher::Machine& machine);

// Makes the rows, reads and updates them. Takes minutes for a hundred million. Errors as above.
absl::StatusOr<RowBenchResult> RunRowBench(const RowBenchOptions& options, const launcher::Machine& machine);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_ROW_BENCH_H_
