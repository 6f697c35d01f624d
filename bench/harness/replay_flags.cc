// SPDX-License-Identifier: Apache-2.0
#include "bench/harness/replay_flags.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/number_flag.h"
#include "base/status.h"
#include "bench/harness/measure.h"
#include "bench/harness/program_flags.h"
#include "nlohmann/json.hpp"

namespace tandem::bench {
namespace {

constexpr size_t kMaxItemBytes = size_t{16} << 20;
constexpr uint64_t kMaxItems = 100'000'000;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

uint64_t DefaultItems(size_t bytes) { return std::min<uint64_t>(1'000'000, (uint64_t{128} << 20) / bytes); }

uint32_t ItemsOfInsert(size_t bytes) { return bytes > 8192 ? 16 : 64; }

void DeclareReplayFlags(CLI::App* command, ReplayFlags* flags) {
  command->add_option("--transport", flags->transports, "in-process, shm, tcp")->capture_default_str();
  command
      ->add_option(
          "--op", flags->ops,
          "insert, sample (uniform), priorities (a prioritized sample and an update of its priorities)")
      ->capture_default_str();
  command->add_option("--bytes", flags->bytes, "Of an item, which is one step")->capture_default_str();
  LimitTo(Between(1, 1e9), command->add_option("--items", flags->items,
                                               "In the table [a million, or as many as have 128 MiB]"));
  command->add_option("--batch", flags->batch, "Items of a sample")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  LimitTo(Between(1, 3600e3),
          command->add_option("--time-per-case", flags->time_ms, "Milliseconds")->capture_default_str());
  command->add_flag("--json", flags->json, "One JSON object a line");
}

std::optional<int> ParseReplayFlags(const char* description, int argc, char** argv, ReplayFlags* flags) {
  return ParseProgramFlags(description, argc, argv,
                           [flags](CLI::App* app) { DeclareReplayFlags(app, flags); });
}

absl::StatusOr<std::vector<ReplayCase>> ReplayCasesOf(const ReplayFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const auto transports,
                          ParseNameList("--transport", flags.transports, {"in-process", "shm", "tcp"}));
  TANDEM_ASSIGN_OR_RETURN(const auto ops,
                          ParseNameList("--op", flags.ops, {"insert", "sample", "priorities"}));
  std::vector<size_t> sizes;
  for (const absl::string_view part : absl::StrSplit(flags.bytes, ',')) {
    if (!absl::SimpleAtoi(part, &sizes.emplace_back()) || sizes.back() < 8 || sizes.back() > kMaxItemBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("--bytes: '", part, "' is not a number from 8 to ", kMaxItemBytes));
    }
  }
  if (flags.items > kMaxItems || flags.batch < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--items: at most ", kMaxItems, "; --batch: at least 1"));
  }
  std::vector<ReplayCase> cases;
  for (const std::string& transport : transports) {
    for (const size_t size : sizes) {
      for (const std::string& op : ops) {
        cases.push_back({.transport = transport,
                         .op = op,
                         .bytes = size,
                         .items = flags.items > 0 ? flags.items : DefaultItems(size),
                         .per_call = op == "insert" ? ItemsOfInsert(size) : flags.batch});
      }
    }
  }
  return cases;
}

absl::Status MeasureReplay(ReplayTarget* target, const ReplayCase& c, const ReplayFlags& flags, bool first) {
  TANDEM_RETURN_IF_ERROR(target->Prepare(c));
  const double seconds = flags.time_ms / 1e3;
  for (const double end = Seconds() + seconds / 5; Seconds() < end;) TANDEM_RETURN_IF_ERROR(target->Call());
  std::vector<double> calls_us;
  const double begin = Seconds();
  double now = begin;
  do {
    TANDEM_RETURN_IF_ERROR(target->Call());
    const double after = Seconds();
    calls_us.push_back((after - now) * 1e6);
    now = after;
  } while (now < begin + seconds);
  const double items_per_s = static_cast<double>(calls_us.size()) * c.per_call / (now - begin);
  const double gbps = items_per_s * static_cast<double>(c.bytes) / 1e9;
  const Timing timing = Summarize(std::move(calls_us));
  if (flags.json) {
    std::puts(nlohmann::ordered_json{{"transport", c.transport},
                                     {"op", c.op},
                                     {"bytes", c.bytes},
                                     {"items", c.items},
                                     {"per_call", c.per_call},
                                     {"items_per_s", items_per_s},
                                     {"gbps", gbps},
                                     {"median_us", timing.median_us},
                                     {"p99_us", timing.p99_us}}
                  .dump()
                  .c_str());
  } else {
    if (first) {
      std::puts("transport   op          bytes     items a call     items/s     GB/s  median us   p99 us");
    }
    std::puts(absl::StrFormat("%-11s %-10s %6d %9d %6d %11.0f %8.3f %10.1f %8.1f", c.transport, c.op, c.bytes,
                              c.items, c.per_call, items_per_s, gbps, timing.median_us, timing.p99_us)
                  .c_str());
  }
  std::fflush(stdout);
  return absl::OkStatus();
}

}  // namespace tandem::bench
