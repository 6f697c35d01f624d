// SPDX-License-Identifier: Apache-2.0
#include "bench/harness/ps_case.h"

namespace tandem::bench {
namespace {

constexpr PsTransport kTransports[] = {PsTransport::kInProcess, PsTransport::kTcp, PsTransport::kUnix,
                                       PsTransport::kShm};
constexpr PsOp kPsOps[] = {PsOp::kPull, PsOp::kPush, PsOp::kMixed, PsOp::kFairness};
constexpr PsDistribution kDistributions[] = {PsDistribution::kUniform, PsDistribution::kZipf};

}  // namespace

absl::Span<const PsTransport> AllPsTransports() { return kTransports; }
absl::Span<const PsOp> AllPsOps() { return kPsOps; }
absl::Span<const PsDistribution> AllPsDistributions() { return kDistributions; }

absl::string_view Name(PsTransport transport) {
  switch (transport) {
    case PsTransport::kInProcess:
      return "in-process";
    case PsTransport::kTcp:
      return "tcp";
    case PsTransport::kUnix:
      return "unix";
    case PsTransport::kShm:
      return "shm";
  }
  return "";
}

absl::string_view Name(PsOp op) {
  switch (op) {
    case PsOp::kPull:
      return "pull";
    case PsOp::kPush:
      return "push";
    case PsOp::kMixed:
      return "mixed";
    case PsOp::kFairness:
      return "fairness";
  }
  return "";
}

absl::string_view Name(PsDistribution distribution) {
  return distribution == PsDistribution::kUniform ? "uniform" : "zipf";
}

}  // namespace tandem::bench
