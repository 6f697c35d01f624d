// SPDX-License-Identifier: Apache-2.0
#include "cluster/environment.h"

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

Environment::Lookup LookupIn(Variables variables) {
  return [variables](absl::string_view name) -> absl::optional<std::string> {
    auto it = variables.find(std::string(name));
    if (it == variables.end()) return absl::nullopt;
    return it->second;
  };
}

const Variables kWorker = {
    {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}};

Variables With(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

TEST(EnvironmentTest, AllRolesHaveTheLeaseOfTheVariable) {
  const Variables kServer = {{"TANDEM_ROLE", "ps"}, {"TANDEM_PS_INDEX", "0"}, {"TANDEM_NUM_PS", "1"},
                             {"WORLD_SIZE", "1"},   {"MASTER_ADDR", "a"},     {"MASTER_PORT", "1"}};
  const Variables kActor = {{"TANDEM_ROLE", "actor"}, {"ROLE_RANK", "0"},   {"ROLE_WORLD_SIZE", "1"},
                            {"WORLD_SIZE", "1"},      {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
  for (const Variables& role : {kWorker, kServer, kActor}) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const Environment none, Environment::FromLookup(LookupIn(role)));
    EXPECT_EQ(none.lease, absl::Seconds(10));
    TANDEM_ASSERT_OK_AND_ASSIGN(const Environment env,
                                Environment::FromLookup(LookupIn(With(role, {{"TANDEM_LEASE", "2.5"}}))));
    EXPECT_EQ(env.lease, absl::Seconds(2.5));
  }
}

TEST(EnvironmentTest, ReadsWhatTorchrunSets) {
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const Environment env,
      Environment::FromLookup(LookupIn(With(kWorker, {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}))));
  EXPECT_EQ(env.role, "worker");
  EXPECT_TRUE(env.worker);
  EXPECT_EQ(env.rank, 3);
  EXPECT_EQ(env.world_size, 4);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 2);
  EXPECT_EQ(env.master_addr, "10.0.0.1");
  EXPECT_EQ(env.master_port, 29500);
  EXPECT_EQ(env.store, "");
  EXPECT_EQ(env.role_rank, 3);
  EXPECT_EQ(env.role_world_size, 4);
  EXPECT_EQ(env.epoch, 0);
  EXPECT_EQ(env.num_ps, 0);
  EXPECT_EQ(env.member(), "worker/3");
  EXPECT_FALSE(env.hosts_store());
}

TEST(EnvironmentTest, ReadsWhatMpirunSetsWhereNothingElseIsSet) {
  const Variables mpirun = {{"OMPI_COMM_WORLD_RANK", "3"},       {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"MASTER_ADDR", "10.0.0.1"},         {"MASTER_PORT", "29500"}};
  EXPECT_TRUE(Environment::IsLaunched(LookupIn(mpirun)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Environment env, Environment::FromLookup(LookupIn(mpirun)));
  EXPECT_EQ(env.rank, 3);
  EXPECT_EQ(env.world_size, 4);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 2);
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const Environment other,
      Environment::FromLookup(LookupIn(With(mpirun, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}))));
  EXPECT_EQ(other.rank, 0);
  EXPECT_EQ(other.world_size, 1);
  EXPECT_EQ(other.local_rank, 0);
}

TEST(EnvironmentTest, ReadsWhatTandemRunSets) {
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const Environment env,
      Environment::FromLookup(LookupIn(With(kWorker, {{"TANDEM_ROLE", "ps"},
                                                      {"TANDEM_NUM_PS", "2"},
                                                      {"TANDEM_PS_INDEX", "1"},
                                                      {"TANDEM_STORE", "10.0.0.9:41000"},
                                                      {"TANDEM_RUN_ID", "abc"}}))));
  EXPECT_EQ(env.role, "ps");
  EXPECT_FALSE(env.worker);
  EXPECT_EQ(env.num_ps, 2);
  EXPECT_EQ(env.ps_index, 1);
  EXPECT_EQ(env.store, "10.0.0.9:41000");
  EXPECT_EQ(env.role_rank, 1);
  EXPECT_EQ(env.role_world_size, 2);
  EXPECT_EQ(env.run_id, "abc");
  EXPECT_EQ(env.member(), "ps/1");
}

TEST(EnvironmentTest, CopiesOfAServersShardHaveNamesOfTheirOwn) {
  const auto copy = [](const char* number) {
    return Environment::FromLookup(LookupIn(With(kWorker, {{"TANDEM_ROLE", "ps"},
                                                           {"TANDEM_NUM_PS", "3"},
                                                           {"TANDEM_PS_INDEX", "1"},
                                                           {"TANDEM_PS_COPY", number},
                                                           {"TANDEM_PS_FOLLOWERS", "1"}})));
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(const Environment first, copy("0"));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Environment second, copy("1"));
  EXPECT_EQ(first.member(), "ps/1");
  EXPECT_EQ(second.member(), "ps/4");
  EXPECT_EQ(second.ps_index, 1);
  EXPECT_EQ(second.num_ps, 3);
  EXPECT_EQ(second.role_world_size, 6);
  EXPECT_THAT(copy("2"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("TANDEM_PS_COPY=2")));
}

TEST(EnvironmentTest, EveryRoleHasRoleRanks) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const Environment env,
                              Environment::FromLookup(LookupIn({{"TANDEM_ROLE", "actor"},
                                                                {"WORLD_SIZE", "2"},
                                                                {"ROLE_RANK", "5"},
                                                                {"ROLE_WORLD_SIZE", "8"},
                                                                {"LOCAL_RANK", "1"},
                                                                {"LOCAL_WORLD_SIZE", "4"},
                                                                {"GROUP_RANK", "1"},
                                                                {"TANDEM_STORE", "10.0.0.9:41000"},
                                                                {"TORCHELASTIC_RESTART_COUNT", "2"},
                                                                {"TORCHELASTIC_RUN_ID", "job"},
                                                                {"TANDEM_EPOCH", "3"}})));
  EXPECT_FALSE(env.worker);
  EXPECT_EQ(env.member(), "actor/5");
  EXPECT_EQ(env.role_world_size, 8);
  EXPECT_EQ(env.world_size, 2);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 4);
  EXPECT_EQ(env.group_rank, 1);
  EXPECT_EQ(env.restart_count, 2);
  EXPECT_EQ(env.run_id, "job");
  EXPECT_EQ(env.epoch, 3);
  EXPECT_FALSE(env.hosts_store());
}

TEST(EnvironmentTest, RankZeroHostsTheStoreUnlessTheLauncherDoes) {
  EXPECT_TRUE(Environment::FromLookup(LookupIn(With(kWorker, {{"RANK", "0"}})))->hosts_store());
  EXPECT_FALSE(Environment::FromLookup(LookupIn(With(kWorker, {{"RANK", "0"}, {"TANDEM_STORE", "h:1"}})))
                   ->hosts_store());
}

TEST(EnvironmentTest, InvalidVariablesAreNamed) {
  const struct {
    Variables variables;
    const char* message;
  } kCases[] = {
      {{}, "WORLD_SIZE is not set; start the program through `tandem run`"},
      {With(kWorker, {{"RANK", "x"}}),
       "RANK='x' is not an integer; start the program through `tandem run` or set RANK, WORLD_SIZE, "
       "MASTER_ADDR and "
       "MASTER_PORT"},
      {With(kWorker, {{"RANK", "4"}}), "RANK=4 is out of range: it must be from 0 to 3"},
      {With(kWorker, {{"RANK", "-1"}}), "RANK=-1"},
      {With(kWorker, {{"RANK", ""}}), "RANK is not set"},
      {With(kWorker, {{"TANDEM_LEASE", "ten"}}), "TANDEM_LEASE='ten' is no lease"},
      {With(kWorker, {{"TANDEM_LEASE", "0.4"}}), "must be a number of seconds from 0.5 to 3600"},
      {With(kWorker, {{"TANDEM_LEASE", "3601"}}), "TANDEM_LEASE='3601'"},
      {With(kWorker, {{"TANDEM_LEASE", "nan"}}), "TANDEM_LEASE='nan'"},
      {With(kWorker, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE=0 is out of range: it must be at least 1"},
      {With(kWorker, {{"WORLD_SIZE", "99999999999"}}), "WORLD_SIZE='99999999999'"},
      {With(kWorker, {{"MASTER_ADDR", ""}}), "MASTER_ADDR is not set"},
      {With(kWorker, {{"MASTER_PORT", "70000"}}), "MASTER_PORT=70000"},
      {With(kWorker, {{"TANDEM_ROLE", "a/b"}}), "TANDEM_ROLE='a/b' is no name of a role"},
      {{{"TANDEM_ROLE", "actor"}, {"WORLD_SIZE", "2"}, {"ROLE_RANK", "3"}, {"ROLE_WORLD_SIZE", "3"}},
       "ROLE_RANK=3 is out of range"},
      {With(kWorker, {{"TANDEM_ROLE", "ps"}}), "TANDEM_NUM_PS"},
      {With(kWorker, {{"TANDEM_ROLE", "ps"}, {"TANDEM_NUM_PS", "1"}}), "TANDEM_PS_INDEX is not set"},
      {With(kWorker, {{"TANDEM_STORE", "somewhere"}}), "TANDEM_STORE: bad address \"somewhere\""},
      {With(kWorker, {{"LOCAL_RANK", "4"}}), "LOCAL_RANK=4"},
  };
  for (const auto& one : kCases) {
    EXPECT_THAT(Environment::FromLookup(LookupIn(one.variables)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(one.message)));
  }
}

TEST(EnvironmentTest, AnEmptyEnvironmentIsNoLaunch) {
  EXPECT_FALSE(Environment::IsLaunched(LookupIn({{"HOME", "/root"}})));
  EXPECT_TRUE(Environment::IsLaunched(LookupIn({{"RANK", "0"}})));
}

Environment OneOf(int rank, int world_size, int port) {
  Environment env;
  env.rank = rank;
  env.world_size = world_size;
  env.master_addr = "127.0.0.1";
  env.master_port = port;
  return env;
}

TEST(JobStoreTest, ASingleProcessLetsTheKernelPickThePort) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto job, OpenStore(OneOf(0, 1, 0), absl::Seconds(30)));
  ASSERT_NE(job->server(), nullptr);
  EXPECT_EQ(job->address(), absl::StrCat("127.0.0.1:", job->server()->port()));
  TANDEM_ASSERT_OK(job->store()->Set("k", "v"));
  TANDEM_EXPECT_OK(job->Close(absl::Seconds(10)));
}

TEST(JobStoreTest, PortZeroIsRefusedInAWorldOfSeveral) {
  EXPECT_THAT(OpenStore(OneOf(0, 2, 0), absl::Seconds(1)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("MASTER_PORT=0")));
}

TEST(JobStoreTest, AStoreThatIsNotThereIsNamed) {
  // A host of this test's own: another program does not listen at the port meanwhile.
  constexpr char kOwnHost[] = "127.0.77.7";
  int port = 0;
  {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto server, StoreServer::Start(absl::StrCat(kOwnHost, ":0")));
    port = server->port();
  }
  Environment env = OneOf(1, 2, port);
  env.master_addr = kOwnHost;
  EXPECT_THAT(OpenStore(env, absl::Milliseconds(200)),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("worker/1"), HasSubstr(absl::StrCat(kOwnHost, ":", port)))));
}

TEST(JobStoreTest, AnExternalStoreIsOnlyConnectedTo) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto server, StoreServer::Start("127.0.0.1:0"));
  Environment env = OneOf(0, 2, server->port());
  env.store = absl::StrCat("127.0.0.1:", server->port());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto job, OpenStore(env, absl::Seconds(30)));
  EXPECT_EQ(job->server(), nullptr);
  TANDEM_ASSERT_OK(job->store()->Set("k", "v"));
  EXPECT_EQ(server->store()->TryGet("k"), "v");
  TANDEM_EXPECT_OK(job->Close(absl::Seconds(10)));
}

// Opens the store of `env`'s job on a free port. The port is free a moment before; another process may take
// it in between, so a few are tried. Returns nullptr if all were taken.
std::unique_ptr<JobStore> HostOnFreePort(Environment env) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    env.master_port = StoreServer::Start("127.0.0.1:0").value()->port();
    auto host = OpenStore(env, absl::Seconds(30));
    if (host.ok()) return *std::move(host);
  }
  return nullptr;
}

TEST(JobStoreTest, CopiesOfServersThatHaveDiedAreNotWaitedFor) {
  Environment env = OneOf(0, 1, 0);
  env.num_ps = 1;
  env.ps_followers = 1;
  const std::unique_ptr<JobStore> host = HostOnFreePort(env);
  ASSERT_NE(host, nullptr);
  LocalMembership& members = *host->server()->membership();
  TANDEM_ASSERT_OK(members.Heartbeat("ps/0", absl::Nanoseconds(1), false, {.replaceable = true}));
  TANDEM_ASSERT_OK(members.Heartbeat("ps/1", absl::Hours(1), false, {.replaceable = true}));
  Environment living = env;
  living.worker = false;
  living.role = "ps";
  living.role_rank = 1;
  living.store = host->address();
  TANDEM_ASSERT_OK_AND_ASSIGN(auto copy, OpenStore(living, absl::Seconds(30)));
  TANDEM_EXPECT_OK(copy->Close(absl::Seconds(30)));
  TANDEM_EXPECT_OK(host->Close(absl::Seconds(30)));
}

TEST(JobStoreTest, AServerThatHasLeftTheJobIsNotWaitedFor) {
  Environment env = OneOf(0, 1, 0);
  env.num_ps = 1;
  const std::unique_ptr<JobStore> host = HostOnFreePort(env);
  ASSERT_NE(host, nullptr);
  TANDEM_ASSERT_OK(host->server()->membership()->Heartbeat("ps/0", absl::Hours(1), /*leaving=*/true));
  TANDEM_EXPECT_OK(host->Close(absl::Seconds(30)));
}

TEST(JobStoreTest, AServerThatLeavesOrDiesMeanwhileIsNotWaitedForAnyMore) {
  Environment env = OneOf(0, 1, 0);
  env.num_ps = 2;
  const std::unique_ptr<JobStore> host = HostOnFreePort(env);
  ASSERT_NE(host, nullptr);
  LocalMembership& members = *host->server()->membership();
  TANDEM_ASSERT_OK(members.Heartbeat("ps/0", absl::Hours(1), /*leaving=*/false));
  TANDEM_ASSERT_OK(members.Heartbeat("ps/1", absl::Hours(1), /*leaving=*/false));
  std::thread servers([&] {
    // The host has begun to close when its key is there.
    EXPECT_TRUE(host->server()->store()->Get("job/closed/worker/0", absl::Seconds(30)).ok());
    TANDEM_EXPECT_OK(members.Heartbeat("ps/0", absl::Hours(1), /*leaving=*/true));
    TANDEM_EXPECT_OK(members.Heartbeat("ps/1", absl::Nanoseconds(1), false, {.replaceable = true}));
  });
  TANDEM_EXPECT_OK(host->Close(absl::Seconds(30)));
  servers.join();
}

// Opens rank 0 on a free port, then rank 1 on the same one.
class PairTest : public ::testing::Test {
 protected:
  void SetUp() override {
    host_ = HostOnFreePort(OneOf(0, 2, 0));
    ASSERT_NE(host_, nullptr);
    TANDEM_ASSERT_OK_AND_ASSIGN(client_, OpenStore(OneOf(1, 2, host_->server()->port()), absl::Seconds(30)));
  }
  std::unique_ptr<JobStore> host_, client_;
};

TEST_F(PairTest, TheHostWaitsUntilTheOthersAreDone) {
  std::thread client([&] {
    // The host has begun to close when its key is there; the store must still serve.
    TANDEM_EXPECT_OK(client_->store()->Get("job/closed/worker/0", absl::Seconds(30)));
    TANDEM_EXPECT_OK(client_->store()->Set("last", "word"));
    TANDEM_EXPECT_OK(client_->Close(absl::Seconds(30)));
  });
  TANDEM_EXPECT_OK(host_->Close(absl::Seconds(30)));
  EXPECT_EQ(host_->server()->store()->TryGet("last"), "word");
  client.join();
}

TEST_F(PairTest, TheHostNamesThoseItCouldNotWaitFor) {
  EXPECT_THAT(host_->Close(absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("worker/1")));
  TANDEM_EXPECT_OK(host_->Close(absl::Seconds(30)));
  EXPECT_THAT(client_->Close(absl::Milliseconds(50)), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace tandem::cluster
