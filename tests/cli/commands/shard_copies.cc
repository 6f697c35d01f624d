// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/commands/shard_copies.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/join.h"
#include "cluster/store/etcd/etcd_channel.h"
#include "cluster/store/remote_store.h"
#include "gtest/gtest.h"
#include "ps/client/route/routed_channel.h"
#include "ps/failover/store_board.h"
#include "tests/testing/test_key.h"

namespace tandem::cli {
namespace {

using testing::kTestTimeout;
using testing::Relay;
using testing::TandemProcess;

constexpr char kServingAt[] = "serving at ";
constexpr char kBoundTo[] = " (bound to ";
constexpr char kAfterAddress[] = ", copy ";

int PortOf(const std::string& address) {
  int port = 0;
  TANDEM_CHECK_MSG(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port), address);
  return port;
}

}  // namespace

ShardCopies::ShardCopies(uint32_t shards, uint32_t followers, HostOf host, Network network, int lease_seconds,
                         std::string store)
    : shards_(shards),
      followers_(followers),
      host_(std::move(host)),
      network_(network),
      lease_(absl::StrCat(lease_seconds)),
      // Relays forward to 127.0.0.1. A store that is started again needs an address of its own.
      store_address_(!store.empty()                 ? std::move(store)
                     : network == Network::kRelayed ? "127.0.0.1:0"
                                                    : "127.0.77.9:0") {
  if (!cluster::IsEtcdAddress(store_address_)) StartStore();
  processes_.resize(shards_);
  for (uint32_t s = 0; s < shards_; ++s) {
    processes_[s].resize(copies());
    for (uint32_t c = 0; c < copies(); ++c) Spawn(s, c);
  }
  for (uint32_t s = 0; s < shards_; ++s) {
    for (uint32_t c = 0; c < copies(); ++c) AwaitListening(s, c);
  }
  for (uint32_t s = 0; s < shards_; ++s) {
    TANDEM_CHECK_MSG(AwaitRedundant(s) >= 0, Describe());
  }
}

void ShardCopies::StartStore() {
  store_ = std::make_unique<TandemProcess>(std::vector<std::string>{"store", "--listen", store_address_});
  TANDEM_CHECK(store_->WaitForLine([this](const std::string& line) {
    store_address_ = line;
    return true;
  }));
}

void ShardCopies::KillStore() {
  store_->Signal(SIGKILL);
  EXPECT_EQ(store_->Wait(), 128 + SIGKILL);
}

ShardCopies::~ShardCopies() {
  // A stopped process would not be killed by closing its input.
  for (std::vector<Process>& shard : processes_) {
    for (Process& one : shard) {
      one.channel.reset();
      if (one.process != nullptr) one.process->Signal(SIGCONT);
    }
  }
}

absl::StatusOr<std::unique_ptr<ps::Client>> ConnectToShards(const ShardAddresses& addresses,
                                                            const ps::ClientOptions& client) {
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<rpc::Channel> store, cluster::ConnectStore(addresses.store));
  const auto board = std::make_shared<ps::StoreBoard>(std::move(store));
  std::vector<std::unique_ptr<rpc::Channel>> channels;
  for (uint32_t s = 0; s < addresses.copies.size(); ++s) {
    ps::RoutedChannelOptions options;
    options.shard = s;
    options.locate = [board, s](absl::Duration limit) { return board->Read(s, limit); };
    options.addresses = addresses.copies[s];
    options.connect.channel.caller = testing::WithTestKey();
    TANDEM_ASSIGN_OR_RETURN(auto channel, ps::ConnectRouted(std::move(options)));
    channels.push_back(std::move(channel));
  }
  return ps::Client::Connect(std::move(channels), client);
}

ShardAddresses ShardCopies::Addresses() const {
  ShardAddresses addresses{.store = store_address_, .copies = {}};
  for (const std::vector<Process>& shard : processes_) {
    std::vector<std::string>& copies = addresses.copies.emplace_back();
    for (const Process& one : shard) copies.push_back(one.address);
  }
  return addresses;
}

absl::StatusOr<std::unique_ptr<ps::Client>> ShardCopies::Connect(uint32_t worker, absl::Duration timeout,
                                                                 absl::Duration max_lag) {
  return ConnectToShards(Addresses(), {.worker = worker, .timeout = timeout, .max_lag = max_lag});
}

void ShardCopies::Spawn(uint32_t shard, uint32_t copy) {
  Process& one = At(shard, copy);
  one.channel.reset();
  const std::string host = host_ ? host_(shard, copy) : "127.0.0.1";
  // A relay stands for the process at its host.
  const std::string listen = absl::StrCat(network_ == Network::kRelayed ? "127.0.0.1" : host, ":0");
  std::vector<std::string> args = {"ps",
                                   "--index",
                                   absl::StrCat(shard),
                                   "--num-servers",
                                   absl::StrCat(shards_),
                                   "--followers",
                                   absl::StrCat(std::max(followers_, copy)),
                                   "--listen",
                                   listen,
                                   "--lease",
                                   lease_};
  if (!std::exchange(one.started, true)) args.push_back("--fresh");
  std::string store = store_address_;
  if (network_ == Network::kRelayed) {
    one.callers = std::make_unique<Relay>(host);
    one.to_store = std::make_unique<Relay>();
    one.to_store->Forward(PortOf(store_address_));
    store = one.to_store->address();
    args.insert(args.end(), {"--advertise", one.callers->address(), "--transport", "grpc"});
  }
  one.process = std::make_unique<TandemProcess>(
      args,
      std::map<std::string, std::string>{{"TANDEM_STORE", store}, {"TANDEM_PS_COPY", absl::StrCat(copy)}});
}

void ShardCopies::AwaitListening(uint32_t shard, uint32_t copy) {
  Process& one = At(shard, copy);
  TANDEM_CHECK_MSG(one.process->WaitForOutput(kAfterAddress), one.process->err());
  const std::string& text = one.process->err();
  const size_t from = text.find(kServingAt) + sizeof(kServingAt) - 1;
  const std::string said = text.substr(from, text.find(kAfterAddress, from) - from);
  // With a relay: "ADDRESS (bound to ADDRESS)"
  const std::vector<std::string> addresses = absl::StrSplit(said, absl::ByString(kBoundTo));
  one.address = addresses[0];
  const std::string listens(absl::StripSuffix(addresses.back(), ")"));
  if (network_ == Network::kRelayed) one.callers->Forward(PortOf(listens));
  absl::StatusOr<std::unique_ptr<rpc::Channel>> channel =
      rpc::ConnectGrpc(listens, {.caller = testing::WithTestKey({.member = "the test"})});
  TANDEM_CHECK_MSG(channel.ok(), channel.status().message());
  one.channel = *std::move(channel);
}

void ShardCopies::Kill(uint32_t shard, uint32_t copy) {
  At(shard, copy).process->Signal(SIGKILL);
  EXPECT_EQ(At(shard, copy).process->Wait(), 128 + SIGKILL) << At(shard, copy).process->err();
  // Its port refuses connections, like that of a dead process.
  At(shard, copy).callers.reset();
}

void ShardCopies::Stop(TandemProcess& process) {
  process.Signal(SIGSTOP);
  siginfo_t info = {};
  TANDEM_CHECK(::waitid(P_PID, static_cast<id_t>(process.pid()), &info, WSTOPPED) == 0);
}

void ShardCopies::Start(uint32_t shard, uint32_t copy) {
  Spawn(shard, copy);
  AwaitListening(shard, copy);
}

uint32_t ShardCopies::Add(uint32_t shard) {
  const uint32_t copy = CopiesOf(shard);
  processes_[shard].emplace_back().started = true;  // it never begins the shard
  Start(shard, copy);
  return copy;
}

void ShardCopies::Remove(uint32_t shard) {
  TANDEM_CHECK(CopiesOf(shard) > copies());
  processes_[shard].pop_back();
}

void ShardCopies::CutFromStore(uint32_t shard, uint32_t copy) {
  At(shard, copy).to_store->Cut(Relay::kEveryone);
}

void ShardCopies::CutFromCopies(uint32_t shard, uint32_t copy) {
  for (uint32_t other = 0; other < CopiesOf(shard); ++other) {
    if (other == copy) continue;
    At(shard, copy).callers->Cut(process(shard, other).pid());
    At(shard, other).callers->Cut(process(shard, copy).pid());
  }
}

void ShardCopies::CutFromCaller(uint32_t shard, uint32_t copy, pid_t caller) {
  At(shard, copy).callers->Cut(caller);
}

void ShardCopies::CutAnswers(uint32_t shard, uint32_t copy) {
  At(shard, copy).callers->Cut(Relay::kEveryone, Relay::Way::kBack);
}

void ShardCopies::Isolate(uint32_t shard, uint32_t copy) {
  CutFromStore(shard, copy);
  CutFromCopies(shard, copy);
  At(shard, copy).callers->Cut(Relay::kEveryone);
}

void ShardCopies::Heal(uint32_t shard) {
  for (Process& one : processes_[shard]) {
    if (one.callers != nullptr) one.callers->Heal();
    if (one.to_store != nullptr) one.to_store->Heal();
  }
}

bool ShardCopies::AwaitEnd(uint32_t shard, uint32_t copy, const std::string& text) {
  TandemProcess& process = *At(shard, copy).process;
  const int code = process.Wait();
  const bool as_wanted = code == 1 && absl::StrContains(process.err(), text);
  EXPECT_TRUE(as_wanted) << "exit code " << code << ", expected 1 and '" << text << "': " << process.err();
  return as_wanted;
}

bool ShardCopies::HasEnded(uint32_t shard, uint32_t copy) {
  siginfo_t info = {};
  const auto pid = static_cast<id_t>(At(shard, copy).process->pid());
  return ::waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

int ShardCopies::AwaitExit(uint32_t shard, uint32_t copy) { return At(shard, copy).process->Wait(); }

absl::StatusOr<v1::HandOverResponse> ShardCopies::TryHandOver(uint32_t shard, uint32_t primary, uint32_t to,
                                                              absl::Duration timeout) {
  v1::HandOverRequest request;
  request.set_to(At(shard, to).address);
  v1::HandOverResponse response;
  TANDEM_RETURN_IF_ERROR(rpc::CallProto(*At(shard, primary).channel, "/tandem.v1.Failover/HandOver", request,
                                        &response, {.timeout = timeout}));
  return response;
}

absl::StatusOr<v1::HandOverResponse> ShardCopies::HandOver(uint32_t shard, uint32_t primary, uint32_t to) {
  const absl::Time deadline = MonotonicNow() + kTestTimeout;
  while (true) {
    absl::StatusOr<v1::HandOverResponse> response = TryHandOver(shard, primary, to, kTestTimeout);
    if (!absl::IsUnavailable(response.status()) || MonotonicNow() > deadline) return response;
    if (HasEnded(shard, primary)) return v1::HandOverResponse();
  }
}

absl::StatusOr<v1::LeaveResponse> ShardCopies::Leave(uint32_t shard, uint32_t copy) {
  const absl::Time deadline = MonotonicNow() + kTestTimeout;
  while (true) {
    v1::LeaveResponse response;
    const absl::Status left = rpc::CallProto(*At(shard, copy).channel, "/tandem.v1.Failover/Leave",
                                             v1::LeaveRequest(), &response, {.timeout = kTestTimeout});
    if (left.ok()) return response;
    if (!absl::IsUnavailable(left) || MonotonicNow() > deadline) return left;
    if (HasEnded(shard, copy)) return v1::LeaveResponse();
  }
}

absl::StatusOr<v1::ReplicaStatus> ShardCopies::Status(uint32_t shard, uint32_t copy, uint64_t wait_version,
                                                      absl::Duration wait) {
  v1::GetPlacementRequest request;
  request.set_wait_version(wait_version);
  request.set_wait_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(wait)));
  v1::ReplicaStatus status;
  TANDEM_RETURN_IF_ERROR(rpc::CallProto(*At(shard, copy).channel, "/tandem.v1.Failover/GetPlacement", request,
                                        &status, {.timeout = wait + absl::Seconds(1)}));
  return status;
}

bool ShardCopies::AwaitStatus(uint32_t shard, uint32_t copy,
                              const std::function<bool(const v1::ReplicaStatus&)>& wanted) {
  const absl::Time deadline = MonotonicNow() + kTestTimeout;
  uint64_t version = 0;
  absl::Duration wait = absl::ZeroDuration();
  while (MonotonicNow() < deadline) {
    const absl::StatusOr<v1::ReplicaStatus> status = Status(shard, copy, version, wait);
    if (status.ok() && wanted(*status)) return true;
    version = status.ok() ? status->placement().version() : 0;
    // Not every change that `wanted` looks at changes the version or the role.
    wait = status.ok() ? absl::Milliseconds(50) : absl::ZeroDuration();
  }
  return false;
}

void ShardCopies::Tend(uint32_t shard) {
  for (uint32_t c = 0; c < CopiesOf(shard); ++c) {
    if (HasEnded(shard, c)) Start(shard, c);
  }
}

bool ShardCopies::AwaitHandedOver(uint32_t shard, uint32_t primary) {
  const pid_t pid = process(shard, primary).pid();
  const absl::Time deadline = MonotonicNow() + kTestTimeout;
  while (MonotonicNow() < deadline) {
    if (HasEnded(shard, primary)) {
      // The answer of its successor was lost.
      EXPECT_EQ(AwaitExit(shard, primary), kComesBack) << process(shard, primary).err();
      Start(shard, primary);
      return AwaitRedundant(shard) >= 0;
    }
    for (uint32_t c = 0; c < CopiesOf(shard); ++c) {
      if (c == primary || HasEnded(shard, c)) continue;
      const absl::StatusOr<v1::ReplicaStatus> status = Status(shard, c);
      if (!status.ok() || status->role() != v1::REPLICA_ROLE_PRIMARY || !status->serving()) continue;
      for (const auto& follower : status->placement().in_sync()) {
        if (follower.address() == address(shard, primary)) return process(shard, primary).pid() == pid;
      }
      Status(shard, c, status->placement().version(), absl::Milliseconds(20)).IgnoreError();
    }
  }
  return false;
}

int ShardCopies::AwaitRedundant(uint32_t shard) {
  const absl::Time deadline = MonotonicNow() + kTestTimeout;
  while (MonotonicNow() < deadline) {
    Tend(shard);
    for (uint32_t c = 0; c < CopiesOf(shard); ++c) {
      const absl::StatusOr<v1::ReplicaStatus> status = Status(shard, c);
      if (status.ok() && status->role() == v1::REPLICA_ROLE_PRIMARY && status->serving() &&
          status->placement().in_sync_size() == static_cast<int>(CopiesOf(shard) - 1)) {
        return static_cast<int>(c);
      }
      if (status.ok()) Status(shard, c, status->placement().version(), absl::Milliseconds(20)).IgnoreError();
    }
  }
  return -1;
}

int ShardCopies::AwaitTermAbove(uint32_t shard, uint64_t term) {
  const absl::Time deadline = MonotonicNow() + kTestTimeout;
  while (MonotonicNow() < deadline) {
    for (uint32_t c = 0; c < CopiesOf(shard); ++c) {
      const absl::StatusOr<v1::ReplicaStatus> status = Status(shard, c, 0, absl::ZeroDuration());
      if (status.ok() && status->role() == v1::REPLICA_ROLE_PRIMARY && status->serving() &&
          status->placement().term() > term) {
        return static_cast<int>(c);
      }
      if (status.ok()) Status(shard, c, status->placement().version(), absl::Milliseconds(20)).IgnoreError();
    }
  }
  return -1;
}

bool ShardCopies::AwaitPlacementAfter(uint32_t shard, uint64_t version) {
  const absl::Time deadline = MonotonicNow() + kTestTimeout;
  while (MonotonicNow() < deadline) {
    for (uint32_t c = 0; c < CopiesOf(shard); ++c) {
      const absl::StatusOr<v1::ReplicaStatus> status = Status(shard, c, version, absl::Milliseconds(20));
      if (status.ok() && status->placement().version() > version) return true;
    }
  }
  return false;
}

std::string ShardCopies::Describe() {
  std::string text;
  for (uint32_t s = 0; s < shards_; ++s) {
    for (uint32_t c = 0; c < CopiesOf(s); ++c) {
      const absl::StatusOr<v1::ReplicaStatus> status = Status(s, c);
      absl::StrAppend(&text, "shard ", s, " copy ", c, " at ", At(s, c).address, ": ",
                      status.ok() ? status->ShortDebugString() : std::string(status.status().message()), "\n",
                      At(s, c).process->err(), "\n");
    }
  }
  return text;
}

}  // namespace tandem::cli
