// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_SUITES_ROW_BENCH_H_
#define TANDEM_BENCH_SUITES_ROW_BENCH_H_

// `tandem bench rows`: measures how much memory a table of many rows takes in this process, and how fast its
// rows are created, read and updated, without RPC.

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
  uint64_t batch = 4096;              // ids per call
  int threads = 1;                    // threads that read or update concurrently
  double seconds = 3;                 // duration of reading, and also of updating
};

struct RowBenchResult {
  // Rows created per second by one thread, including initial values and optimizer state.
  double load_rows_per_s = 0;
  double lookup_rows_per_s = 0;  // random ids, sum over all threads
  double update_rows_per_s = 0;
  // Longest time that an exclusive lock was held while rows were created.
  double load_longest_pause_us = 0;
  // Longest such time until the end of the benchmark.
  double longest_pause_us = 0;
  uint64_t table_bytes = 0;  // as counted by the table
  // Memory of the whole process when all rows are created, as counted by the kernel.
  uint64_t resident_bytes = 0;
};

// Returns the configuration of the table that the options select. InvalidArgument names the flag.
absl::StatusOr<v1::TableConfig> TableOf(const RowBenchOptions& options);
// Returns the bytes of embedding and optimizer state in a row; `config` is TableOf(options).
uint64_t PayloadBytes(const v1::TableConfig& config);
// Returns ResourceExhausted, with the amount that is missing, if the machine has less than `bytes` of memory
// left.
absl::Status CheckMemoryFor(uint64_t bytes, const launcher::Machine& machine);

// Creates the rows, then reads and updates them. Takes minutes for a hundred million rows. Returns the errors
// of the functions above.
absl::StatusOr<RowBenchResult> RunRowBench(const RowBenchOptions& options, const launcher::Machine& machine);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_ROW_BENCH_H_
