// SPDX-License-Identifier: Apache-2.0
// Tests what all command lines have in common: the version, help, and the exit code of mistakes.

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RunTandem;
using ::testing::StartsWith;

TEST(CommandTest, VersionIsPrinted) {
  const Finished finished = RunTandem({"--version"});
  EXPECT_EQ(finished.exit_code, 0);
  EXPECT_THAT(finished.out, StartsWith("tandem 0."));
}

TEST(CommandTest, HelpListsTheCommands) {
  const Finished finished = RunTandem({"--help"});
  EXPECT_EQ(finished.exit_code, 0);
  EXPECT_THAT(finished.out, AllOf(HasSubstr("run"), HasSubstr("ps"), HasSubstr("ckpt"), HasSubstr("data")));
}

TEST(CommandTest, BadCommandLinesAreRefusedWithCodeTwo) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{},
                                             {"fly"},
                                             {"run"},
                                             {"run", "--"},
                                             {"run", "--ps", "-1", "--", "true"},
                                             {"run", "--workers", "0", "--", "true"},
                                             {"run", "--workers", "x", "--", "true"},
                                             {"run", "--wrokers", "2", "--", "true"},
                                             {"ps", "--num-servers", "0"},
                                             {"ckpt"},
                                             {"ckpt", "ls"},
                                             {"data"}}) {
    const Finished finished = RunTandem(args);
    EXPECT_EQ(finished.exit_code, 2) << ::testing::PrintToString(args);
    EXPECT_FALSE(finished.err.empty()) << ::testing::PrintToString(args);
  }
}

TEST(CommandTest, ABadVariableIsNamedByTheCommandThatReadsIt) {
  const struct {
    std::vector<std::string> args;
    const char* variable;
    const char* value;
  } kCases[] = {
      {{"ps", "--num-servers", "1"}, "TANDEM_PS_THREADS", "many"},
      {{"ps", "--num-servers", "1"}, "TANDEM_PS_THREADS", "5000"},
      {{"ps", "--num-servers", "1"}, "TANDEM_PS_MAX_PARKED", "7"},
      {{"run", "--", "true"}, "PET_NODE_RANK", "x"},
      {{"run", "--", "true"}, "PET_NNODES", "2:1"},
      {{"run", "--", "true"}, "PET_SIGNALS_TO_HANDLE", "SIGKILL"},
      {{"run", "--", "true"}, "PET_RDZV_BACKEND", "foo"},
  };
  for (const auto& one : kCases) {
    const Finished finished = RunTandem(one.args, {{one.variable, one.value}});
    EXPECT_EQ(finished.exit_code, 2) << one.variable;
    EXPECT_THAT(finished.err, AllOf(HasSubstr(one.variable), HasSubstr(one.value)));
  }
}

TEST(CommandTest, VariablesOfOtherCommandsAreNotRead) {
  const std::map<std::string, std::string> bad = {{"TANDEM_PS_THREADS", "many"},
                                                  {"TANDEM_PS_MAX_PARKED", "7"},
                                                  {"PET_NODE_RANK", "x"},
                                                  {"PET_NNODES", "?"}};
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"ckpt", "ls", "/no/such/folder"}, {"data", "/no/such/file"}}) {
    const Finished finished = RunTandem(args, bad);
    EXPECT_THAT(finished.err, Not(AnyOf(HasSubstr("TANDEM_PS"), HasSubstr("--threads"), HasSubstr("PET_"),
                                        HasSubstr("--node-rank"))));
    EXPECT_EQ(finished.err, RunTandem(args).err);
  }
}

TEST(CommandTest, AFlagOverridesItsVariableHoweverBadThatIs) {
  const testing::TempDir dir;
  const Finished finished = RunTandem({"run", "--nnodes", "1", "--log-dir", dir.path(), "--", "true"},
                                      {{"PET_NNODES", "?"}, {"PET_MONITOR_INTERVAL", ""}});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
}

TEST(CommandTest, AnUnknownRendezvousIsNamedBeforeWhatItLacks) {
  const Finished finished = RunTandem({"run", "--nnodes", "2", "--rdzv-backend", "foo", "--", "true"});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.err, HasSubstr("--rdzv-backend foo is not known: expected static, c10d or etcd"));
}

TEST(CommandTest, TheHelpOfRunListsAllKeysOfTheRendezvous) {
  const std::string help = RunTandem({"run", "--help"}).out;
  for (const char* key :
       {"join_timeout", "last_call_timeout", "close_timeout", "keep_alive_interval", "keep_alive_max_attempt",
        "lease", "rank", "is_host", "cacert", "cert", "protocol", "etcd_prefix", "etcd_lease"}) {
    EXPECT_THAT(help, HasSubstr(key));
  }
}

TEST(CommandTest, AScriptThatDoesNotExistEndsWithTheCodeOfAMissingProgram) {
  const testing::TempDir dir;
  const Finished finished = RunTandem({"run", "--log-dir", dir.path(), "no_such_script.py"});
  EXPECT_EQ(finished.exit_code, 127);
  EXPECT_THAT(finished.err, HasSubstr("there is no program 'no_such_script.py'"));
}

TEST(CommandTest, APortThatIsTakenIsReportedOnceAndNotByGrpc) {
  const int holder = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(::bind(holder, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(holder, 1), 0);
  ASSERT_EQ(::getsockname(holder, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string port = absl::StrCat(ntohs(address.sin_port));
  const Finished finished = RunTandem({"store", "--listen", absl::StrCat("127.0.0.1:", port)});
  ::close(holder);
  EXPECT_NE(finished.exit_code, 0);
  EXPECT_THAT(finished.err, AllOf(HasSubstr(port), Not(HasSubstr(".cc:"))));
}

}  // namespace
}  // namespace tandem::cli
