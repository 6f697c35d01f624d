// SPDX-License-Identifier: Apache-2.0
// `tandem replay` as users start it, also when it is killed.

#include <signal.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "replay/client/remote_replay.h"
#include "replay/client/sampler.h"
#include "replay/client/writer.h"
#include "rpc/connect.h"
#include "tandem/v1/replay.pb.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/test_key.h"

namespace tandem::cli {
namespace {

using replay::RemoteReplay;
using replay::TableOptions;
using replay::Writer;
using ::tandem::testing::Finished;
using ::tandem::testing::RunTandem;
using ::tandem::testing::TandemProcess;
using ::testing::HasSubstr;

// A server of the program, with a client.
class Served {
 public:
  explicit Served(const std::vector<std::string>& args, const std::string& transport = "grpc")
      : transport_(transport) {
    std::vector<std::string> all = {"replay", "serve"};
    all.insert(all.end(), args.begin(), args.end());
    args_ = all;
    Start();
    rpc::ConnectOptions options;
    options.transport = transport;
    options.channel.caller = testing::WithTestKey();
    auto channel = rpc::Connect(address_, options);
    TANDEM_CHECK_MSG(channel.ok(), channel.status().ToString());
    channel_ = *std::move(channel);
    replay_ = std::make_unique<RemoteReplay>(channel_);
  }
  void Start() {
    process_ = std::make_unique<TandemProcess>(args_);
    const bool up = process_->WaitForLine([this](const std::string& line) {
      address_ = line;
      return true;
    });
    TANDEM_CHECK_MSG(up, process_->err());
  }
  // Kills the server and starts another one at the same address, which must be a unix socket.
  void Kill() {
    process_->Signal(SIGKILL);
    process_->Wait();
    Start();
  }
  TandemProcess& process() { return *process_; }
  RemoteReplay& replay() { return *replay_; }
  rpc::Channel& channel() { return *channel_; }
  const std::string& address() const { return address_; }
  v1::ReplayTableInfo Info(const std::string& table) {
    v1::ListReplayTablesRequest request;
    request.set_table(table);
    v1::ListReplayTablesResponse response;
    TANDEM_EXPECT_OK(replay_->Call("ListTables", request, &response));
    return response.tables_size() == 1 ? response.tables(0) : v1::ReplayTableInfo();
  }

 private:
  const std::string transport_;
  std::vector<std::string> args_;
  std::unique_ptr<TandemProcess> process_;
  std::string address_;
  std::shared_ptr<rpc::Channel> channel_;
  std::unique_ptr<RemoteReplay> replay_;
};

std::unique_ptr<Writer> ReplayIdWriter(RemoteReplay& replay, uint32_t floats = 1) {
  auto writer =
      Writer::Create(&replay, {{.name = "id", .dtype = DType::kI64}, {.name = "x", .shape = {floats}}},
                     {.name = "actor/0", .chunk_steps = 2});
  TANDEM_CHECK_MSG(writer.ok(), writer.status().ToString());
  return *std::move(writer);
}

absl::Status WriteReplayId(Writer& writer, const std::string& table, int64_t id, uint32_t floats = 1) {
  const std::vector<int64_t> value = {id};
  const std::vector<float> x(floats, static_cast<float>(id));
  absl::Status status = writer.Append({value, x});
  status.Update(writer.CreateItem(table, 1.0, writer.Last(1)));
  return status;
}

TEST(ReplayCommand, ShowsAndChangesTheTablesOfARunningServer) {
  Served served(
      {"--table", "queue:queue:2", "--table", "prioritized:replay:100:10:0.7", "--metrics-port", "0"});
  const auto writer = ReplayIdWriter(served.replay());
  TANDEM_ASSERT_OK(WriteReplayId(*writer, "queue", 1));
  TANDEM_ASSERT_OK(WriteReplayId(*writer, "queue", 2));

  const Finished list = RunTandem({"replay", "list", "--server", served.address()});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_THAT(list.out, HasSubstr("sampler fifo, remover fifo, max_items 2, max_times_sampled 1"));
  EXPECT_THAT(list.out, HasSubstr("sampler prioritized^0.7"));
  EXPECT_THAT(list.out, HasSubstr("id i64, x f32[1]"));
  EXPECT_THAT(list.out, HasSubstr("0 <= inserts x 1 - samples <= 2, min_size 1; diff 2"));
  const Finished json = RunTandem({"replay", "list", "--server", served.address(), "--json"});
  EXPECT_THAT(json.out, HasSubstr("\"total_inserts\":\"2\""));

  const Finished why = RunTandem({"replay", "why", "--server", served.address(), "--table", "queue"});
  EXPECT_EQ(why.exit_code, 0) << why.err;
  EXPECT_THAT(
      why.out,
      HasSubstr("table 'queue' takes no inserts: 2 inserts x 1 - 0 samples reaches max_diff 2; nobody "
                "has sampled yet\ntable 'queue' gives samples\n"));
  const Finished peek = RunTandem({"replay", "peek", "--server", served.address(), "--table", "queue"});
  EXPECT_EQ(peek.exit_code, 0) << peek.err;
  EXPECT_THAT(peek.out, HasSubstr("1,1\n"));

  const Finished narrow =
      RunTandem({"replay", "set", "--server", served.address(), "--table", "queue", "--max-diff", "0"});
  EXPECT_EQ(narrow.exit_code, 1);
  EXPECT_THAT(narrow.err, HasSubstr("must be at least 1 wide"));
  const Finished set = RunTandem({"replay", "set", "--server", served.address(), "--table", "queue",
                                  "--max-diff", "inf", "--max-items", "50"});
  EXPECT_EQ(set.exit_code, 0) << set.err;
  EXPECT_THAT(set.out, HasSubstr("0 <= inserts x 1 - samples <= inf, min_size 1; max_items 50"));

  const Finished none = RunTandem({"replay", "why", "--server", served.address(), "--table", "none"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr("there is no table 'none'; there are: queue, replay"));
  served.process().Signal(SIGTERM);
  EXPECT_EQ(served.process().Wait(), 0);
}

TEST(ReplayCommand, RefusesTablesThatItCannotRead) {
  for (const std::string wrong :
       {"queue:q", "queue:q:x", "heap:q:3", "queue:q:3:4", "prioritized:q:3:1:0.5:9"}) {
    const Finished finished = RunTandem({"replay", "serve", "--table", wrong});
    EXPECT_EQ(finished.exit_code, 1);
    EXPECT_THAT(finished.err, HasSubstr(absl::StrCat("--table ", wrong, ": expected queue:NAME:SIZE")));
  }
  EXPECT_THAT(RunTandem({"replay", "serve", "--table", "uniform:q:3:4"}).err,
              HasSubstr("min_size is 4 and max_items 3"));
}

TEST(ReplayCommand, ServesSharedMemoryAndTcpAlike) {
  for (const std::string transport : {"shm", "grpc"}) {
    Served served({"--table", "queue:queue:1000"}, transport);
    EXPECT_EQ(served.channel().transport(), transport == "shm" ? "shm" : "tcp");
    constexpr uint32_t kFloats = 7000;
    const auto writer = ReplayIdWriter(served.replay(), kFloats);
    for (int64_t id = 0; id < 400; ++id) TANDEM_ASSERT_OK(WriteReplayId(*writer, "queue", id, kFloats));
    auto sampler = replay::Sampler::Create(
        &served.replay(), {.name = "learner", .table = "queue", .size = {.batch = 50}, .prefetch = 3});
    TANDEM_ASSERT_OK(sampler);
    std::vector<replay::Batch> kept;  // batches stay valid while others arrive
    for (int64_t first = 0; first < 400; first += 50) {
      TANDEM_ASSERT_OK_AND_ASSIGN(replay::Batch batch, (*sampler)->Next());
      kept.push_back(std::move(batch));
    }
    for (int64_t b = 0; b < 8; ++b) {
      const auto ids = kept[static_cast<size_t>(b)].Find("id")->values<int64_t>();
      const auto x = kept[static_cast<size_t>(b)].Find("x")->values<float>();
      ASSERT_EQ(x.size(), 50u * kFloats);
      for (int64_t i = 0; i < 50; ++i) {
        ASSERT_EQ(ids[static_cast<size_t>(i)], 50 * b + i);
        ASSERT_EQ(x[static_cast<size_t>(i) * kFloats], static_cast<float>(50 * b + i));
        ASSERT_EQ(x[static_cast<size_t>(i + 1) * kFloats - 1], static_cast<float>(50 * b + i));
      }
    }
  }
}

// Every acknowledged item is in the table or counted as lost, and none is there twice.
TEST(ReplayCommand, KilledServersLoseNothingUncounted) {
  const tandem::testing::TempDir directory;
  Served served({"--listen", absl::StrCat("unix:", directory.File("replay")), "--checkpoint-dir",
                 directory.File("checkpoints"), "--checkpoint-seconds", "0"});
  TANDEM_ASSERT_OK(served.replay().CreateTable(TableOptions::Uniform("replay", 100000, 1)));
  const auto writer = ReplayIdWriter(served.replay());
  std::atomic<int64_t> written{0};
  std::atomic<bool> stop{false};
  std::thread writing([&] {
    while (!stop) {
      TANDEM_EXPECT_OK(WriteReplayId(*writer, "replay", written));
      ++written;
    }
    TANDEM_EXPECT_OK(writer->Flush());
  });
  const auto await = [&](int64_t more) {
    const int64_t until = written + more;
    while (written < until) std::this_thread::yield();
  };
  await(100);
  v1::ReplaySaveCheckpointResponse saved;
  TANDEM_EXPECT_OK(served.replay().Call("SaveCheckpoint", v1::ReplaySaveCheckpointRequest(), &saved));
  for (int kill = 0; kill < 5; ++kill) {
    await(50);
    if (kill % 2 == 1) {
      TANDEM_EXPECT_OK(served.replay().Call("SaveCheckpoint", v1::ReplaySaveCheckpointRequest(), &saved));
      await(20);
    }
    served.Kill();
  }
  await(50);
  stop = true;
  writing.join();
  const v1::ReplayTableInfo info = served.Info("replay");
  EXPECT_EQ(info.items() + info.lost_items(), static_cast<uint64_t>(written));
  EXPECT_GT(info.lost_items(), 0u);
  EXPECT_GT(info.items(), 200u);

  v1::ReplayPeekRequest request;
  request.set_table("replay");
  request.set_count(1000);
  std::set<uint64_t> serials, keys;
  do {
    v1::ReplayPeekResponse response;
    TANDEM_ASSERT_OK(served.replay().Call("Peek", request, &response));
    for (const v1::ReplayItemInfo& item : response.items()) {
      EXPECT_TRUE(keys.insert(item.key()).second);
      EXPECT_TRUE(serials.insert(item.serial()).second);
    }
    request.set_next(response.next());
  } while (request.next() != 0);
  EXPECT_EQ(keys.size(), info.items());
}

}  // namespace
}  // namespace tandem::cli
