// SPDX-License-Identifier: Apache-2.0
#include "bench/harness/ps_report.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace tandem::bench {
namespace {

using Json = nlohmann::ordered_json;

Json Describe(const PsCase& c) {
  return {{"transport", std::string(Name(c.transport))},
          {"op", std::string(Name(c.op))},
          {"ids", c.ids},
          {"dim", c.dim},
          {"servers", c.servers},
          {"workers", c.workers},
          {"in_flight", c.in_flight},
          {"distribution", std::string(Name(c.distribution))}};
}

std::string Columns(const PsCase& c) {
  return absl::StrFormat("%-10s %-8s %6d %4d %7s %9d %-8s", Name(c.transport), Name(c.op), c.ids, c.dim,
                         absl::StrCat(c.servers, "x", c.workers), c.in_flight, Name(c.distribution));
}

void Write(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

constexpr char kColumns[] = "transport  op          ids  dim srv x w in flight ids are ";

}  // namespace

void Print(const PsCase& c, const PsResult& r, bool json) {
  if (json) {
    Json object = Describe(c);
    object["keys_per_s"] = r.keys_per_s;
    object["median_us"] = r.call.median_us;
    object["p99_us"] = r.call.p99_us;
    object["client_cpu_s_per_mkeys"] = r.client_cpu_s_per_mkeys;
    object["server_cpu_s_per_mkeys"] = r.server_cpu_s_per_mkeys;
    if (r.plain_keys_per_s.has_value()) {
      object["plain_keys_per_s"] = *r.plain_keys_per_s;
      object["plain_ratio"] = r.keys_per_s / *r.plain_keys_per_s;
    }
    return Write(object.dump());
  }
  std::string line =
      absl::StrFormat("%s %9.3f %10.1f %10.1f %12.4f %12.4f", Columns(c), r.keys_per_s / 1e6,
                      r.call.median_us, r.call.p99_us, r.client_cpu_s_per_mkeys, r.server_cpu_s_per_mkeys);
  if (r.plain_keys_per_s.has_value()) {
    absl::StrAppendFormat(&line, "   %.2f of a plain gather's %.3f", r.keys_per_s / *r.plain_keys_per_s,
                          *r.plain_keys_per_s / 1e6);
  }
  Write(line);
}

void Print(const PsCase& c, const FairnessResult& r, bool json) {
  if (json) {
    Json object = Describe(c);
    object["idle_p50_us"] = r.idle.median_us;
    object["idle_p99_us"] = r.idle.p99_us;
    object["loaded_p50_us"] = r.loaded.median_us;
    object["loaded_p99_us"] = r.loaded.p99_us;
    object["p99_ratio"] = r.ratio();
    object["pushed_keys_per_s"] = r.pushed_keys_per_s;
    return Write(object.dump());
  }
  Write(absl::StrFormat("%s %10.1f %10.1f %10.1f %10.1f %6.2f %14.3f", Columns(c), r.idle.median_us,
                        r.idle.p99_us, r.loaded.median_us, r.loaded.p99_us, r.ratio(),
                        r.pushed_keys_per_s / 1e6));
}

void PrintPsHeader() {
  Write(absl::StrFormat("%s %9s %10s %10s %12s %12s", kColumns, "Mkeys/s", "median us", "p99 us",
                        "worker s/Mk", "server s/Mk"));
}

void PrintFairnessHeader() {
  Write(absl::StrFormat("%s %10s %10s %10s %10s %6s %14s", kColumns, "idle p50", "idle p99", "loaded p50",
                        "loaded p99", "ratio", "pushed Mkeys/s"));
}

}  // namespace tandem::bench
