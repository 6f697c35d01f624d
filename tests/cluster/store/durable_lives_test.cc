// SPDX-License-Identifier: Apache-2.0
// A store on a disk keeps who is a member and how the job has ended, whatever its process was killed in; and
// what happens when the disk fails to sync.

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "cluster/join.h"
#include "cluster/membership/local_membership.h"
#include "cluster/store/remote_store.h"
#include "cluster/store/store_disk.h"
#include "cluster/store/store_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tandem/v1/store.pb.h"
#include "tests/cluster/store/killed_store.h"
#include "tests/testing/processes/processes.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/test_key.h"

// While it is set, no data reaches a disk.
static std::atomic<bool> g_disk_fails = false;

// Takes the place of the C library's.
extern "C" int fdatasync(int descriptor) {
  if (g_disk_fails) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fdatasync, descriptor));
}

namespace tandem::cluster {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Processes of another machine, which this one cannot look for.
const MemberProcess kDurableFirst{
    .host = "node-b", .boot_id = "b", .pid_namespace = 1, .pid = 12, .started = 7};
const MemberProcess kDurableSecond{
    .host = "node-b", .boot_id = "b", .pid_namespace = 1, .pid = 13, .started = 8};

// The calls of members and launchers, each over a connection of its own.
class DurableMembers {
 public:
  explicit DurableMembers(const KilledStore& store) : store_(store) {}
  template <typename Response, typename Request>
  absl::StatusOr<Response> Call(absl::string_view method, const Request& request, rpc::Caller caller = {}) {
    Response response;
    const auto channel =
        rpc::ConnectGrpc(store_.address(), {.caller = testing::WithTestKey(std::move(caller))}).value();
    const absl::Status called =
        rpc::CallProto(*channel, absl::StrCat("/tandem.v1.Store/", method), request, &response,
                       {.timeout = testing::kTestTimeout, .idempotent = true});
    if (!called.ok()) return called;
    return response;
  }
  v1::JoinResponse Join(const std::string& member, const MemberProcess& process) {
    v1::JoinRequest request;
    request.set_member(member);
    *request.mutable_process() = process.ToProto();
    return Call<v1::JoinResponse>("Join", request).value();
  }
  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const std::string& member, int64_t life,
                                                  absl::Duration lease = absl::Hours(1)) {
    v1::HeartbeatRequest request;
    request.set_member(member);
    request.set_lease_ms(absl::ToInt64Milliseconds(lease));
    // Without a life the caller is a client, which has no name.
    return Call<v1::HeartbeatResponse>("Heartbeat", request,
                                       {.member = life > 0 ? member : "", .life = life});
  }
  void EndLife(const std::string& member, const MemberProcess& process) {
    v1::EndLifeRequest request;
    request.set_member(member);
    *request.mutable_process() = process.ToProto();
    TANDEM_EXPECT_OK(Call<v1::EndLifeResponse>("EndLife", request));
  }

 private:
  const KilledStore& store_;
};

TEST(DurableLivesTest, AStoreThatIsKilledStillRefusesASecondProcessOfAName) {
  TempDir directory;
  KilledStore store(directory.File("d"));
  DurableMembers members(store);
  EXPECT_EQ(members.Join("worker/0", kDurableFirst).life(), 1);
  TANDEM_ASSERT_OK(members.Heartbeat("worker/0", 1));
  for (int kill = 0; kill < 2; ++kill) {
    store.KillAndRestart();
    const v1::JoinResponse second = members.Join("worker/0", kDurableSecond);
    EXPECT_EQ(second.life(), 0);
    ASSERT_TRUE(second.has_holder()) << "kill " << kill;
    EXPECT_EQ(second.holder().life(), 1);
    EXPECT_EQ(second.holder().lease_ms(), 3600000);
    EXPECT_EQ(MemberProcess::FromProto(second.holder().process()), kDurableFirst);
    TANDEM_EXPECT_OK(members.Heartbeat("worker/0", 1));
  }
}

TEST(DurableLivesTest, AReplacedProcessIsRefusedAlsoByAStoreThatWasKilled) {
  TempDir directory;
  KilledStore store(directory.File("d"));
  DurableMembers members(store);
  EXPECT_EQ(members.Join("worker/0", kDurableFirst).life(), 1);
  members.EndLife("worker/0", kDurableFirst);
  store.KillAndRestart();
  EXPECT_EQ(members.Join("worker/0", kDurableSecond).life(), 2) << "a life that was ended is still ended";
  store.KillAndRestart();
  EXPECT_THAT(members.Heartbeat("worker/0", 1).status(),
              StatusIs(absl::StatusCode::kAlreadyExists, AllOf(HasSubstr("worker/0 (life 1) was replaced"),
                                                               HasSubstr(kDurableSecond.ToString()))));
  TANDEM_EXPECT_OK(members.Heartbeat("worker/0", 2));
}

TEST(DurableLivesTest, AJobThatHasEndedStaysEndedWithItsReason) {
  TempDir directory;
  KilledStore store(directory.File("d"));
  DurableMembers members(store);
  v1::EndJobRequest end;
  end.set_member("worker/1");
  end.set_failed(true);
  end.set_reason("out of memory");
  TANDEM_ASSERT_OK(members.Call<v1::EndJobResponse>("EndJob", end));
  store.KillAndRestart();
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::HeartbeatResponse job, members.Heartbeat("worker/0", 0));
  EXPECT_TRUE(job.ended());
  EXPECT_TRUE(job.failed());
  EXPECT_EQ(job.reason(), "worker/1: out of memory");
}

TEST(DurableLivesTest, AMemberThatDiesWhileTheStoreIsDownIsFoundALeaseLater) {
  TempDir directory;
  KilledStore store(directory.File("d"));
  DurableMembers members(store);
  EXPECT_EQ(members.Join("worker/0", kDurableFirst).life(), 1);
  TANDEM_ASSERT_OK(members.Heartbeat("worker/0", 1, absl::Milliseconds(500)));
  store.KillAndRestart();
  const absl::Time deadline = MonotonicNow() + testing::kTestTimeout;
  v1::HeartbeatResponse job;
  while (!job.ended() && MonotonicNow() < deadline) job = members.Heartbeat("worker/1", 0).value();
  EXPECT_TRUE(job.failed());
  EXPECT_THAT(job.reason(), HasSubstr("worker/0 has been silent"));
}

TEST(DurableLivesTest, ARewrittenLogKeepsLivesAndTheEnd) {
  TempDir directory;
  for (int start = 0; start < 2; ++start) {
    MemoryStore store;
    const auto disk = StoreDisk::Open(directory.File("d"), &store, nullptr).value();
    LocalMembership membership(Clock::Real(), disk->incarnation());
    disk->Restore(&membership);
    if (start == 0) {
      ASSERT_EQ(membership.Join("worker/0", kDurableFirst)->life, 1);
      TANDEM_ASSERT_OK(membership.Heartbeat("worker/0", absl::Hours(1), /*leaving=*/false, {}, 1));
      ASSERT_EQ(membership.Join("worker/1", kDurableSecond)->life, 1);
      TANDEM_ASSERT_OK(membership.Heartbeat("worker/1", absl::Hours(1), /*leaving=*/true, {}, 1));
      TANDEM_ASSERT_OK(membership.End("worker/1", /*failed=*/false, "done"));
      for (int i = 0; i < 8; ++i) TANDEM_ASSERT_OK(store.Set("big", std::string(1 << 20, 'b')));
      const absl::Time deadline = MonotonicNow() + testing::kTestTimeout;
      while (disk->log_bytes() > (4u << 20) && MonotonicNow() < deadline) ::usleep(1000);
      ASSERT_LE(disk->log_bytes(), 4u << 20);
    }
    EXPECT_EQ(membership.State().reason, "worker/1: done");
    EXPECT_EQ(membership.Members(), std::vector<std::string>{"worker/0"});
    EXPECT_TRUE(membership.Join("worker/0", kDurableSecond)->holder.has_value());
  }
}

TEST(DurableLivesTest, ADiskThatFailsToSyncEndsTheStoreAndNothingMoreIsAcknowledged) {
  TempDir directory;
  absl::Notification failed;
  {
    const auto server =
        StoreServer::Start(
            "127.0.0.1:0", Clock::Real(), nullptr,
            {.disk = {.directory = directory.File("d"), .on_failure = [&] { failed.Notify(); }}})
            .value();
    RemoteStore store(ConnectStore(absl::StrCat("127.0.0.1:", server->port())).value(),
                      testing::kTestTimeout);
    TANDEM_ASSERT_OK(store.Set("before", "1"));
    const auto refused = StatusIs(
        absl::StatusCode::kAborted,
        AllOf(HasSubstr("the disk of the job's store has failed"), HasSubstr(directory.File("d/log"))));
    g_disk_fails = true;
    EXPECT_THAT(store.Set("after", "2"), refused);
    EXPECT_TRUE(failed.WaitForNotificationWithTimeout(testing::kTestTimeout)) << "the process must end";
    // A later success of the disk says nothing about what it has lost: the store does not go on.
    g_disk_fails = false;
    EXPECT_THAT(store.Set("later", "3"), refused);
    EXPECT_THAT(store.Get("before", testing::kTestTimeout).status(), refused);
    EXPECT_THAT(server->membership()->Join("worker/0", kDurableFirst).status(), refused);
    EXPECT_THAT(server->disk()->failure(), refused);
  }
  const auto again = StoreServer::Start("127.0.0.1:0", Clock::Real(), nullptr,
                                        {.disk = {.directory = directory.File("d"), .on_failure = nullptr}})
                         .value();
  EXPECT_EQ(again->store()->TryGet("before"), "1");
  EXPECT_EQ(again->store()->TryGet("later"), absl::nullopt);
}

}  // namespace
}  // namespace tandem::cluster
