// SPDX-License-Identifier: Apache-2.0
// kill -9 of a rank in the middle of its work over a network, with real processes and a store over gRPC.

#include <signal.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cluster/join.h"
#include "cluster/store/prefix_store.h"
#include "cluster/store/remote_store.h"
#include "cluster/store/store_server.h"
#include "tests/collectives/backends/backend_fixture.h"
#include "tests/collectives/backends/network_backends.h"
#include "tests/testing/processes/self_process.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Reduces 64 MiB until it fails; sets a key in `progress` when it has begun. `progress` is not `store` if the
// store is about to die, because the response to its last call would be lost.
absl::Status Work(const std::string& name, cluster::Store* store, cluster::Store* progress, int rank,
                  int world_size) {
  cluster::PrefixStore keys(store, name);
  auto backend =
      NetworkBackendFactory(name).make(OptionsOf(&keys, rank, std::vector<std::string>(world_size, "h")));
  if (!backend.ok()) return backend.status();
  std::vector<float> values(16 << 20, 0.0f);
  for (uint64_t round = 0;; ++round) {
    if (absl::Status status = (*backend)->Run(AllReduceOf(&values, round)); !status.ok()) return status;
    if (round == 0) {
      if (absl::Status told = progress->Set(absl::StrCat("begun/", rank), ""); !told.ok()) return told;
    }
  }
}

// Not tests of their own: the tests below run them as other processes.
TEST(NetworkKillChild, DISABLED_Works) {
  const char* target = std::getenv("TANDEM_TEST_STORE");
  const char* rank_text = std::getenv("TANDEM_TEST_RANK");
  const char* backend = std::getenv("TANDEM_TEST_BACKEND");
  ASSERT_TRUE(target != nullptr && rank_text != nullptr && backend != nullptr);
  int rank = 0;
  ASSERT_TRUE(absl::SimpleAtoi(rank_text, &rank));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, cluster::ConnectStore(target));
  cluster::RemoteStore store(std::move(channel));
  const absl::Status end = Work(backend, &store, &store, rank, /*world_size=*/3);
  TANDEM_EXPECT_OK(store.Set(absl::StrCat("end/", rank), end.ToString()));
}

TEST(NetworkKillChild, DISABLED_HostsTheStoreAndWorks) {
  const char* target = std::getenv("TANDEM_TEST_STORE");
  const char* backend = std::getenv("TANDEM_TEST_BACKEND");
  ASSERT_TRUE(target != nullptr && backend != nullptr);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, cluster::ConnectStore(target));
  cluster::RemoteStore bulletin(std::move(channel));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto server, cluster::StoreServer::Start("127.0.0.1:0"));
  TANDEM_ASSERT_OK(bulletin.Set("port", absl::StrCat(server->port())));
  (void)Work(backend, server->store(), &bulletin, 0, /*world_size=*/2);
}

struct Child : testing::SelfProcess {
  Child(const std::string& backend, const std::string& test, const std::string& target, int rank)
      : SelfProcess("NetworkKillChild.DISABLED_" + test, {{"TANDEM_TEST_STORE", target},
                                                          {"TANDEM_TEST_RANK", absl::StrCat(rank)},
                                                          {"TANDEM_TEST_BACKEND", backend}}) {}
};

class NetworkKillTest : public NetworkBackendTest {};
TANDEM_TEST_ON_NETWORK_BACKENDS(NetworkKillTest);

TEST_P(NetworkKillTest, AKilledRankIsNamedOnAllOthersAtOnce) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto server, cluster::StoreServer::Start("127.0.0.1:0"));
  const std::string target = absl::StrCat("127.0.0.1:", server->port());
  Child first(GetParam(), "Works", target, 1), second(GetParam(), "Works", target, 2);
  absl::Status mine;
  absl::Time ended;
  std::thread worker([&] {
    mine = Work(GetParam(), server->store(), server->store(), 0, /*world_size=*/3);
    ended = absl::Now();
  });
  TANDEM_EXPECT_OK(server->store()->Wait({"begun/0", "begun/1", "begun/2"}, absl::Seconds(60)));
  const absl::Time killed = absl::Now();
  first.Kill();
  worker.join();
  EXPECT_THAT(mine, StatusIs(absl::StatusCode::kUnavailable,
                             AllOf(HasSubstr("all_reduce #"), HasSubstr("rank 1 was lost"))));
  EXPECT_LT(ended - killed, absl::Seconds(20));  // of its time-out of 60 s
  auto theirs = server->store()->Get("end/2", absl::Seconds(30));
  TANDEM_ASSERT_OK(theirs);
  EXPECT_THAT(*theirs, AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("rank 1 was lost")));
}

TEST_P(NetworkKillTest, ARankIsNamedThoughTheStoreDiedWithIt) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto bulletin, cluster::StoreServer::Start("127.0.0.1:0"));
  Child host(GetParam(), "HostsTheStoreAndWorks", absl::StrCat("127.0.0.1:", bulletin->port()), 0);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string port, bulletin->store()->Get("port", absl::Seconds(60)));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, cluster::ConnectStore("127.0.0.1:" + port));
  cluster::RemoteStore store(std::move(channel));
  absl::Status mine;
  absl::Time ended;
  std::thread worker([&] {
    mine = Work(GetParam(), &store, bulletin->store(), 1, /*world_size=*/2);
    ended = absl::Now();
  });
  TANDEM_EXPECT_OK(bulletin->store()->Wait({"begun/0", "begun/1"}, absl::Seconds(60)));
  const absl::Time killed = absl::Now();
  host.Kill();
  worker.join();
  EXPECT_THAT(mine, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 0 was lost")));
  EXPECT_LT(ended - killed, absl::Seconds(20));  // of its time-out of 60 s
}

}  // namespace
}  // namespace tandem::collectives
