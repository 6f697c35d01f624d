// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using testing::RunTandem;

class CertTest : public ::testing::Test {
 protected:
  CertTest() {
    const Finished made = RunTandem({"cert", "ca", "--out", ca_, "--name", "our cluster"});
    EXPECT_EQ(made.exit_code, 0) << made.err;
  }
  // Returns the variables of a process with a certificate of the authority in `ca`.
  std::map<std::string, std::string> Issued(const std::string& ca, const std::string& name) const {
    const std::string out = dir_.File(name);
    const Finished made = RunTandem({"cert", "issue", "--ca", ca, "--name", name, "--out", out});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    return {{"TANDEM_TLS_CERT", out + "/tls.crt"},
            {"TANDEM_TLS_KEY", out + "/tls.key"},
            {"TANDEM_TLS_CA", out + "/ca.crt"}};
  }

  const testing::TempDir dir_;
  const std::string ca_ = dir_.File("ca");
};

TEST_F(CertTest, AJobOverTcpRunsWithFilesInPlaceOfDerivedCertificates) {
  const auto files = Issued(ca_, "node1");
  const Finished job =
      RunTandem({"run", "--ps", "1", "--workers", "1", "--local-addr", "127.0.0.1", "--log-dir",
                 dir_.File("logs"), "--", "/bin/sh", "-c", absl::StrCat(TANDEM_BINARY, " status")},
                files);
  EXPECT_EQ(job.exit_code, 0) << job.err;
  EXPECT_THAT(job.out, HasSubstr("ps/0")) << job.err;
}

// It has the job's key, and still is a stranger: the authority decides who connects.
TEST_F(CertTest, AProcessOfAnotherAuthorityEndsInTheHandshake) {
  ASSERT_EQ(RunTandem({"cert", "ca", "--out", dir_.File("other")}).exit_code, 0);
  const auto own = Issued(ca_, "node1"), other = Issued(dir_.File("other"), "stranger");
  std::string set;
  for (const auto& [name, value] : other) absl::StrAppend(&set, name, "=", value, " ");
  const Finished job = RunTandem(
      {"run", "--ps", "1", "--workers", "1", "--local-addr", "127.0.0.1", "--log-dir", dir_.File("logs"),
       "--", "/bin/sh", "-c", absl::StrCat(set, TANDEM_BINARY, " status; test $? = 1")},
      own);
  EXPECT_EQ(job.exit_code, 0) << job.err;
  EXPECT_THAT(job.err + job.out, HasSubstr("certificate"));
}

TEST_F(CertTest, FilesSayWhatTheyAreAndKeysAreKeptFromOthers) {
  (void)Issued(ca_, "node1");
  const Finished own = RunTandem({"cert", "show", dir_.File("node1/tls.crt")});
  EXPECT_THAT(own.out, AllOf(HasSubstr("our cluster"), HasSubstr("for servers and clients"),
                             HasSubstr("DNS:tandem"), HasSubstr("tandem://node1")));
  EXPECT_THAT(RunTandem({"cert", "show", ca_ + "/ca.crt"}).out, HasSubstr("an authority"));
  for (const char* file : {"node1/tls.key", "ca/tls.key"}) {
    struct stat facts = {};
    ASSERT_EQ(::stat(dir_.File(file).c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777u, 0600u) << file;
  }
}

TEST_F(CertTest, MistakesAreNamed) {
  EXPECT_THAT(RunTandem({"cert", "ca", "--out", ca_}).err, HasSubstr("already"));
  EXPECT_THAT(RunTandem({"cert", "issue", "--ca", dir_.path(), "--name", "n", "--out", dir_.File("n")}).err,
              HasSubstr("ca.crt"));
  EXPECT_THAT(RunTandem({"cert", "show", "/etc/hostname"}).err, HasSubstr("no certificate"));
  EXPECT_THAT(RunTandem({"store", "--listen", "127.0.0.1:0"}, {{"TANDEM_TLS_CERT", "x"}}).err,
              HasSubstr("all or none"));
}

}  // namespace
}  // namespace tandem::cli
