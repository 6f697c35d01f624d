// SPDX-License-Identifier: Apache-2.0
// Members of an etcd cluster that respond as the test wants.

#include "cluster/store/etcd/etcd_client.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/store/etcd/etcd_store.h"
#include "etcd/rpc.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/server.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/trusted_network.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

// Responds to reads: with `error`, or with its own name.
class FakeMember {
 public:
  FakeMember(std::string name, absl::Status error) : name_(std::move(name)), error_(std::move(error)) {
    rpc::Service kv = {"etcdserverpb.KV",
                       {{"Range", rpc::Right::kRead,
                         rpc::ProtoHandler<etcdserverpb::RangeRequest, etcdserverpb::RangeResponse>(
                             [this](const etcdserverpb::RangeRequest&) { return Range(); })}}};
    const testing::TrustedNetworkScope plain;  // as the client expects of etcd://
    server_ = rpc::Server::Start({.listen = "127.0.0.1:0", .transport = "grpc"}, {std::move(kv)}).value();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", server_->port()); }
  int asked() const { return asked_; }

 private:
  absl::StatusOr<etcdserverpb::RangeResponse> Range() {
    ++asked_;
    if (!error_.ok()) return error_;
    etcdserverpb::RangeResponse response;
    response.add_kvs()->set_value(name_);
    return response;
  }

  const std::string name_;
  const absl::Status error_;
  std::atomic<int> asked_{0};
  std::unique_ptr<rpc::Server> server_;
};

absl::StatusOr<std::string> Read(const std::vector<std::string>& endpoints,
                                 absl::Duration timeout = absl::Seconds(30)) {
  TANDEM_ASSIGN_OR_RETURN(const auto client, EtcdClient::Connect({.endpoints = endpoints}));
  etcdserverpb::RangeResponse response;
  TANDEM_RETURN_IF_ERROR(client->Call("KV/Range", etcdserverpb::RangeRequest(), &response, timeout));
  return response.kvs(0).value();
}

// etcd reports its Go context's error as Unknown when a call's deadline reaches it before the client.
TEST(EtcdClientTest, AMemberThatGivesUpAtTheDeadlineIsReplacedByAnother) {
  for (const char* words : {"context deadline exceeded", "etcdserver: context canceled"}) {
    FakeMember slow("slow", absl::UnknownError(words)), good("good", absl::OkStatus());
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::string answer, Read({slow.address(), good.address()}));
    EXPECT_EQ(answer, "good") << words;
    EXPECT_EQ(slow.asked(), 1) << words;
  }
}

TEST(EtcdClientTest, WhenAllMembersGiveUpTheStoreIsUnavailableByName) {
  FakeMember one("one", absl::UnknownError("context deadline exceeded"));
  EXPECT_THAT(Read({one.address()}, absl::Seconds(2)).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(one.address())));
  EXPECT_GT(one.asked(), 1) << "it is asked again while there is time";
}

TEST(EtcdClientTest, ARefusalIsNotRetried) {
  FakeMember strict("strict", absl::InvalidArgumentError("etcdserver: key is not provided")),
      other("other", absl::OkStatus());
  EXPECT_THAT(Read({strict.address(), other.address()}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("key is not provided")));
  EXPECT_EQ(other.asked(), 0);
  FakeMember odd("odd", absl::UnknownError("the disk is on fire"));
  EXPECT_THAT(Read({odd.address(), other.address()}).status(), StatusIs(absl::StatusCode::kUnknown));
}

// A member that lets all processes join its lease and makes each change, but pauses during the first.
class PausingMember {
 public:
  PausingMember() {
    using etcdserverpb::LeaseKeepAliveRequest, etcdserverpb::LeaseKeepAliveResponse;
    using etcdserverpb::RangeRequest, etcdserverpb::RangeResponse;
    using etcdserverpb::TxnRequest, etcdserverpb::TxnResponse;
    rpc::Service kv = {
        "etcdserverpb.KV",
        {{"Range", rpc::Right::kRead, rpc::ProtoHandler<RangeRequest, RangeResponse>([](const RangeRequest&) {
            RangeResponse response;
            response.add_kvs()->set_value("7");  // the lease's number
            return absl::StatusOr<RangeResponse>(response);
          })},
         {"Txn", rpc::Right::kTrain,
          rpc::ProtoHandler<TxnRequest, TxnResponse>(
              [this](const TxnRequest& txn) { return Change(txn); })}}};
    rpc::Service lease = {
        "etcdserverpb.Lease",
        {{"LeaseKeepAlive", rpc::Right::kTrain,
          rpc::ProtoHandler<LeaseKeepAliveRequest, LeaseKeepAliveResponse>([](const LeaseKeepAliveRequest&) {
            LeaseKeepAliveResponse response;
            response.set_ttl(1000);
            return absl::StatusOr<LeaseKeepAliveResponse>(response);
          })}}};
    const testing::TrustedNetworkScope plain;
    server_ =
        rpc::Server::Start({.listen = "127.0.0.1:0", .transport = "grpc"}, {std::move(kv), std::move(lease)})
            .value();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", server_->port()); }
  // Returns the names of changes, in order of arrival, and those that were removed.
  std::vector<std::string> made() const {
    absl::MutexLock lock(&mutex_);
    return made_;
  }
  std::vector<std::string> removed() const {
    absl::MutexLock lock(&mutex_);
    return removed_;
  }

 private:
  absl::StatusOr<etcdserverpb::TxnResponse> Change(const etcdserverpb::TxnRequest& txn) {
    absl::MutexLock lock(&mutex_);
    made_.push_back(txn.compare(0).key());
    if (made_.size() == 1) return absl::UnknownError("context deadline exceeded");
    for (const etcdserverpb::RequestOp& op : txn.success()) {
      if (op.has_request_delete_range()) removed_.push_back(op.request_delete_range().key());
    }
    etcdserverpb::TxnResponse response;
    response.set_succeeded(true);
    return response;
  }

  mutable absl::Mutex mutex_;
  std::vector<std::string> made_ ABSL_GUARDED_BY(mutex_), removed_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<rpc::Server> server_;
};

// The first copy may be applied by the paused member at any time: while its name exists, it changes nothing.
TEST(EtcdClientTest, TheKeyOfARepeatedChangeStays) {
  PausingMember member;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto store, EtcdStore::Open({.endpoints = {member.address()}}));
  for (const char* value : {"1", "2", "3", "4"}) TANDEM_ASSERT_OK(store->Set("key", value));
  const std::vector<std::string> made = member.made();
  ASSERT_EQ(made.size(), 5u);
  EXPECT_EQ(made[0], made[1]);
  EXPECT_THAT(member.removed(), ::testing::ElementsAre(made[2], made[3]));
}

}  // namespace
}  // namespace tandem::cluster
