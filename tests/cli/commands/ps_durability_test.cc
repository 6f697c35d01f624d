// SPDX-License-Identifier: Apache-2.0
// Real servers are killed while workers push, and come back with their logs. Each push counts exactly once.

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/random.h"
#include "base/status.h"
#include "cluster/store/store_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/host/port_reservation.h"
#include "ps/client/client.h"
#include "rpc/channel.h"
#include "rpc/connect.h"
#include "tandem/v1/durability.pb.h"
#include "tests/cli/commands/exactly_once.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/test_key.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;
using testing::kTestTimeout;
using testing::TandemProcess;

constexpr uint32_t kServers = 2;
constexpr uint32_t kWorkers = 2;
constexpr uint64_t kStepsBetweenKills = 100;  // of each worker

// The number of servers killed, over all modes. TANDEM_DURABILITY_KILLS=200 is the long form.
int Kills() {
  const char* const text = std::getenv("TANDEM_DURABILITY_KILLS");
  return text == nullptr ? 20 : std::atoi(text);
}

// Servers whose logs are in one directory, at ports that stay theirs.
class DurableServers {
 public:
  explicit DurableServers(std::vector<std::string> more = {}) : more_(std::move(more)) {
    absl::StatusOr<std::unique_ptr<cluster::StoreServer>> store = cluster::StoreServer::Start("127.0.0.1:0");
    TANDEM_CHECK(store.ok());
    store_ = *std::move(store);
    for (uint32_t s = 0; s < kServers; ++s) {
      absl::StatusOr<std::unique_ptr<launcher::PortReservation>> port = launcher::PortReservation::Keep(0);
      TANDEM_CHECK(port.ok());
      ports_.push_back(*std::move(port));
      processes_.emplace_back();
      Start(s);
    }
  }
  void Start(uint32_t s) {
    std::vector<std::string> args = {"ps",
                                     "--index",
                                     absl::StrCat(s),
                                     "--num-servers",
                                     absl::StrCat(kServers),
                                     "--listen",
                                     absl::StrCat("127.0.0.1:", ports_[s]->port()),
                                     "--wal-dir",
                                     directory_.File(absl::StrCat(s)),
                                     "--lease",
                                     "600"};
    args.insert(args.end(), more_.begin(), more_.end());
    processes_[s] = std::make_unique<TandemProcess>(
        args,
        std::map<std::string, std::string>{{"TANDEM_STORE", absl::StrCat("127.0.0.1:", store_->port())}});
  }
  void Kill(uint32_t s) {
    processes_[s]->Signal(SIGKILL);
    EXPECT_EQ(processes_[s]->Wait(), 128 + SIGKILL) << processes_[s]->err();
  }
  absl::StatusOr<std::unique_ptr<ps::Client>> Connect(uint32_t worker) {
    std::vector<std::unique_ptr<rpc::Channel>> channels;
    for (const auto& port : ports_) {
      TANDEM_ASSIGN_OR_RETURN(auto channel, rpc::Connect(absl::StrCat("127.0.0.1:", port->port()),
                                                         {.channel = {.caller = testing::WithTestKey()}}));
      channels.push_back(std::move(channel));
    }
    return ps::Client::Connect(std::move(channels), {.worker = worker, .timeout = 2 * kTestTimeout});
  }
  absl::StatusOr<v1::DurabilityInfo> Info(uint32_t s) {
    TANDEM_ASSIGN_OR_RETURN(auto channel, rpc::ConnectGrpc(absl::StrCat("127.0.0.1:", ports_[s]->port())));
    v1::DurabilityInfo info;
    TANDEM_RETURN_IF_ERROR(rpc::CallProto(*channel, "/tandem.v1.Durability/GetDurability",
                                          v1::GetDurabilityRequest(), &info,
                                          {.timeout = kTestTimeout, .idempotent = true}));
    return info;
  }
  // Blocks until the server serves; false after kTestTimeout.
  bool AwaitServing(uint32_t s) {
    const absl::Time deadline = absl::Now() + kTestTimeout;
    while (!Info(s).ok()) {
      if (absl::Now() > deadline) return false;
    }
    return true;
  }
  TandemProcess& process(uint32_t s) { return *processes_[s]; }

 private:
  const std::vector<std::string> more_;
  testing::TempDir directory_;
  std::unique_ptr<cluster::StoreServer> store_;
  std::vector<std::unique_ptr<launcher::PortReservation>> ports_;
  std::vector<std::unique_ptr<TandemProcess>> processes_;
};

class PsDurabilityTest : public ::testing::TestWithParam<int> {};

TEST_P(PsDurabilityTest, EachPushCountsOnceWhileServersAreKilled) {
  const int kills = (Kills() + 3) / 4;
  DurableServers servers({"--wal-snapshot", "64KiB", "--wal-sync", GetParam() % 2 == 0 ? "always" : "never"});
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<ExactlyOnce> pushes,
      ExactlyOnce::Start({.servers = kServers,
                          .workers = kWorkers,
                          .mode = AllModes()[static_cast<size_t>(GetParam())].mode,
                          .connect = [&](uint32_t worker) { return servers.Connect(worker); }}));
  CounterRandom random(static_cast<uint64_t>(GetParam()) + 1, 7);
  uint64_t terms = kServers;
  for (int kill = 0; kill < kills; ++kill) {
    // Every kill meets a loaded server that serves.
    if (!pushes->AwaitAcknowledged(kWorkers * kStepsBetweenKills)) break;
    const auto victim = static_cast<uint32_t>(random.Below(kServers));
    if (!servers.AwaitServing(victim)) break;
    servers.Kill(victim);
    servers.Start(victim);
    ++terms;
  }
  // Goes on until every server has replaced a part of its log by a snapshot.
  for (uint32_t s = 0; s < kServers; ++s) {
    const absl::Time deadline = absl::Now() + kTestTimeout;
    for (bool taken = false; !taken && !pushes->failed() && absl::Now() < deadline;) {
      const absl::StatusOr<v1::DurabilityInfo> info = servers.Info(s);
      taken = info.ok() && info->snapshot_position() > 0;
    }
  }
  EXPECT_TRUE(pushes->EachPushCountsOnce());
  uint64_t seen_terms = 0;
  double longest_pause = 0;
  for (uint32_t s = 0; s < kServers; ++s) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const v1::DurabilityInfo info, servers.Info(s));
    EXPECT_EQ(info.synced(), GetParam() % 2 == 0);
    EXPECT_GT(info.snapshot_position(), 0u);
    seen_terms += info.term();
    longest_pause = std::max(longest_pause, info.longest_snapshot_pause_s());
  }
  EXPECT_EQ(seen_terms, terms);
  EXPECT_EQ(terms, kServers + static_cast<uint64_t>(kills));
  RecordProperty("kills", kills);
  RecordProperty("pushes", absl::StrCat(pushes->acknowledged()));
  RecordProperty("longest_snapshot_pause_ms", absl::StrCat(longest_pause * 1e3));
}

INSTANTIATE_TEST_SUITE_P(Modes, PsDurabilityTest, ::testing::Range(0, 4),
                         [](const ::testing::TestParamInfo<int>& info) {
                           return std::string(AllModes()[static_cast<size_t>(info.param)].name);
                         });

TEST(PsLog, AServerThatIsStoppedKeepsItsLogFromAnother) {
  DurableServers servers;
  TANDEM_ASSERT_OK(servers.Connect(0));
  servers.process(0).Signal(SIGSTOP);
  const testing::TempDir scratch;
  // A supervisor that takes the server for dead starts it again with the same log.
  const std::string log =
      absl::StrCat(testing::ReadFile(absl::StrCat("/proc/", servers.process(0).pid(), "/cmdline")));
  const size_t at = log.find("--wal-dir") + sizeof("--wal-dir");
  const std::string directory = log.substr(at, log.find('\0', at) - at);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto store, cluster::StoreServer::Start("127.0.0.1:0"));
  const testing::Finished second =
      testing::RunTandem({"ps", "--index", "0", "--num-servers", "2", "--wal-dir", directory},
                         {{"TANDEM_STORE", absl::StrCat("127.0.0.1:", store->port())}});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.err, HasSubstr(absl::StrCat("is held by process ", servers.process(0).pid())));
  servers.process(0).Signal(SIGCONT);
}

}  // namespace
}  // namespace tandem::cli
