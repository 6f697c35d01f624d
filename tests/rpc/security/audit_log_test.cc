// SPDX-License-Identifier: Apache-2.0
#include "rpc/security/audit_log.h"

#include <sys/stat.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/read_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::rpc {
namespace {

class AuditLogTest : public ::testing::Test {
 protected:
  std::vector<nlohmann::json> Lines() const {
    std::vector<nlohmann::json> lines;
    for (const absl::string_view line : absl::StrSplit(*ReadFile(path_), '\n', absl::SkipEmpty())) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  }

  const tandem::testing::TempDir dir_;
  const std::string path_ = dir_.File("audit.jsonl");
};

TEST_F(AuditLogTest, ALineSaysWhoWasRefusedWhatAndWhy) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto log, AuditLog::Open(path_));
  log->Record({.server = "ps/0",
               .method = "tandem.v1.Store/Set",
               .credential = "key 0123456789",
               .caller = "worker/\xff\"\n",
               .peer = "ipv4:10.0.0.7:4711",
               .verdict = absl::PermissionDeniedError("no")});
  log->Record(
      {.server = "ps/0", .method = "m", .credential = "k", .caller = "c", .peer = "p", .verdict = {}});
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["verdict"], "refused");
  EXPECT_EQ(lines[0]["reason"], "no");
  EXPECT_EQ(lines[0]["method"], "tandem.v1.Store/Set");
  EXPECT_EQ(lines[0]["caller"], "worker/\xEF\xBF\xBD\"\n");
  EXPECT_EQ(lines[1]["verdict"], "allowed");
  EXPECT_FALSE(lines[1].contains("reason"));
  struct stat facts = {};
  ASSERT_EQ(::stat(path_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777u, 0600u);
}

TEST_F(AuditLogTest, AStrangerCannotFillTheDiskWithRefusalsButHidesNoAllowedCall) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto log, AuditLog::Open(path_));
  for (int i = 0; i < 5000; ++i) log->Record({.verdict = absl::PermissionDeniedError("no")});
  log->Record({.method = "allowed", .verdict = {}});
  const auto lines = Lines();
  // As many for each second that the loop took, and the number of the others.
  EXPECT_LT(lines.size(), 1000u);
  EXPECT_EQ(lines.back()["method"], "allowed");
}

TEST_F(AuditLogTest, ALinkIsNotFollowed) {
  ASSERT_EQ(::symlink(dir_.File("elsewhere").c_str(), path_.c_str()), 0);
  EXPECT_FALSE(AuditLog::Open(path_).ok());
}

}  // namespace
}  // namespace tandem::rpc
