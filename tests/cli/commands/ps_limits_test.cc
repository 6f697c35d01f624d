// SPDX-License-Identifier: Apache-2.0
// Attacks a parameter server that may use 512 MiB while a member trains. Behind TLS, a stranger's connection
// ends in the handshake; so attacks with messages go to servers of a trusted network, where strangers reach
// all code.

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/read_file.h"
#include "cluster/store/store_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/client/client.h"
#include "ps/table.h"
#include "rpc/channel.h"
#include "tests/rpc/hostile_connection.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_key.h"
#include "tests/testing/trusted_network.h"

namespace tandem::cli {
namespace {

using rpc::testing::HostileConnection;
using rpc::testing::StockClient;
using testing::kTestTimeout;
using testing::TandemProcess;

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kMemory = 512 * kMiB;
constexpr absl::Duration kDeadline = absl::Seconds(30);
constexpr char kListTables[] = "/tandem.v1.ParameterServer/ListTables";

// Sets the soft limit of a resource for this process, and for those that it starts, while it exists.
class SoftLimit {
 public:
  SoftLimit(int resource, rlim_t value) : resource_(static_cast<decltype(RLIMIT_DATA)>(resource)) {
    TANDEM_CHECK(::getrlimit(resource_, &before_) == 0);
    rlimit limit = before_;
    limit.rlim_cur = std::min(value, limit.rlim_max);
    TANDEM_CHECK(::setrlimit(resource_, &limit) == 0);
  }
  ~SoftLimit() { ::setrlimit(resource_, &before_); }

 private:
  const decltype(RLIMIT_DATA) resource_;
  rlimit before_ = {};
};

class PsLimitsTest : public ::testing::Test {
 protected:
  enum class Network { kTls, kTrusted };
  void Start(Network network, const std::vector<std::string>& more = {}) {
    if (network == Network::kTrusted) plain_.emplace();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer needs more memory than the limit of this test";
#endif
    TANDEM_ASSERT_OK_AND_ASSIGN(store_, cluster::StoreServer::Start("127.0.0.1:0"));
    std::vector<std::string> args = {"ps",      "--index", "0",        "--num-servers", "1",
                                     "--lease", "60",      "--listen", "127.0.0.1:0"};
    args.insert(args.end(), more.begin(), more.end());
    {
      const SoftLimit data(RLIMIT_DATA, kMemory), stack(RLIMIT_STACK, kMiB);
      server_ = std::make_unique<TandemProcess>(
          args,
          std::map<std::string, std::string>{{"TANDEM_STORE", absl::StrCat("127.0.0.1:", store_->port())}});
    }
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::string address, store_->store()->Get("ps/0", kTestTimeout));
    ASSERT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port_));
    std::vector<std::unique_ptr<rpc::Channel>> channels(1);
    TANDEM_ASSERT_OK_AND_ASSIGN(channels[0], rpc::ConnectGrpc(address, {.caller = testing::WithTestKey()}));
    TANDEM_ASSERT_OK_AND_ASSIGN(client_, ps::Client::Connect(std::move(channels), {.timeout = kDeadline}));
    ps::v1::TableConfig config = ps::EmbeddingTable("user", 16, ps::Sgd(0.1f), ps::Zeros());
    *config.mutable_update_mode() = ps::Async();
    TANDEM_ASSERT_OK(client_->CreateTable(config));
    member_ = std::thread([this] { Train(); });
    AwaitSteps(200);
    absl::MutexLock lock(&mutex_);
    before_ = std::exchange(pulls_, {});
  }
  void TearDown() override {
    if (!member_.joinable()) return;
    {
      absl::MutexLock lock(&mutex_);
      during_ = pulls_;
    }
    AwaitSteps(20);  // after the attack, the member goes on
    stop_.store(true);
    member_.join();
    EXPECT_EQ(failed_.load(), 0);
    if (HighWater() == 0) {
      server_->Wait();
      FAIL() << "the server has ended: " << server_->err();
    }
    std::printf("%d steps of the member, the longest %.2f s; the server's memory %zu MiB at most\n",
                steps_.load(), absl::ToDoubleSeconds(longest_), HighWater() / kMiB);
    for (auto [when, pulls] : {std::make_pair("before", &before_), std::make_pair("during", &during_)}) {
      if (pulls->empty()) continue;
      std::sort(pulls->begin(), pulls->end());
      std::printf("%zu pulls %s the attack: p50 %.2f ms, p99 %.2f ms\n", pulls->size(), when,
                  absl::ToDoubleMilliseconds((*pulls)[pulls->size() / 2]),
                  absl::ToDoubleMilliseconds((*pulls)[pulls->size() * 99 / 100]));
    }
    EXPECT_LT(HighWater(), kMemory);
  }

  void Train() {
    std::vector<uint64_t> ids(256);
    std::vector<float> rows(ids.size() * 16);
    for (uint64_t step = 0; !stop_.load(); ++step) {
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = 1000 * (step % 10) + i;
      const absl::Time begin = MonotonicNow();
      absl::Status done;
      const auto versions = client_->Pull(step, false, {{.table = "user", .ids = ids, .rows = rows.data()}});
      done = versions.status();
      {
        absl::MutexLock lock(&mutex_);
        pulls_.push_back(MonotonicNow() - begin);
      }
      if (done.ok()) {
        done = client_->Push(
            step,
            {{.table = "user", .ids = ids, .gradients = rows.data(), .pulled_versions = (*versions)[0]}});
      }
      longest_ = std::max(longest_, MonotonicNow() - begin);
      if (!done.ok()) {
        ++failed_;
        ADD_FAILURE() << done;
        return;
      }
      ++steps_;
    }
  }
  // Waits until the member has done `more` steps from now on, or has failed.
  void AwaitSteps(int more) {
    const int wanted = steps_.load() + more;
    const absl::Time end = MonotonicNow() + 3 * kDeadline;
    while (steps_.load() < wanted && failed_.load() == 0 && MonotonicNow() < end) std::this_thread::yield();
    EXPECT_GE(steps_.load(), wanted);
  }
  // Returns the most memory that the server has used, in bytes; 0 if it has ended.
  size_t HighWater() const {
    for (const absl::string_view line :
         absl::StrSplit(ReadFile(absl::StrCat("/proc/", server_->pid(), "/status")).value_or(""), '\n')) {
      const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar("\t "), absl::SkipEmpty());
      size_t kib = 0;
      if (words.size() >= 2 && words[0] == "VmHWM:" && absl::SimpleAtoi(words[1], &kib)) return kib * 1024;
    }
    return 0;
  }

  // Sends as much as the server takes of `streams` messages that are never complete, on each of `connections`
  // connections, until `bytes` were sent in all or the server has closed all of them.
  void SendIncompleteMessages(int connections, int streams, size_t bytes) {
    std::vector<std::unique_ptr<HostileConnection>> open;
    for (int i = 0; i < connections; ++i) {
      open.push_back(std::make_unique<HostileConnection>(port_));
      if (!open.back()->Open()) {
        open.pop_back();
        continue;
      }
      for (int s = 0; s < streams; ++s) {
        open.back()->Headers(2 * s + 1, kListTables);
        open.back()->Data(2 * s + 1, HostileConnection::Prefix(1u << 30));
      }
    }
    size_t sent = 0;
    const absl::Time end = MonotonicNow() + absl::Seconds(20);
    while (sent < bytes && !open.empty() && MonotonicNow() < end) {
      for (size_t i = open.size(); i-- > 0;) {
        size_t now = 0;
        for (int s = 0; s < streams; ++s)
          now += open[i]->SendAllowed(2 * s + 1, kMiB, s == 0 ? absl::Seconds(1) : absl::ZeroDuration());
        sent += now;
        if (now == 0) open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    std::printf("sent %zu MiB of incomplete messages\n", sent / kMiB);
  }

  std::optional<testing::TrustedNetworkScope> plain_;
  int port_ = 0;
  std::unique_ptr<cluster::StoreServer> store_;
  std::unique_ptr<TandemProcess> server_;
  std::unique_ptr<ps::Client> client_;
  std::thread member_;
  std::atomic<int> steps_{0}, failed_{0};
  std::atomic<bool> stop_{false};
  absl::Duration longest_;
  absl::Mutex mutex_;
  std::vector<absl::Duration> pulls_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Duration> before_, during_;
};

TEST_F(PsLimitsTest, CompressedMessages) {
  ASSERT_NO_FATAL_FAILURE(Start(Network::kTrusted));
  if (IsSkipped()) return;
  StockClient stranger(port_);
  const std::string zeros(200 * kMiB, '\0');
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(stranger.Call(kListTables, zeros, GRPC_COMPRESS_GZIP).code(), absl::StatusCode::kUnimplemented);
  }
}

TEST_F(PsLimitsTest, ManyLargeMessagesOnOneConnection) {
  ASSERT_NO_FATAL_FAILURE(Start(Network::kTrusted));
  if (IsSkipped()) return;
  SendIncompleteMessages(1, 60, 3 * kMemory);
}

TEST_F(PsLimitsTest, LargeMessagesOnManyConnections) {
  ASSERT_NO_FATAL_FAILURE(Start(Network::kTrusted));
  if (IsSkipped()) return;
  SendIncompleteMessages(100, 4, 3 * kMemory);
}

TEST_F(PsLimitsTest, ALargeHeader) {
  ASSERT_NO_FATAL_FAILURE(Start(Network::kTrusted));
  if (IsSkipped()) return;
  HostileConnection stranger(port_);
  ASSERT_TRUE(stranger.Open());
  constexpr size_t kHeader = 42 * kMiB;
  std::string length;
  size_t rest = kHeader - 127;
  for (length.push_back(127); rest >= 128; rest >>= 7)
    length.push_back(static_cast<char>(128 | (rest & 127)));
  length.push_back(static_cast<char>(rest));
  stranger.Send(HostileConnection::Frame(
      1, 0, 1, absl::StrCat(HostileConnection::Block(kListTables), std::string(1, '\0'), "\x01x", length)));
  size_t sent = 0;
  const std::string part(16384, 'x');
  while (sent < kHeader && stranger.Send(HostileConnection::Frame(9, 0, 1, part))) sent += part.size();
  std::printf("sent %zu MiB of a header\n", sent / kMiB);
}

TEST_F(PsLimitsTest, AThousandSlowConnections) {
  ASSERT_NO_FATAL_FAILURE(Start(Network::kTrusted));
  if (IsSkipped()) return;
  std::vector<std::unique_ptr<HostileConnection>> slow;
  for (int i = 0; i < 1000; ++i) {
    slow.push_back(std::make_unique<HostileConnection>(port_));
    ASSERT_TRUE(slow.back()->Open()) << i;
    slow.back()->Headers(1, kListTables);
    slow.back()->Data(1, HostileConnection::Prefix(kMiB));
  }
  for (int round = 0; round < 10; ++round) {
    for (const auto& one : slow) {
      EXPECT_TRUE(one->AnswerPings());
      one->Data(1, "x");
    }
    AwaitSteps(10);
  }
}

TEST_F(PsLimitsTest, IdleConnectionsUpToTheLimit) {
  ASSERT_NO_FATAL_FAILURE(Start(Network::kTrusted, {"--max-connections", "10000"}));
  if (IsSkipped()) return;
  rlimit descriptors = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &descriptors), 0);
  const size_t count = std::min<size_t>(10'000, descriptors.rlim_cur / 4 * 3) - 10;
  std::vector<std::unique_ptr<HostileConnection>> idle;
  while (idle.size() < count) {
    idle.push_back(std::make_unique<HostileConnection>(port_));
    ASSERT_TRUE(idle.back()->Open()) << idle.size();
  }
  std::printf("%zu idle connections\n", idle.size());
  AwaitSteps(100);
}

// Each sends one byte of a handshake after the other.
TEST_F(PsLimitsTest, AThousandConnectionsThatAreSlowInTheHandshakeOfTls) {
  ASSERT_NO_FATAL_FAILURE(Start(Network::kTls));
  if (IsSkipped()) return;
  const std::string hello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
  std::vector<std::unique_ptr<HostileConnection>> slow;
  for (int i = 0; i < 1000; ++i) {
    slow.push_back(std::make_unique<HostileConnection>(port_));
    ASSERT_TRUE(slow.back()->connected()) << i;
  }
  for (const char byte : hello) {
    for (const auto& one : slow) one->Send({&byte, 1});
    AwaitSteps(10);
  }
  for (const auto& one : slow) EXPECT_TRUE(one->AwaitClosed(absl::Seconds(30)));
}

}  // namespace
}  // namespace tandem::cli
