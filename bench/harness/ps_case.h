// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_HARNESS_PS_CASE_H_
#define TANDEM_BENCH_HARNESS_PS_CASE_H_

// The measurements of `tandem bench ps`: one kind of call, of one size, between a number of servers and
// workers, over one transport.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem::bench {

// How a worker reaches the table. kInProcess: the worker owns the table, and there is no server.
enum class PsTransport { kInProcess, kTcp, kUnix, kShm };
// Kinds of calls. kMixed: pulls and pushes in turn. kFairness: one worker pulls, first alone and then while
// another one pushes as fast as it can.
enum class PsOp { kPull, kPush, kMixed, kFairness };
enum class PsDistribution { kUniform, kZipf };

absl::Span<const PsTransport> AllPsTransports();
absl::Span<const PsOp> AllPsOps();
absl::Span<const PsDistribution> AllPsDistributions();
absl::string_view Name(PsTransport transport);        // "in-process"
absl::string_view Name(PsOp op);                      // "pull"
absl::string_view Name(PsDistribution distribution);  // "uniform"

// The exponent of PsDistribution::kZipf: the k-th most frequent id is drawn with a probability proportional
// to k^-kZipfExponent.
inline constexpr double kZipfExponent = 1.05;

// The parameters of one measurement.
struct PsCase {
  PsTransport transport = PsTransport::kTcp;
  PsOp op = PsOp::kPull;
  size_t ids = 0;  // distinct ids of one call
  uint32_t dim = 0;
  int servers = 1;  // 0: in process
  int workers = 1;
  int in_flight = 1;   // calls that a worker keeps in flight
  bool reads = false;  // pulls are read-only, so that followers may answer them
  PsDistribution distribution = PsDistribution::kUniform;
};

// Cases that the same processes measure, one after the other.
struct PsGroup {
  uint32_t dim = 0;
  int servers = 1;
  int workers = 1;
  std::vector<PsCase> cases;  // cases of one transport are adjacent
};

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_HARNESS_PS_CASE_H_
