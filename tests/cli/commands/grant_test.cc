// SPDX-License-Identifier: Apache-2.0
// A process outside of a job that has a grant for the job's servers.

#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/read_file.h"
#include "cluster/store/store_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "ps/client/client.h"
#include "ps/table.h"
#include "rpc/connect.h"
#include "rpc/security/grant.h"
#include "rpc/security/transport_security.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using testing::kTestTimeout;
using testing::RunTandem;
using testing::StatusIs;
using testing::TandemProcess;

constexpr absl::StatusCode kDenied = absl::StatusCode::kPermissionDenied;

// A parameter server with the tables "user" and "item", and clients in this process.
class GrantCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TANDEM_ASSERT_OK_AND_ASSIGN(store_, cluster::StoreServer::Start("127.0.0.1:0"));
    server_ = std::make_unique<TandemProcess>(
        std::vector<std::string>{"ps", "--index", "0", "--num-servers", "1", "--listen", "127.0.0.1:0"},
        std::map<std::string, std::string>{{"TANDEM_STORE", store()}, {"TANDEM_AUDIT_FILE", audit_}});
    ASSERT_TRUE(server_->WaitForOutput("serving at ")) << server_->err();
    TANDEM_ASSERT_OK_AND_ASSIGN(address_, store_->store()->Get("ps/0", kTestTimeout));
    TANDEM_ASSERT_OK_AND_ASSIGN(member_, Connect({}));
    for (const char* name : {"user", "item"}) {
      ps::v1::TableConfig table = ps::EmbeddingTable(name, 2, ps::Sgd(1), ps::Zeros());
      *table.mutable_update_mode() = ps::Async();
      TANDEM_ASSERT_OK(member_->CreateTable(table));
    }
  }
  void TearDown() override { rpc::SetProcessCredential({}); }

  std::string store() const { return absl::StrCat("127.0.0.1:", store_->port()); }

  // Returns a client with the grant that `tandem grant` prints for `arguments`; with {}: with the job's key.
  absl::StatusOr<std::unique_ptr<ps::Client>> Connect(const std::vector<std::string>& arguments) {
    rpc::SetProcessCredential({});
    if (!arguments.empty()) {
      std::vector<std::string> command = {"grant"};
      command.insert(command.end(), arguments.begin(), arguments.end());
      const Finished made = RunTandem(command);
      EXPECT_EQ(made.exit_code, 0) << made.err;
      printed_ = made.out;
      TANDEM_ASSIGN_OR_RETURN(rpc::Grant grant, rpc::Grant::FromText(made.out, "the command"));
      rpc::SetProcessCredential(
          {.key = nullptr, .grant = std::make_shared<const rpc::Grant>(std::move(grant))});
    }
    std::vector<std::unique_ptr<rpc::Channel>> channels(1);
    TANDEM_ASSIGN_OR_RETURN(channels[0], rpc::Connect(address_));
    TANDEM_ASSIGN_OR_RETURN(auto client, ps::Client::Connect(std::move(channels), {.timeout = kTestTimeout}));
    for (const char* name : {"user", "item"}) {
      if (!arguments.empty()) TANDEM_RETURN_IF_ERROR(client->OpenTable(name));
    }
    return client;
  }
  static absl::Status Pull(ps::Client& client, const std::string& table, bool read_only = true) {
    const std::vector<uint64_t> ids = {1, 2};
    std::vector<float> rows(4);
    return client.Pull(0, read_only, {{.table = table, .ids = ids, .rows = rows.data()}}).status();
  }
  static absl::Status Push(ps::Client& client, const std::string& table) {
    const std::vector<uint64_t> ids = {1, 2};
    const std::vector<float> gradients(4, 1);
    return client.Push(0, {{.table = table, .ids = ids, .gradients = gradients.data()}});
  }

  const testing::TempDir dir_;
  const std::string audit_ = dir_.File("audit.jsonl");
  std::unique_ptr<cluster::StoreServer> store_;
  std::unique_ptr<TandemProcess> server_;
  std::string address_;
  std::string printed_;  // the last grant
  std::unique_ptr<ps::Client> member_;
};

TEST_F(GrantCommandTest, AReaderPullsTheTablesOfItsPatternsAndChangesNothing) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto reader, Connect({"--role", "reader", "--tables", "user*"}));
  TANDEM_EXPECT_OK(Pull(*reader, "user"));
  EXPECT_THAT(Pull(*reader, "item"), StatusIs(kDenied, AllOf(HasSubstr("user*"), HasSubstr("'item'"))));
  EXPECT_THAT(Pull(*reader, "user", /*read_only=*/false), StatusIs(kDenied));
  EXPECT_THAT(Push(*reader, "user"), StatusIs(kDenied, HasSubstr("reader")));
  EXPECT_THAT(reader->CreateTable(ps::EmbeddingTable("user2", 2, ps::Sgd(1), ps::Zeros())),
              StatusIs(kDenied));
  EXPECT_THAT(reader->DropTable("user"), StatusIs(kDenied));
  TANDEM_EXPECT_OK(Pull(*member_, "item"));
  // Its refusals by the handler are recorded as well.
  EXPECT_THAT(*ReadFile(audit_), HasSubstr("does not cover 'item'"));
}

TEST_F(GrantCommandTest, ATrainerPushesToItsTablesOnly) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto trainer, Connect({"--role", "trainer", "--tables", "user"}));
  TANDEM_EXPECT_OK(Push(*trainer, "user"));
  EXPECT_THAT(Push(*trainer, "item"), StatusIs(kDenied));
  EXPECT_THAT(trainer->DropTable("user"), StatusIs(kDenied));
}

TEST_F(GrantCommandTest, AQuotaEndsWhatIsTooMuchAndLeavesMembersAlone) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto reader, Connect({"--role", "reader", "--calls-per-second", "20"}));
  absl::Status last;
  for (int i = 0; i < 10000 && last.ok(); ++i) last = Pull(*reader, "user");
  EXPECT_THAT(last, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("quota of 20 calls")));
  for (int i = 0; i < 100; ++i) TANDEM_EXPECT_OK(Pull(*member_, "user"));
}

TEST_F(GrantCommandTest, ARevokedGrantEndsWithinSecondsAndTheAuditLogSaysSo) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto reader, Connect({"--role", "reader", "--name", "serving"}));
  TANDEM_EXPECT_OK(Pull(*reader, "user"));
  const std::string file = dir_.File("reader.grant");
  {
    std::ofstream out(file);
    out << printed_;
  }
  const Finished revoked = RunTandem({"grant", "revoke", file}, {{"TANDEM_STORE", store()}});
  ASSERT_EQ(revoked.exit_code, 0) << revoked.err;
  const absl::Time deadline = MonotonicNow() + kTestTimeout;
  absl::Status last;
  while (last.ok() && MonotonicNow() < deadline) last = Pull(*reader, "user");
  EXPECT_THAT(last, StatusIs(kDenied, AllOf(HasSubstr("serving"), HasSubstr("is revoked"))));
  TANDEM_EXPECT_OK(Pull(*member_, "user"));
  bool recorded = false;
  for (const absl::string_view line : absl::StrSplit(*ReadFile(audit_), '\n', absl::SkipEmpty())) {
    const nlohmann::json event = nlohmann::json::parse(line);
    recorded =
        recorded || (event["verdict"] == "refused" && event["method"] == "tandem.v1.ParameterServer/Pull");
  }
  EXPECT_TRUE(recorded);
}

TEST_F(GrantCommandTest, AnOperatorDropsATableAndIsRecorded) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto reader, Connect({"--role", "operator", "--name", "ann"}));
  TANDEM_EXPECT_OK(reader->DropTable("item"));
  EXPECT_THAT(Pull(*reader, "user"), StatusIs(kDenied));
  EXPECT_THAT(*ReadFile(audit_), AllOf(HasSubstr("\"allowed\""), HasSubstr("(ann), operator"),
                                       HasSubstr("tandem.v1.ParameterServer/DropTable")));
}

TEST(GrantCommand, AFileThatAShellMadeIsKeptFromOthers) {
  const testing::TempDir dir;
  const std::string path = dir.File("serving.grant");
  TandemProcess shell({"run", "--log-dir", dir.File("logs"), "--", "/bin/sh", "-c",
                       absl::StrCat(TANDEM_BINARY, " grant --role reader > ", path)});
  ASSERT_EQ(shell.Wait(), 0) << shell.err();
  struct stat facts = {};
  ASSERT_EQ(::stat(path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777u, 0600u);
  const Finished shown = RunTandem({"grant", "show", path});
  EXPECT_THAT(shown.out, AllOf(HasSubstr("reader"), HasSubstr("expires 2")));
}

TEST(GrantCommand, MistakesAreNamed) {
  EXPECT_THAT(RunTandem({"grant"}).err, HasSubstr("--role"));
  EXPECT_THAT(RunTandem({"grant", "--role", "king"}).err,
              HasSubstr("reader, trainer, actor, learner, operator"));
  EXPECT_THAT(RunTandem({"grant", "--role", "reader", "--expires", "soon"}).err, HasSubstr("12h or 30d"));
  EXPECT_THAT(RunTandem({"grant", "revoke", "nothing"}).err, HasSubstr("16 hexadecimal digits"));
  const testing::TempDir dir;
  {
    std::ofstream out(dir.File("grant"));
    out << RunTandem({"grant", "--role", "operator"}).out;
  }
  ::chmod(dir.File("grant").c_str(), 0600);
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"run", "--", "true"}, {"store", "--listen", "127.0.0.1:0"}}) {
    const Finished refused = RunTandem(command, {{"TANDEM_KEY_FILE", dir.File("grant")}});
    EXPECT_NE(refused.exit_code, 0) << command[0];
    EXPECT_THAT(refused.err, HasSubstr("grant"));
  }
}

}  // namespace
}  // namespace tandem::cli
