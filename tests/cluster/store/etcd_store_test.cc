// SPDX-License-Identifier: Apache-2.0
// Behaviour that only an etcd store has: members that die, leases, TLS, passwords.

#include "cluster/store/etcd/etcd_store.h"

#include <signal.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "cluster/rendezvous/rendezvous.h"
#include "cluster/rendezvous/store_rendezvous.h"
#include "cluster/store_url.h"
#include "etcd/rpc.pb.h"
#include "tests/testing/processes/etcd_server.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::EtcdServer;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Another program does not take a port of this host while a server is down.
constexpr char kOwnHost[] = "127.0.77.8";

class EtcdStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!EtcdServer::Installed()) GTEST_SKIP() << "there is no /usr/bin/etcd: apt-get install etcd-server";
  }
};

EtcdOptions Towards(const std::string& address, const std::string& prefix = "job") {
  EtcdOptions options;
  options.endpoints = {address};
  options.prefix = prefix;
  options.call_timeout = absl::Seconds(20);
  return options;
}

// Returns etcd's revision, which every stored change increments.
int64_t RevisionOf(const std::string& address) {
  const auto client = EtcdClient::Connect(Towards(address)).value();
  etcdserverpb::RangeRequest request;
  request.set_key("none");
  etcdserverpb::RangeResponse response;
  TANDEM_EXPECT_OK(client->Call("KV/Range", request, &response, absl::Seconds(20)));
  return response.header().revision();
}

TEST_F(EtcdStoreTest, HeartbeatsStoreNothing) {
  const auto etcd = EtcdServer::Start();
  ASSERT_NE(etcd, nullptr);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto store, EtcdStore::Open(Towards(etcd->address())));
  ASSERT_TRUE(store->BeatsExpire(absl::Seconds(10)));
  TANDEM_ASSERT_OK(store->Beat("beat/a", absl::Seconds(10)));
  EXPECT_TRUE(store->Check({"beat/a"}).value());
  const int64_t before = RevisionOf(etcd->address());
  for (int i = 0; i < 50; ++i) TANDEM_ASSERT_OK(store->Beat("beat/a", absl::Seconds(10)));
  EXPECT_EQ(RevisionOf(etcd->address()), before);
  EXPECT_TRUE(store->Delete("beat/a").value());
  EXPECT_FALSE(store->Check({"beat/a"}).value());
  EXPECT_FALSE(store->Delete("beat/a").value());
  TANDEM_ASSERT_OK(store->Beat("beat/a", absl::Seconds(10)));
  EXPECT_TRUE(store->Check({"beat/a"}).value());
}

TEST_F(EtcdStoreTest, AHeartbeatEndsALeaseAfterTheLastOneAndComesBackWithTheNext) {
  const auto etcd = EtcdServer::Start();
  ASSERT_NE(etcd, nullptr);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto store, EtcdStore::Open(Towards(etcd->address())));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto other, EtcdStore::Open(Towards(etcd->address())));
  TANDEM_ASSERT_OK(store->Beat("beat/a", absl::Seconds(2)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto client, EtcdClient::Connect(Towards(etcd->address())));
  EtcdWatcher watcher(client.get(), "job/");
  const absl::Time deadline = MonotonicNow() + absl::Seconds(30);
  for (;;) {
    EtcdWatcher::Waiter change(&watcher, {"job/"}, /*prefix=*/true);
    if (!other->Check({"beat/a"}).value()) break;
    ASSERT_LT(MonotonicNow(), deadline);
    change.Await(deadline);
  }
  TANDEM_ASSERT_OK(store->Beat("beat/a", absl::Seconds(30)));
  EXPECT_TRUE(other->Check({"beat/a"}).value());
  // A heartbeat also comes back after another process has deleted it, believing this process dead.
  EXPECT_TRUE(other->Delete("beat/a").value());
  TANDEM_ASSERT_OK(store->Beat("beat/a", absl::Seconds(30)));
  EXPECT_TRUE(other->Check({"beat/a"}).value());
}

TEST_F(EtcdStoreTest, ARendezvousThatWaitsStoresNothing) {
  const auto etcd = EtcdServer::Start();
  ASSERT_NE(etcd, nullptr);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto store, EtcdStore::Open(Towards(etcd->address())));
  RendezvousOptions options;
  options.run_id = "job";
  options.min_nodes = options.max_nodes = 2;
  options.max_restarts = 1;
  options.lease = absl::Seconds(6);
  StoreRendezvous a(store.get(), options, Clock::Real()), b(store.get(), options, Clock::Real());
  std::thread joiner([&] { TANDEM_EXPECT_OK(a.Join({.id = "a", .host = "h"}).status()); });
  TANDEM_ASSERT_OK_AND_ASSIGN(const Round round, b.Join({.id = "b", .host = "h"}));
  joiner.join();
  // Whatever follows the beginning of the round is stored soon. From then on, heartbeats pass without a
  // change.
  bool quiet = false;
  for (int i = 0; i < 5 && !quiet; ++i) {
    const int64_t before = RevisionOf(etcd->address());
    EXPECT_THAT(a.WaitForEvent(round.epoch, MonotonicNow() + options.lease / 2),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    quiet = RevisionOf(etcd->address()) == before;
  }
  EXPECT_TRUE(quiet);
  // A change is seen without polling.
  TANDEM_ASSERT_OK(b.RequestRestart(round.epoch, "a test", 1));
  TANDEM_EXPECT_OK(a.WaitForEvent(round.epoch, MonotonicNow() + absl::Seconds(30)).status());
}

TEST(EtcdUrlTest, AllPartsAreUnderstood) {
  ::setenv("TANDEM_ETCD_PASSWORD", "secret", 1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const EtcdOptions options,
                              ParseEtcdUrl("etcd://me@a:1,b:2/jobs/7?lease=12&name=etcd"));
  EXPECT_THAT(options.endpoints, ElementsAre("a:1", "b:2"));
  EXPECT_EQ(options.prefix, "jobs/7");
  EXPECT_EQ(options.user, "me");
  EXPECT_EQ(options.password, "secret");
  EXPECT_EQ(options.lease, absl::Seconds(12));
  EXPECT_EQ(options.tls->server_name, "etcd");
  EXPECT_EQ(ParseEtcdUrl("etcd://a:1")->prefix, "tandem");
  EXPECT_EQ(ParseEtcdUrl("etcd://a:1/jobs/me@home")->prefix, "jobs/me@home");
  EXPECT_FALSE(ParseEtcdUrl("etcd://a:1/p")->tls.has_value());
  EXPECT_TRUE(ParseEtcdUrl("etcds://a:1/p")->tls.has_value());
}

TEST(EtcdUrlTest, BadPartsAreNamed) {
  for (const char* bad : {"etcd://", "etcd://a", "etcd://a:0/p", "etcd://a:1,/p", "etcd://a:1/p?what=1",
                          "tcp://a:1", "etcd://a:1/p?lease=0"}) {
    EXPECT_THAT(ParseEtcdUrl(bad).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("etcd://")))
        << bad;
  }
  EXPECT_THAT(ParseEtcdUrl("etcd://u:p@a:1/p").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("TANDEM_ETCD_PASSWORD")));
  EXPECT_THAT(ParseEtcdUrl("etcd://a:1/p?ca=/no/such.pem").status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("the PEM file: cannot read '/no/such.pem'")));
  EXPECT_THAT(ParseEtcdUrl("etcd://a:1/p?ca=/dev/null").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'/dev/null' is empty")));
}

TEST_F(EtcdStoreTest, AUrlOpensItAndValuesBeyondItsLimitsAreNamed) {
  auto server = EtcdServer::Start();
  ASSERT_NE(server, nullptr);
  TANDEM_ASSERT_OK_AND_ASSIGN(
      auto opened, OpenStoreUrl(absl::StrCat("etcd://", server->address(), "/j?rank=1&world_size=2"), -1, -1,
                                absl::Seconds(20)));
  EXPECT_EQ(opened->rank(), 1);
  EXPECT_EQ(opened->world_size(), 2);
  EXPECT_THAT(opened->store()->Set("big", std::string(2 << 20, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--max-request-bytes")));
  TANDEM_EXPECT_OK(opened->store()->Set("small", "x"));
  EXPECT_THAT(
      opened->store()->Get("none", absl::Milliseconds(20)),
      StatusIs(absl::StatusCode::kDeadlineExceeded, AllOf(HasSubstr("none"), HasSubstr(server->address()))));
}

TEST_F(EtcdStoreTest, ManyKeysAreReadAtOneMoment) {
  auto server = EtcdServer::Start();
  ASSERT_NE(server, nullptr);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto store, EtcdStore::Open(Towards(server->address())));
  std::vector<std::string> keys, values;
  for (int i = 0; i < 300; ++i) {
    keys.push_back(absl::StrCat("key", i));
    values.push_back(absl::StrCat(i));
  }
  EXPECT_THAT(store->MultiSet(keys, values), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("120")));
  for (int part = 0; part < 3; ++part) {
    TANDEM_ASSERT_OK(store->MultiSet(absl::MakeSpan(keys).subspan(part * 100, 100),
                                     absl::MakeSpan(values).subspan(part * 100, 100)));
  }
  EXPECT_EQ(store->MultiGet(keys, absl::ZeroDuration()).value(), values);
}

TEST_F(EtcdStoreTest, TheDeathOfAMemberLosesNothing) {
  auto cluster = EtcdServer::StartCluster(3, {}, kOwnHost);
  ASSERT_EQ(cluster.size(), 3u);
  EtcdOptions options = Towards(cluster[0]->address());
  for (int i = 1; i < 3; ++i) options.endpoints.push_back(cluster[i]->address());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto store, EtcdStore::Open(options));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto other, EtcdStore::Open(options));
  std::thread waiter([&] { TANDEM_EXPECT_OK(other->Get("late", absl::Seconds(60))); });
  for (int i = 1; i <= 60; ++i) {
    if (i == 20) cluster[0]->Kill();
    if (i == 30) {
      EXPECT_TRUE(cluster[0]->Restart());
    }
    if (i == 40) cluster[1]->Kill();
    TANDEM_ASSERT_OK_AND_ASSIGN(const int64_t sum, store->Add("n", 1));
    ASSERT_EQ(sum, i) << "a change was lost or made twice";
  }
  TANDEM_ASSERT_OK(store->Set("late", ""));
  waiter.join();
}

TEST_F(EtcdStoreTest, AQuorumThatIsAwayForAMomentIsWaitedFor) {
  auto cluster = EtcdServer::StartCluster(3);
  ASSERT_EQ(cluster.size(), 3u);
  EtcdOptions options = Towards(cluster[0]->address());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto store, EtcdStore::Open(options));
  for (int member : {1, 2}) cluster[member]->Signal(SIGSTOP);
  // The remaining member gives up at the calls' deadlines, with an error text of its own, and sometimes
  // before the caller does.
  options.endpoints.push_back(cluster[0]->address());
  options.call_timeout = absl::Seconds(30);
  std::vector<std::thread> callers;
  for (int i = 0; i < 16; ++i) {
    callers.emplace_back([&, i] {
      TANDEM_ASSERT_OK_AND_ASSIGN(auto mine, EtcdStore::Open(options));
      TANDEM_EXPECT_OK(mine->Set(absl::StrCat("key", i), ""));
    });
  }
  absl::SleepFor(absl::Seconds(3));  // the outage: longer than one try
  for (int member : {1, 2}) cluster[member]->Signal(SIGCONT);
  for (std::thread& caller : callers) caller.join();
  TANDEM_EXPECT_OK(store->Check({"key0"}).status());
}

TEST_F(EtcdStoreTest, AnEtcdThatIsGoneIsNamedInTime) {
  auto server = EtcdServer::Start({}, kOwnHost);
  ASSERT_NE(server, nullptr);
  EtcdOptions options = Towards(server->address());
  TANDEM_ASSERT_OK(EtcdStore::Open(options).status());  // it has elected itself by then
  options.call_timeout = absl::Seconds(3);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto store, EtcdStore::Open(options));
  server->Kill();
  const absl::Time start = absl::Now();
  EXPECT_THAT(store->Set("a", ""), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(server->address())));
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
  ASSERT_TRUE(server->Restart());
  options.call_timeout = absl::Seconds(20);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto again, EtcdStore::Open(options));
  TANDEM_EXPECT_OK(again->Set("a", ""));
}

TEST_F(EtcdStoreTest, AJobThatIsDeadLeavesNothingBehindAndALivingOneKeepsAll) {
  auto server = EtcdServer::Start();
  ASSERT_NE(server, nullptr);
  EtcdOptions options = Towards(server->address(), "dead");
  options.lease = absl::Seconds(5);
  auto dead = EtcdStore::Open(options).value();
  TANDEM_ASSERT_OK(dead->Set("key", "value"));
  TANDEM_ASSERT_OK(dead->Push("queue", "item"));
  options.prefix = "living";
  options.lease = EtcdOptions().lease;
  auto living = EtcdStore::Open(options).value();
  TANDEM_ASSERT_OK(living->Set("key", "value"));

  dead.reset();

  auto successor = EtcdStore::Open(Towards(server->address(), "dead")).value();
  // This process came while the lease lasted and took it over; the lease ends when it closes.
  EXPECT_EQ(successor->Get("key", absl::ZeroDuration()).value(), "value");
  successor.reset();
  const absl::Time deadline = absl::Now() + absl::Seconds(40);
  int64_t left = 1;
  while (left > 0 && absl::Now() < deadline) {
    EXPECT_FALSE(living->Get("never", absl::Milliseconds(500)).ok());
    const std::string count = absl::StrCat("ETCDCTL_API=3 etcdctl --endpoints=", server->address(),
                                           " get --prefix dead/ --keys-only 2>/dev/null | grep -c dead > ",
                                           server->directory(), "/count");
    (void)std::system(count.c_str());
    std::ifstream(server->directory() + "/count") >> left;
  }
  if (std::system("etcdctl version > /dev/null 2>&1") != 0)
    GTEST_SKIP() << "there is no etcdctl to count keys with";
  EXPECT_EQ(left, 0);
  EXPECT_EQ(living->Get("key", absl::ZeroDuration()).value(), "value");
}

TEST_F(EtcdStoreTest, AReadOnlyStoreCreatesAndChangesNothing) {
  const auto server = EtcdServer::Start();
  ASSERT_NE(server, nullptr);
  EtcdOptions looking = Towards(server->address());
  looking.read_only = true;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto looks, EtcdStore::Open(looking));
  EXPECT_THAT(looks->List("").value(), ElementsAre());
  EXPECT_THAT(looks->Set("key", "value"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("opened to look at")));
  // A job's lease would be a key of its own.
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto all, EtcdClient::Connect(Towards(server->address())));
  etcdserverpb::RangeRequest everything;
  everything.set_key(std::string(1, '\0'));
  everything.set_range_end(std::string(1, '\0'));
  etcdserverpb::RangeResponse held;
  TANDEM_ASSERT_OK(all->Call("KV/Range", everything, &held, absl::Seconds(20)));
  EXPECT_EQ(held.kvs_size(), 0);

  TANDEM_ASSERT_OK_AND_ASSIGN(const auto works, EtcdStore::Open(Towards(server->address())));
  TANDEM_ASSERT_OK(works->Set("key", "value"));
  EXPECT_EQ(looks->Get("key", absl::Seconds(20)).value(), "value");
}

TEST_F(EtcdStoreTest, ALeaseThatRanOutIsNamed) {
  auto server = EtcdServer::Start();
  ASSERT_NE(server, nullptr);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto store, EtcdStore::Open(Towards(server->address())));
  TANDEM_ASSERT_OK(store->Set("key", "value"));
  const std::string revoke =
      absl::StrCat("ETCDCTL_API=3 etcdctl --endpoints=", server->address(),
                   " lease revoke $(ETCDCTL_API=3 etcdctl --endpoints=", server->address(),
                   " lease list 2>/dev/null | tail -1) > /dev/null 2>&1");
  if (std::system(revoke.c_str()) != 0) GTEST_SKIP() << "there is no etcdctl to revoke a lease with";
  EXPECT_THAT(store->Set("key", "value"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("lease has run out")));
}

TEST_F(EtcdStoreTest, TlsWithCertificatesOfBothSides) {
  testing::TempDir directory;
  const std::string make = absl::StrCat(
      "cd ", directory.path(),
      " && openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.pem "
      "2>/dev/null"
      " && openssl req -newkey rsa:2048 -nodes -subj /CN=etcd -keyout key.pem -out csr.pem 2>/dev/null"
      " && printf 'subjectAltName=IP:127.0.0.1,DNS:etcd\\nextendedKeyUsage=serverAuth,clientAuth\\n' > ext"
      " && openssl x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out "
      "cert.pem "
      "2>/dev/null");
  if (std::system(make.c_str()) != 0) GTEST_SKIP() << "there is no openssl to make certificates with";
  auto server =
      EtcdServer::Start({"--client-cert-auth", "--trusted-ca-file", directory.File("ca.pem"), "--cert-file",
                         directory.File("cert.pem"), "--key-file", directory.File("key.pem")});
  ASSERT_NE(server, nullptr);
  const std::string url = absl::StrCat("etcd://", server->address(), "/job?ca=", directory.File("ca.pem"));
  TANDEM_ASSERT_OK_AND_ASSIGN(EtcdOptions options,
                              ParseEtcdUrl(absl::StrCat(url, "&cert=", directory.File("cert.pem"),
                                                        "&key=", directory.File("key.pem"))));
  options.call_timeout = absl::Seconds(20);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto store, EtcdStore::Open(options));
  TANDEM_EXPECT_OK(store->Set("a", "1"));
  // A client without a certificate is refused before its time-out.
  TANDEM_ASSERT_OK_AND_ASSIGN(EtcdOptions bare, ParseEtcdUrl(url));
  bare.open_timeout = absl::Milliseconds(500);
  EXPECT_THAT(EtcdStore::Open(bare).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(server->address())));
}

TEST_F(EtcdStoreTest, UsersWithPasswords) {
  auto server = EtcdServer::Start();
  ASSERT_NE(server, nullptr);
  const std::string ctl = absl::StrCat("ETCDCTL_API=3 etcdctl --endpoints=", server->address(), " ");
  const std::string make =
      absl::StrCat(ctl, "user add root:secret >/dev/null 2>&1 && ", ctl,
                   "user grant-role root root >/dev/null 2>&1 && ", ctl, "auth enable >/dev/null 2>&1");
  if (std::system(make.c_str()) != 0) GTEST_SKIP() << "there is no etcdctl to make users with";
  EtcdOptions options = Towards(server->address());
  options.user = "root";
  options.password = "secret";
  TANDEM_ASSERT_OK_AND_ASSIGN(auto store, EtcdStore::Open(options));
  std::thread waiter([&] { TANDEM_EXPECT_OK(store->Get("a", absl::Seconds(20))); });
  TANDEM_EXPECT_OK(store->Set("a", "1"));
  waiter.join();
  options.password = "wrong";
  EXPECT_THAT(EtcdStore::Open(options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("authentication")));
}

TEST_F(EtcdStoreTest, AWatchThatEtcdCancelsIsMadeAnew) {
  auto server = EtcdServer::Start();
  ASSERT_NE(server, nullptr);
  const std::string ctl = absl::StrCat("ETCDCTL_API=3 etcdctl --endpoints=", server->address(), " ");
  const std::string quietly = " >/dev/null 2>&1";
  const std::string make =
      absl::StrCat(ctl, "user add root:secret", quietly, " && ", ctl, "user grant-role root root", quietly,
                   " && ", ctl, "user add guest:secret", quietly, " && ", ctl, "auth enable", quietly);
  if (std::system(make.c_str()) != 0) GTEST_SKIP() << "there is no etcdctl to make users with";
  EtcdOptions options = Towards(server->address());
  options.user = "guest";
  options.password = "secret";
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto client, EtcdClient::Connect(options));
  etcdserverpb::RangeRequest look;
  look.set_key("job/k/late");
  etcdserverpb::RangeResponse held;
  EXPECT_THAT(client->Call("KV/Range", look, &held, absl::Seconds(20)),
              StatusIs(absl::StatusCode::kPermissionDenied));
  EtcdWatcher watcher(client.get(), "job/");
  EtcdWatcher::Waiter waiter(&watcher, {"job/k/late"}, /*prefix=*/false);
  waiter.Await(absl::Now() + absl::Seconds(1));  // it is refused on a stream that goes on
  const std::string allow = absl::StrCat(ctl, "--user root:secret user grant-role guest root", quietly);
  ASSERT_EQ(std::system(allow.c_str()), 0);
  // Only with a watch does a wait last if nothing happens; without one it ends soon, so that the caller reads
  // again.
  bool lasted = false;
  for (const absl::Time give_up = absl::Now() + absl::Seconds(20); !lasted && absl::Now() < give_up;) {
    const absl::Time start = absl::Now();
    waiter.Await(start + absl::Seconds(1));
    lasted = absl::Now() - start >= absl::Seconds(1);
  }
  EXPECT_TRUE(lasted);
}

TEST_F(EtcdStoreTest, ARendezvousSurvivesTheDeathOfItsFirstLauncherAndAMember) {
  auto cluster = EtcdServer::StartCluster(3);
  ASSERT_EQ(cluster.size(), 3u);
  EtcdOptions options = Towards(cluster[0]->address());
  for (int i = 1; i < 3; ++i) options.endpoints.push_back(cluster[i]->address());
  options.call_timeout = absl::Seconds(7);
  RendezvousOptions rules;
  rules.min_nodes = 1;
  rules.max_nodes = 2;
  rules.max_restarts = 5;
  rules.lease = absl::Seconds(8);
  rules.last_call = absl::Seconds(30);
  auto store_a = EtcdStore::Open(options).value(), store_b = EtcdStore::Open(options).value();
  auto a = MakeRendezvous(store_a.get(), rules).value(), b = MakeRendezvous(store_b.get(), rules).value();
  Node node_a, node_b;
  node_a.id = "a";
  node_b.id = "b";
  absl::StatusOr<Round> round_a;
  std::thread joins([&] { round_a = a->Join(node_a); });
  TANDEM_ASSERT_OK_AND_ASSIGN(const Round round_b, b->Join(node_b));
  joins.join();
  TANDEM_ASSERT_OK(round_a);
  EXPECT_EQ(round_b.nodes.size(), 2u);
  cluster[0]->Kill();
  EXPECT_THAT(b->WaitForEvent(1, absl::Now() + absl::Seconds(10)),
              StatusIs(absl::StatusCode::kDeadlineExceeded))
      << "the death of a member of etcd ended a round";
  a.reset();
  TANDEM_ASSERT_OK(b->WaitForEvent(1, absl::Now() + absl::Seconds(30)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Round alone, b->Join(node_b));
  EXPECT_EQ(alone.nodes.size(), 1u);
}

}  // namespace
}  // namespace tandem::cluster
