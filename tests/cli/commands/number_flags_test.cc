// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "bench/suites/commands.h"
#include "cli/commands/commands.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/processes/tandem_process.h"

namespace tandem::cli {
namespace {

using testing::Finished;
using ::testing::HasSubstr;
using testing::RunTandem;

// Calls visit(name, option) for each flag of `command` and below whose value is a number.
void ForEachNumber(CLI::App* command, const std::string& path,
                   const std::function<void(const std::string&, CLI::Option*)>& visit) {
  for (CLI::Option* option : command->get_options([](CLI::Option*) { return true; })) {
    if (option->get_group().empty()) continue;  // for the processes that the command starts
    const std::string type = option->get_type_name();
    for (const char* number : {"INT", "UINT", "FLOAT"}) {
      if (type == number || absl::StartsWith(type, absl::StrCat(number, ":"))) {
        visit(absl::StrCat(path, " ", option->get_name()), option);
      }
    }
  }
  for (CLI::App* below : command->get_subcommands([](CLI::App*) { return true; })) {
    ForEachNumber(below, absl::StrCat(path, " ", below->get_name()), visit);
  }
}

// Returns whether the parser accepts `value`, and its message if it does not.
bool Accepts(CLI::Option* option, const std::string& value, std::string* message) {
  option->clear();
  option->add_result(value);
  try {
    option->run_callback();
  } catch (const CLI::ParseError& e) {
    *message = e.what();
    return false;
  }
  return true;
}

TEST(NumberFlagsTest, BenchAndDataRefuseNumbersThatMakeNoSense) {
  CommandContext context;
  CLI::App app;
  AddData(app, &context);
  bench::AddBench(app, &context);
  // Where 0 means something.
  const std::set<std::string> zero = {
      "bench train --dense",       "bench train --warmup", "bench train --zipf",
      "data planted --dense",      "data planted --zipf",  "data planted --interaction-stddev",
      "data planted --seed",       "data planted --test",  "data planted --valid",
      "data planted --split-seed", "bench ps --max-lag",   "bench subscription --interval-ms",
      "bench subscription --rate"};
  std::set<std::string> seen_zero;
  int flags = 0;
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    ForEachNumber(command, command->get_name(), [&](const std::string& name, CLI::Option* option) {
      ++flags;
      std::string message;
      EXPECT_FALSE(Accepts(option, "-1", &message)) << name;
      EXPECT_THAT(message, HasSubstr(option->get_name())) << name;
      EXPECT_LT(message.size(), 200u) << message;
      EXPECT_FALSE(Accepts(option, "-0.001", &message)) << name;
      for (const char* huge : {"99999999999999999999999", "1e300", "inf", "nan"}) {
        EXPECT_FALSE(Accepts(option, huge, &message)) << name << " " << huge;
        EXPECT_LT(message.size(), 200u) << message;
      }
      if (Accepts(option, "0", &message)) seen_zero.insert(name);
    });
  }
  EXPECT_EQ(seen_zero, zero);
  EXPECT_GT(flags, 40);
}

TEST(NumberFlagsTest, TheProgramNamesTheFlagAndTheLimitAtOnce) {
  struct Case {
    std::vector<std::string> args;
    const char* message;
  };
  const Case cases[] = {
      {{"bench", "train", "--workers", "0"}, "--workers: 0 is not a number in [1, 256]"},
      {{"bench", "train", "--steps", "-1"}, "--steps: -1 is not a number in [1, 1000000]"},
      {{"bench", "train", "--batch", "0"}, "--batch: 0 is not a number in [1, 2^24]"},
      {{"bench", "train", "--mode", "fast"}, "--mode"},
      {{"bench", "rows", "--threads", "0"}, "--threads: 0 is not a number in [1, 1024]"},
      {{"bench", "allreduce", "--repeats", "0"}, "--repeats: 0 is not"},
      {{"bench", "ps", "--ids", "0"}, "--ids: '0' is not a number from 1"},
      {{"bench", "ps", "--workers", "-1"}, "--workers: '-1' is not a number from 1"},
      {{"bench", "rpc", "--in-flight", "0"}, "--in-flight: '0' is not a number from 1"},
      {{"bench", "rpc", "--bytes", "-1"}, "--bytes: '-1' is not a number from 0"},
      {{"bench", "allreduce", "--sizes", "-1"}, "--sizes"},
      {{"data", "planted", "--rows", "0", "--out", "/nonexistent/x"}, "--rows: 0 is not"},
  };
  for (const Case& c : cases) {
    const Finished finished = RunTandem(c.args);
    EXPECT_EQ(finished.exit_code, 2) << c.message;
    EXPECT_THAT(finished.err + finished.out, HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace tandem::cli
