// SPDX-License-Identifier: Apache-2.0
#include "cluster/metrics/process_metrics.h"

#include <ctime>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"

namespace tandem::cluster {
namespace {

TEST(ProcessMetrics, TheFiguresOfTheProcessAreThoseOfThisProcess) {
  const std::string page = ProcessMetricsText();
  const auto value = [&](const std::string& name) {
    for (absl::string_view line : absl::StrSplit(page, '\n')) {
      double number = 0;
      if (absl::ConsumePrefix(&line, name + " ") && absl::SimpleAtod(line, &number)) return number;
    }
    ADD_FAILURE() << "no " << name;
    return 0.0;
  };
  EXPECT_GT(value("process_cpu_seconds_total"), 0);
  EXPECT_GT(value("process_resident_memory_bytes"), 1 << 20);
  EXPECT_GT(value("process_virtual_memory_bytes"), value("process_resident_memory_bytes"));
  EXPECT_GE(value("process_open_fds"), 3);  // the standard ones
  EXPECT_GE(value("process_max_fds"), value("process_open_fds"));
  const auto now = static_cast<double>(::time(nullptr));
  EXPECT_LE(value("process_start_time_seconds"), now + 2);
  EXPECT_GT(value("process_start_time_seconds"), now - 3600);
}

}  // namespace
}  // namespace tandem::cluster
