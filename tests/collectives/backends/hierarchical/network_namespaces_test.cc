// SPDX-License-Identifier: Apache-2.0
// Two hosts, simulated by network namespaces joined by a pair of virtual devices that can be disconnected,
// with two processes in each. Needs root and `ip`; skipped otherwise.

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/ipc/host_identity.h"
#include "cluster/store/file_store.h"
#include "cluster/store/prefix_store.h"
#include "collectives/backends/hierarchical/hierarchical_backend.h"
#include "collectives/backends/shm/shm_backend.h"
#include "collectives/backends/tcp/tcp_backend.h"
#include "tests/collectives/backends/backend_fixture.h"
#include "tests/testing/processes/self_process.h"

namespace tandem::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kWorld = 4;
constexpr absl::Duration kTimeout = absl::Seconds(8);

std::string AddressOf(int rank) { return rank < 2 ? "10.213.77.1" : "10.213.77.2"; }

// Reduces 4 MiB until it fails; sets a key in the store when it has begun.
absl::Status Work(cluster::Store* store, int rank) {
  TANDEM_RETURN_IF_ERROR(store->Set(absl::StrCat("host/", rank), ipc::HostIdentity()));
  cluster::PrefixStore keys(store, "backend");
  BackendOptions options = OptionsOf(&keys, rank, std::vector<std::string>(kWorld));
  for (int peer = 0; peer < kWorld; ++peer) {
    TANDEM_ASSIGN_OR_RETURN(options.peers[peer].host,
                            store->Get(absl::StrCat("host/", peer), absl::Seconds(30)));
    options.peers[peer].address = AddressOf(peer);
  }
  auto made = HierarchicalBackendFactory(ShmBackendFactory(), TcpBackendFactory()).make(options);
  TANDEM_RETURN_IF_ERROR(made);
  if ((*made)->name() != "shm+tcp") return absl::InternalError(absl::StrCat("it is ", (*made)->name()));
  for (uint64_t round = 0;; ++round) {
    std::vector<float> values(1 << 20, static_cast<float>(rank + 1));
    TANDEM_RETURN_IF_ERROR((*made)->Run(AllReduceOf(&values, round, kTimeout)));
    if (values.front() != 10.0f || values.back() != 10.0f) return absl::DataLossError("a wrong sum");
    if (round == 2) TANDEM_RETURN_IF_ERROR(store->Set(absl::StrCat("begun/", rank), ""));
  }
}

// Not a test of its own: the tests below run it as another process.
TEST(NamespaceChild, DISABLED_Works) {
  const char* path = std::getenv("TANDEM_TEST_STORE");
  const char* rank_text = std::getenv("TANDEM_TEST_RANK");
  const char* space = std::getenv("TANDEM_TEST_NETNS");
  ASSERT_TRUE(path != nullptr && rank_text != nullptr && space != nullptr);
  int rank = 0;
  ASSERT_TRUE(absl::SimpleAtoi(rank_text, &rank));
  const int fd = open(absl::StrCat("/var/run/netns/", space).c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(setns(fd, CLONE_NEWNET), 0);  // before any other thread exists
  close(fd);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto store, cluster::FileStore::Open(path));
  const absl::Status end = Work(store.get(), rank);
  TANDEM_EXPECT_OK(store->Set(absl::StrCat("end/", rank), end.ToString()));
}

bool Runs(const std::string& command) {
  return std::system(absl::StrCat(command, " >/dev/null 2>&1").c_str()) == 0;
}

class NetworkNamespacesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int side : {0, 1}) names_.push_back(absl::StrCat("tandem-", getpid(), "-", side));
    if (geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
    if (!Runs("ip -V")) GTEST_SKIP() << "there is no `ip`";
    if (!Runs("ip netns add " + names_[0]) || !Runs("ip netns add " + names_[1])) {
      GTEST_SKIP() << "this machine gives out no network namespaces";
    }
    const std::string in[] = {"ip -n " + names_[0], "ip -n " + names_[1]};
    ASSERT_TRUE(Runs(absl::StrCat(in[0], " link add cable0 type veth peer name cable1 netns ", names_[1])));
    for (int side : {0, 1}) {
      ASSERT_TRUE(Runs(absl::StrCat(in[side], " addr add ", AddressOf(2 * side), "/24 dev cable", side)));
      ASSERT_TRUE(Runs(absl::StrCat(in[side], " link set cable", side, " up")));
      ASSERT_TRUE(Runs(in[side] + " link set lo up"));
    }
    path_ = absl::StrCat(::testing::TempDir(), "/tandem-netns-", getpid(), "-",
                         ::testing::UnitTest::GetInstance()->current_test_info()->name());
    TANDEM_ASSERT_OK_AND_ASSIGN(store_, cluster::FileStore::Open(path_));
    for (int rank = 0; rank < kWorld; ++rank) Start(rank);
    TANDEM_ASSERT_OK(store_->Wait({"begun/0", "begun/1", "begun/2", "begun/3"}, absl::Seconds(60)));
  }

  void TearDown() override {
    children_.clear();
    for (const std::string& name : names_) Runs("ip netns del " + name);
    store_.reset();
    unlink(path_.c_str());
  }

  void Start(int rank) {
    children_.push_back(std::make_unique<testing::SelfProcess>(
        "NamespaceChild.DISABLED_Works",
        std::map<std::string, std::string>{{"TANDEM_TEST_STORE", path_},
                                           {"TANDEM_TEST_RANK", absl::StrCat(rank)},
                                           {"TANDEM_TEST_NETNS", names_[rank / 2]}}));
  }

  // Returns how `rank` ended.
  std::string End(int rank) {
    const absl::StatusOr<std::string> end = store_->Get(absl::StrCat("end/", rank), absl::Seconds(30));
    return end.ok() ? *end : end.status().ToString();
  }

  std::vector<std::string> names_;
  std::string path_;
  std::unique_ptr<cluster::FileStore> store_;
  std::vector<std::unique_ptr<testing::SelfProcess>> children_;
};

TEST_F(NetworkNamespacesTest, AKilledRankIsNamedOnBothHosts) {
  const absl::Time killed = absl::Now();
  children_[3]->Kill();
  for (int rank : {0, 1, 2}) {
    EXPECT_THAT(End(rank), AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("all_reduce #"), HasSubstr("rank 3")));
  }
  EXPECT_LT(absl::Now() - killed, kTimeout) << "nobody has waited for the time-out";
}

TEST_F(NetworkNamespacesTest, AKilledLeaderIsNamedOnBothHosts) {
  children_[2]->Kill();
  for (int rank : {0, 1, 3}) EXPECT_THAT(End(rank), AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("rank 2")));
}

TEST_F(NetworkNamespacesTest, ACableThatIsPulledEndsAllRanksByTheirDeadline) {
  const absl::Time pulled = absl::Now();
  ASSERT_TRUE(Runs(absl::StrCat("ip -n ", names_[0], " link set cable0 down")));
  for (int rank = 0; rank < kWorld; ++rank) {
    EXPECT_THAT(End(rank),
                AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("all_reduce #"), HasSubstr("rank")));
  }
  EXPECT_LT(absl::Now() - pulled, kTimeout + absl::Seconds(15));
}

}  // namespace
}  // namespace tandem::collectives
