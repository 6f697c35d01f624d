// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/metrics_options.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/security/job_key.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

class MetricsOptionsTest : public ::testing::Test {
 protected:
  std::string PasswordFile(const std::string& text, mode_t mode = 0600) {
    const std::string path = directory_.path() + "/password";
    std::ofstream(path) << text;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  testing::TempDir directory_;
};

// Returns the access, which must be given.
cluster::HttpAccess AccessOf(const MetricsOptions& options) {
  const auto access = ReadMetricsAccess(options);
  EXPECT_TRUE(access.ok() && access->has_value()) << access.status();
  return access.value_or(std::nullopt).value_or(cluster::HttpAccess());
}

TEST_F(MetricsOptionsTest, AnAddressThatOthersReachAsksForThePasswordOfTheKey) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto none, ReadMetricsAccess({}));
  EXPECT_FALSE(none.has_value());
  for (const char* host : {"127.0.0.1", "127.3.2.1", "::1", "localhost"}) {
    const cluster::HttpAccess access = AccessOf({.port = 7, .host = host});
    EXPECT_EQ(access.host, host);
    EXPECT_EQ(access.port, 7);
    EXPECT_EQ(access.credentials, "");
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(const rpc::JobKey key, rpc::JobKey::Load());
  const std::string of_key = MetricsCredentials(key);
  EXPECT_THAT(of_key, ::testing::MatchesRegex("tandem:[0-9a-f]{32}"));
  EXPECT_NE(of_key, MetricsCredentials(key.ForJob("another")));
  EXPECT_THAT(key.ToText(), ::testing::Not(HasSubstr(of_key.substr(7))));
  for (const char* host : {"0.0.0.0", "10.0.0.1", "::", "ps-0.example", ""}) {
    EXPECT_EQ(AccessOf({.port = 0, .host = host}).credentials, of_key) << host;
    EXPECT_EQ(AccessOf({.port = 0, .host = host, .open = true}).credentials, "");
    EXPECT_EQ(AccessOf({.port = 0, .host = host, .password_file = PasswordFile("a:b")}).credentials, "a:b");
  }
}

// The launcher passes only the port to its servers.
TEST_F(MetricsOptionsTest, VariablesCountUnlessThereIsAFlag) {
  const auto parse = [](std::vector<std::string> args) {
    MetricsOptions options;
    CLI::App app;
    CLI::App* command = app.add_subcommand("serve");
    AddMetricsFlags(command, &options);
    args.insert(args.begin(), "serve");
    std::reverse(args.begin(), args.end());
    app.parse(args);
    return options;
  };
  EXPECT_EQ(parse({}).port, -1);
  EXPECT_EQ(parse({}).host, "127.0.0.1");
  ::setenv("TANDEM_METRICS_LISTEN", "0.0.0.0", 1);
  ::setenv("TANDEM_METRICS_OPEN", "1", 1);
  ::setenv("TANDEM_METRICS_PASSWORD_FILE", "/a/file", 1);
  ::setenv("TANDEM_METRICS_NAMES", "ps0,ps0.example", 1);
  const MetricsOptions of_variables = parse({"--metrics-port", "9464"});
  EXPECT_EQ(of_variables.port, 9464);
  EXPECT_EQ(of_variables.host, "0.0.0.0");
  EXPECT_TRUE(of_variables.open);
  EXPECT_EQ(of_variables.password_file, "/a/file");
  EXPECT_THAT(of_variables.names, ::testing::ElementsAre("ps0", "ps0.example"));
  EXPECT_EQ(parse({"--metrics-listen", "::1"}).host, "::1");
  ::setenv("TANDEM_METRICS_OPEN", "perhaps", 1);
  EXPECT_THROW(parse({}), CLI::ValidationError);
  for (const char* variable : {"TANDEM_METRICS_LISTEN", "TANDEM_METRICS_OPEN", "TANDEM_METRICS_PASSWORD_FILE",
                               "TANDEM_METRICS_NAMES"}) {
    ::unsetenv(variable);
  }
}

TEST_F(MetricsOptionsTest, ThePasswordIsTheFirstLineOfAFileThatOthersCannotRead) {
  for (const char* text : {"scraper:pass:word", "scraper:pass:word\n", "scraper:pass:word\r\nmore\n"}) {
    EXPECT_EQ(AccessOf({.port = 0, .password_file = PasswordFile(text)}).credentials, "scraper:pass:word");
  }
  for (const char* text : {"", "\nscraper:password\n", "password", ":password", "scraper:"}) {
    EXPECT_THAT(ReadMetricsAccess({.port = 0, .password_file = PasswordFile(text)}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("user:password")))
        << text;
  }
  EXPECT_THAT(ReadMetricsAccess({.port = 0, .password_file = PasswordFile("a:b", 0640)}),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("chmod 600")));
  EXPECT_THAT(ReadMetricsAccess({.port = 0, .password_file = directory_.path() + "/none"}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
}

}  // namespace
}  // namespace tandem::cli
