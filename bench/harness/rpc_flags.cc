// SPDX-License-Identifier: Apache-2.0
#include "bench/harness/rpc_flags.h"

#include <algorithm>
#include <cstdio>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/number_flag.h"
#include "base/status.h"
#include "bench/harness/program_flags.h"
#include "nlohmann/json.hpp"

namespace tandem::bench {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;
constexpr size_t kMaxCallsInFlight = 4096;
// Limit on the bytes of echoes in flight at the same time; more would only fill queues.
constexpr size_t kMaxBytesInFlight = size_t{64} << 20;

absl::StatusOr<std::vector<size_t>> ParseNumbers(const char* flag, const std::string& text, size_t min,
                                                 size_t max) {
  std::vector<size_t> numbers;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    size_t number = 0;
    if (!absl::SimpleAtoi(part, &number) || number < min || number > max) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, ": '", part, "' is not a number from ", min, " to ", max));
    }
    numbers.push_back(number);
  }
  return numbers;
}

double Percentile(const std::vector<double>& sorted, double part) {
  if (sorted.empty()) return 0;
  return sorted[std::min(sorted.size() - 1, static_cast<size_t>(part * static_cast<double>(sorted.size())))];
}

}  // namespace

void DeclareRpcFlags(CLI::App* command, RpcFlags* flags) {
  command->add_option("--transport", flags->transports, "tcp, unix, shm, direct (within the process)")
      ->capture_default_str();
  command->add_option("--kind", flags->kinds, "empty, pooled (run on another thread), echo (of a tensor)")
      ->capture_default_str();
  command->add_option("--bytes", flags->bytes, "Of echoed tensors")->capture_default_str();
  command->add_option("--in-flight", flags->in_flight, "Calls under way at a time; 1: blocking calls")
      ->capture_default_str();
  LimitTo(Between(1, 3600e3),
          command->add_option("--time-per-case", flags->time_ms, "Milliseconds")->capture_default_str());
  command->add_flag("--json", flags->json, "One JSON object a line");
}

std::optional<int> ParseRpcFlags(const char* description, int argc, char** argv, RpcFlags* flags) {
  return ParseProgramFlags(description, argc, argv, [flags](CLI::App* app) { DeclareRpcFlags(app, flags); });
}

absl::StatusOr<std::vector<RpcCase>> RpcCasesOf(const RpcFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const auto transports,
                          ParseNameList("--transport", flags.transports, {"tcp", "unix", "shm", "direct"}));
  TANDEM_ASSIGN_OR_RETURN(const auto kinds,
                          ParseNameList("--kind", flags.kinds, {"empty", "pooled", "echo"}));
  TANDEM_ASSIGN_OR_RETURN(const auto bytes, ParseNumbers("--bytes", flags.bytes, 0, kMaxBytes));
  TANDEM_ASSIGN_OR_RETURN(const auto in_flight,
                          ParseNumbers("--in-flight", flags.in_flight, 1, kMaxCallsInFlight));
  if (!(flags.time_ms >= 1 && flags.time_ms <= 3600e3)) {
    return absl::InvalidArgumentError("--time-per-case: from 1 to 3600000 milliseconds");
  }
  std::vector<RpcCase> cases;
  for (const std::string& transport : transports) {
    for (const std::string& kind : kinds) {
      for (const size_t size : kind == "echo" ? bytes : std::vector<size_t>{0}) {
        for (const size_t calls : in_flight) {
          if (calls > 1 && calls * size > kMaxBytesInFlight) continue;
          cases.push_back({transport, kind, size, static_cast<int>(calls)});
        }
      }
    }
  }
  return cases;
}

void PrintRpcHeader() {
  std::printf("transport kind        bytes in flight     calls/s     GB/s   p50 us   p99 us\n");
  std::fflush(stdout);
}

void PrintRpcResult(const RpcCase& c, RpcResult result, bool json) {
  std::sort(result.latencies_us.begin(), result.latencies_us.end());
  const double calls_per_s = static_cast<double>(result.latencies_us.size()) / result.seconds;
  const double gbps = calls_per_s * static_cast<double>(c.bytes) / 1e9;
  const double p50 = Percentile(result.latencies_us, 0.5), p99 = Percentile(result.latencies_us, 0.99);
  std::string line;
  if (json) {
    line =
        nlohmann::ordered_json{
            {"transport", c.transport},   {"kind", c.kind}, {"bytes", c.bytes}, {"in_flight", c.in_flight},
            {"calls_per_s", calls_per_s}, {"gbps", gbps},   {"p50_us", p50},    {"p99_us", p99}}
            .dump();
  } else {
    line = absl::StrFormat("%-9s %-6s %10d %9d %11.0f %8.3f %8.1f %8.1f", c.transport, c.kind, c.bytes,
                           c.in_flight, calls_per_s, gbps, p50, p99);
  }
  std::puts(line.c_str());
  std::fflush(stdout);
}

}  // namespace tandem::bench
