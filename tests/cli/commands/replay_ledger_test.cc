// SPDX-License-Identifier: Apache-2.0
// Writers, a learner and a replay server, each a process, are killed at random (SIGKILL). Every item that was
// acknowledged to its writer must be sampled, be in its table, or have been lost in a way that is counted.
//
// TANDEM_LEDGER_KILLS sets the number of kills; TANDEM_TEST_SEED repeats the choices of an earlier run.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "replay/client/may_repeat.h"
#include "replay/client/remote_replay.h"
#include "replay/client/writer.h"
#include "rpc/connect.h"
#include "tandem/v1/replay.pb.h"
#include "tests/cli/commands/replay_ledger.h"
#include "tests/testing/processes/self_process.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/random_seed.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/test_key.h"

namespace tandem::cli {
namespace {

using replay::Batch;
using replay::RemoteReplay;
using replay::TableOptions;
using replay::Writer;
using ::tandem::testing::Ledger;
using ::tandem::testing::LedgerFile;
using ::tandem::testing::LedgerId;
using ::tandem::testing::LedgerItem;
using ::tandem::testing::LedgerNow;
using ::tandem::testing::SelfProcess;
using ::tandem::testing::TandemProcess;
using ::testing::IsEmpty;

// The tables, and the writers of each. Items of "store" are never sampled and never leave.
constexpr char kQueue[] = "queue", kPaced[] = "paced", kStore[] = "store";
constexpr int kWriters = 5;
constexpr const char* kTableOf[kWriters] = {kQueue, kQueue, kPaced, kPaced, kStore};
const std::set<uint64_t> kQueueWriters = {0, 1}, kPacedWriters = {2, 3}, kStoreWriters = {4};
constexpr uint64_t kQueueSize = 64;
constexpr uint32_t kQueueBatch = 8, kPacedBatch = 4, kMaxLag = 2;

absl::Time In(absl::Duration duration) { return MonotonicNow() + duration; }
// No operation may take so long, however busy the machine is.
absl::Time Patience() { return In(absl::Seconds(60)); }

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// A child waits for `duration`, and less if it is asked to stop. Returns true if it is.
bool Stopped(absl::Duration duration) {
  int fd = -1;
  TANDEM_CHECK(absl::SimpleAtoi(Variable("LEDGER_STOP_FD"), &fd));
  pollfd stop = {fd, POLLIN, 0};
  return ::poll(&stop, 1, static_cast<int>(absl::ToInt64Milliseconds(duration))) > 0;
}

std::unique_ptr<RemoteReplay> ConnectToLedgerServer(const std::string& address, const std::string& name) {
  while (true) {
    auto channel = rpc::Connect(address, {.channel = {.caller = testing::WithTestKey()}});
    if (channel.ok()) {
      return std::make_unique<RemoteReplay>(std::shared_ptr<rpc::Channel>(*std::move(channel)),
                                            replay::RemoteReplayOptions{.name = name});
    }
    TANDEM_CHECK_MSG(replay::MayRepeat(channel.status()), channel.status().ToString());
  }
}

// A child: its place, which it reads from its environment, and its connection.
struct Child {
  const std::string name = Variable("LEDGER_NAME");
  uint64_t life = 0;
  LedgerFile file{Variable("LEDGER_FILE")};
  std::unique_ptr<RemoteReplay> replay = ConnectToLedgerServer(Variable("LEDGER_SERVER"), name);
  Child() { TANDEM_CHECK(absl::SimpleAtoi(Variable("LEDGER_LIFE"), &life)); }
};

std::unique_ptr<Writer> LedgerWriter(Child& child, uint32_t chunk_steps) {
  auto writer = Writer::Create(child.replay.get(), {{.name = "id", .dtype = DType::kI64}},
                               {.name = child.name, .chunk_steps = chunk_steps, .history_steps = 16});
  TANDEM_CHECK_MSG(writer.ok(), writer.status().ToString());
  return *std::move(writer);
}

// Appends a step and makes an item of it, whose priority is its id.
absl::Status WriteLedgerItem(Writer& writer, const std::string& table, uint64_t id, int64_t version) {
  const std::vector<int64_t> value = {static_cast<int64_t>(id)};
  absl::Status status = writer.Append({value}, {.policy_version = version}, In(absl::Seconds(1)));
  status.Update(writer.CreateItem(table, static_cast<double>(id), writer.Last(1), In(absl::Seconds(1))));
  return status;
}

TEST(ReplayLedgerChild, DISABLED_Writes) {
  Child child;
  uint64_t index = 0;
  ASSERT_TRUE(absl::SimpleAtoi(Variable("LEDGER_WRITER"), &index));
  const auto writer = LedgerWriter(child, /*chunk_steps=*/3);
  std::deque<uint64_t> pending;  // items are delivered in their order
  const auto log_acknowledged = [&] {
    ASSERT_EQ(writer->dropped_items(), 0u);
    for (; pending.size() > writer->pending_items(); pending.pop_front()) {
      child.file.Acknowledged(pending.front());
    }
  };
  for (uint64_t n = 0; !Stopped(absl::Milliseconds(1)); ++n) {
    const uint64_t id = LedgerId::Make(index, child.life, n);
    child.file.Sent(id);
    pending.push_back(id);
    absl::Status status = WriteLedgerItem(*writer, kTableOf[index], id, 0);
    log_acknowledged();
    while (!status.ok() && !Stopped(absl::ZeroDuration())) {
      ASSERT_TRUE(replay::MayRepeat(status)) << status;
      status = writer->Flush(In(absl::Seconds(1)));
      log_acknowledged();
    }
  }
  absl::Status status = writer->Flush(Patience());
  for (const absl::Time end = Patience(); replay::MayRepeat(status) && MonotonicNow() < end;) {
    status = writer->Flush(end);
  }
  EXPECT_TRUE(status.ok()) << status;
  log_acknowledged();
}

TEST(ReplayLedgerChild, DISABLED_RollsOut) {
  Child child;
  uint64_t index = 0;
  ASSERT_TRUE(absl::SimpleAtoi(Variable("LEDGER_WRITER"), &index));
  const auto writer = LedgerWriter(child, /*chunk_steps=*/1);
  CounterRandom random(index, child.life);
  for (uint64_t n = 0; !Stopped(absl::ZeroDuration());) {
    const auto tickets = child.replay->Admit(kPaced, {.actor = child.name}, In(absl::Milliseconds(200)));
    if (!tickets.ok()) {
      ASSERT_TRUE(replay::MayRepeat(tickets.status())) << tickets.status();
      continue;
    }
    // A few rollouts are slow, so that samples must wait for them.
    Stopped(absl::Milliseconds(random.Below(10) == 0 ? 30 : 1));
    const uint64_t id = LedgerId::Make(index, child.life, n++);
    child.file.Sent(id);
    writer->Hold(kPaced, (*tickets)[0]);
    absl::Status status = WriteLedgerItem(*writer, kPaced, id, (*tickets)[0].min_version);
    for (const absl::Time end = Patience(); replay::MayRepeat(status) && MonotonicNow() < end;) {
      status = writer->Flush(In(absl::Seconds(1)));
    }
    ASSERT_FALSE(replay::MayRepeat(status)) << status;
    if (status.ok()) {
      child.file.Acknowledged(id);
    } else {
      ASSERT_TRUE(absl::IsNotFound(status)) << status;  // the ticket ended with its server
      child.file.Refused(id);
    }
  }
}

void LogBatch(Child& child, int64_t begin, int64_t version, const Batch& batch) {
  const auto values = batch.Find("id")->values<int64_t>();
  child.file.Seen(begin, version, batch.committed_version.value_or(0), {values.begin(), values.end()},
                  version == 0 ? std::vector<int64_t>(batch.size(), 0) : batch.min_versions);
}

// Takes what is in the queue. Returns once the child is asked to stop and the queue is empty.
void SampleQueue(Child& child) {
  while (true) {
    const int64_t begin = LedgerNow();
    const auto batch =
        child.replay->Sample(kQueue, {.batch = kQueueBatch, .min_batch = 1}, In(absl::Milliseconds(300)));
    if (batch.ok()) {
      LogBatch(child, begin, 0, *batch);
      continue;
    }
    ASSERT_TRUE(replay::MayRepeat(batch.status())) << batch.status();
    if (!Stopped(absl::ZeroDuration())) continue;
    const auto info = child.replay->Info(kQueue);
    if (info.ok() && info->items == 0) return;
  }
}

// The progress of the learner, which its next process reads.
class LearnerState {
 public:
  explicit LearnerState(const std::string& path) : path_(path) { std::ifstream(path) >> version >> consumed; }
  void Save() {
    std::ofstream(path_ + ".new") << version << " " << consumed << "\n";
    std::filesystem::rename(path_ + ".new", path_);
  }
  int64_t version = 0;
  uint64_t consumed = 0;

 private:
  const std::string path_;
};

// Commits the next version, and saves that.
void CommitNext(Child& child, LearnerState* state) {
  ++state->version;
  absl::Status status;
  const absl::Time end = Patience();
  do {
    status = child.replay->Commit(
        kPaced, {.epoch = child.life, .version = state->version, .items_consumed = state->consumed});
  } while (replay::MayRepeat(status) && MonotonicNow() < end);
  ASSERT_TRUE(status.ok()) << status;
  state->Save();
}

// Sets the version to that of the server if the learner was killed before it could save it.
void ReadHead(Child& child, LearnerState* state) {
  absl::StatusOr<replay::TableInfo> info;
  const absl::Time end = Patience();
  do {
    info = child.replay->Info(kPaced);
  } while (replay::MayRepeat(info.status()) && MonotonicNow() < end);
  ASSERT_TRUE(info.ok()) << info.status();
  if (info->staleness.head) state->version = std::max(state->version, info->staleness.head->version);
}

void LearnFromPaced(Child& child) {
  LearnerState state(Variable("LEDGER_LEARNER"));
  ReadHead(child, &state);
  CommitNext(child, &state);
  uint32_t min_batch = kPacedBatch;
  while (true) {
    const int64_t begin = LedgerNow();
    const auto batch = child.replay->Sample(kPaced, {.batch = kPacedBatch, .min_batch = min_batch},
                                            In(absl::Milliseconds(300)));
    if (batch.ok()) {
      LogBatch(child, begin, state.version, *batch);
      state.consumed += batch->size();
      CommitNext(child, &state);
      continue;
    }
    ASSERT_TRUE(replay::MayRepeat(batch.status())) << batch.status();
    if (!Stopped(absl::ZeroDuration()) || !absl::IsDeadlineExceeded(batch.status())) continue;
    // The server has said that there is no batch of 4 for this learner; then the rest is taken.
    if (min_batch == 1) {
      const auto info = child.replay->Info(kPaced);
      if (info.ok() && info->items == 0) return;
    }
    min_batch = 1;
  }
}

TEST(ReplayLedgerChild, DISABLED_Learns) {
  Child child;
  std::thread queue([&] { SampleQueue(child); });
  LearnFromPaced(child);
  queue.join();
}

// A pipe whose reading end children inherit, and which tells them to stop when it is closed.
class StopPipe {
 public:
  StopPipe() {
    TANDEM_CHECK(::pipe2(fds_, O_CLOEXEC) == 0);
    TANDEM_CHECK(::fcntl(fds_[0], F_SETFD, 0) == 0);
  }
  ~StopPipe() {
    Stop();
    ::close(fds_[0]);
  }
  void Stop() {
    if (fds_[1] >= 0) ::close(std::exchange(fds_[1], -1));
  }
  int child_end() const { return fds_[0]; }

 private:
  int fds_[2] = {-1, -1};
};

// All processes of the test.
class LedgerJob : public ::testing::Test {
 protected:
  void SetUp() override {
    StartServer();
    client_ = ConnectToLedgerServer(address_, "ledger");
    TANDEM_ASSERT_OK(client_->CreateTable(TableOptions::Queue(kQueue, kQueueSize)));
    TableOptions paced = TableOptions::PacedQueue(kPaced, kPacedBatch, kMaxLag);
    paced.staleness.lease = absl::Seconds(5);
    TANDEM_ASSERT_OK(client_->CreateTable(paced));
    TANDEM_ASSERT_OK(client_->CreateTable(TableOptions::Uniform(kStore, 10'000'000, 1)));
    SaveCheckpoint();
    for (int i = 0; i < kWriters; ++i) StartWriter(i);
    StartLearner();
  }

  void StartServer() {
    address_ = absl::StrCat("unix:", directory_.File("replay"));
    server_ = std::make_unique<TandemProcess>(
        std::vector<std::string>{"replay", "serve", "--listen", address_, "--checkpoint-dir",
                                 directory_.File("checkpoints"), "--checkpoint-seconds", "0"});
    TANDEM_CHECK_MSG(server_->WaitForLine([](const std::string&) { return true; }), server_->err());
  }
  std::unique_ptr<SelfProcess> StartChild(const std::string& test, const std::string& name,
                                          std::map<std::string, std::string> variables, StopPipe& stop) {
    const uint64_t life = ++lives_[name];
    variables.insert({{"LEDGER_NAME", name},
                      {"LEDGER_LIFE", absl::StrCat(life)},
                      {"LEDGER_SERVER", address_},
                      {"LEDGER_STOP_FD", absl::StrCat(stop.child_end())},
                      {"LEDGER_FILE", directory_.File(absl::StrCat("ledger-", files_++))}});
    return std::make_unique<SelfProcess>("ReplayLedgerChild.DISABLED_" + test, variables);
  }
  void StartWriter(int i) {
    writers_[i] = StartChild(kTableOf[i] == kPaced ? "RollsOut" : "Writes", absl::StrCat("actor-", i),
                             {{"LEDGER_WRITER", absl::StrCat(i)}}, stop_writers_);
  }
  void StartLearner() {
    learner_ =
        StartChild("Learns", "learner", {{"LEDGER_LEARNER", directory_.File("learner")}}, stop_learner_);
  }

  // Calls a method until the server, which may have just started, answers.
  template <typename Request, typename Response>
  bool Ask(const char* method, const Request& request, Response* response) {
    absl::Status status;
    for (const absl::Time end = Patience(); MonotonicNow() < end;) {
      status = client_->Call(method, request, response);
      if (status.ok()) return true;
      if (!replay::MayRepeat(status)) break;
    }
    ADD_FAILURE() << method << ": " << status;
    return false;
  }
  void SaveCheckpoint() {
    const int64_t begin = LedgerNow();
    v1::ReplaySaveCheckpointResponse saved;
    if (Ask("SaveCheckpoint", v1::ReplaySaveCheckpointRequest(), &saved)) checkpoint_ = begin;
    Look();
  }
  // Reads the state of the tables, and checks the limiter's inequality for all operations so far.
  void Look() {
    if (!Ask("ListTables", v1::ListReplayTablesRequest(), &state_)) return;
    for (const v1::ReplayTableInfo& table : state_.tables()) {
      const v1::ReplayLimit& limit = table.options().limit();
      if (table.has_lowest_diff() && limit.has_min_diff()) {
        EXPECT_GE(table.lowest_diff(), limit.min_diff());
      }
      if (table.has_highest_diff() && limit.has_max_diff()) {
        EXPECT_LE(table.highest_diff(), limit.max_diff());
      }
      if (table.options().name() == kPaced) stale_of_server_ = table.removed_stale();
    }
  }
  v1::ReplayTableInfo Info(const std::string& name) const {
    for (const v1::ReplayTableInfo& table : state_.tables()) {
      if (table.options().name() == name) return table;
    }
    return {};
  }
  // Waits until this many more items of both queues have been sampled and stored.
  void AwaitProgress(uint64_t queue, uint64_t paced) {
    Look();
    const uint64_t queue_goal = Info(kQueue).total_samples() + queue;
    const uint64_t paced_goal = Info(kPaced).total_samples() + paced;
    const uint64_t store_goal = Info(kStore).total_inserts() + queue;
    const auto reached = [&] {
      return Info(kQueue).total_samples() >= queue_goal && Info(kPaced).total_samples() >= paced_goal &&
             Info(kStore).total_inserts() >= store_goal;
    };
    for (const absl::Time end = Patience(); !reached() && MonotonicNow() < end;) Look();
    EXPECT_TRUE(reached()) << state_.DebugString();
  }

  void KillServer() {
    Look();
    testing::ServerKill kill = {.when = {.begin = LedgerNow()}, .checkpoint = checkpoint_};
    server_->Signal(SIGKILL);
    server_->Wait();
    kill.when.end = LedgerNow();
    ledger_.kills.push_back(kill);
    stale_ += std::exchange(stale_of_server_, 0);
    StartServer();
  }
  // Kills the server while it writes a checkpoint.
  void KillServerThatSaves() {
    std::thread saving([this] {
      v1::ReplaySaveCheckpointResponse saved;
      client_->Call("SaveCheckpoint", v1::ReplaySaveCheckpointRequest(), &saved).IgnoreError();
    });
    KillServer();
    saving.join();
    // Items that left stale after the last look may be missing in the checkpoint.
    stale_ += (kMaxLag + 1) * kPacedBatch;
  }
  void KillLearner() {
    learner_->Kill();
    ++learner_kills_;
    StartLearner();
  }
  void KillWriter(int i) {
    writers_[i]->Kill();
    StartWriter(i);
  }

  // Lets all processes finish, and reads what they have written.
  void Finish() {
    stop_writers_.Stop();
    for (int i = 0; i < kWriters; ++i) EXPECT_EQ(writers_[i]->Wait(), 0) << "writer " << i;
    stop_learner_.Stop();
    EXPECT_EQ(learner_->Wait(), 0) << "learner";
    Look();
    stale_ += stale_of_server_;
    for (int i = 0; i < files_; ++i) ledger_.Read(directory_.File(absl::StrCat("ledger-", i)));
  }
  // Returns the ids of the items of the table "store". Fails if one is there twice.
  std::set<uint64_t> Stored() {
    std::set<uint64_t> ids;
    v1::ReplayPeekRequest request;
    request.set_table(kStore);
    request.set_count(1000);
    do {
      v1::ReplayPeekResponse response;
      if (!Ask("Peek", request, &response)) break;
      for (const v1::ReplayItemInfo& item : response.items()) {
        EXPECT_TRUE(ids.insert(static_cast<uint64_t>(item.priority())).second) << item.priority();
      }
      request.set_next(response.next());
    } while (request.next() != 0);
    return ids;
  }
  // Returns how many acknowledged items of these writers are not in `found`, although no kill of the server
  // can have lost them.
  uint64_t Unexplained(const std::set<uint64_t>& writers, const std::set<uint64_t>& found) const {
    uint64_t count = 0;
    for (const uint64_t id : ledger_.AcknowledgedBut(writers, found)) {
      if (!ledger_.MayBeLost(ledger_.items.at(id))) ++count;
    }
    return count;
  }

  testing::TempDir directory_;
  std::string address_;
  std::unique_ptr<TandemProcess> server_;
  std::unique_ptr<RemoteReplay> client_;
  StopPipe stop_writers_, stop_learner_;
  std::map<std::string, uint64_t> lives_;
  int files_ = 0;
  std::unique_ptr<SelfProcess> writers_[kWriters], learner_;
  v1::ListReplayTablesResponse state_;
  int64_t checkpoint_ = 0;  // when the last complete one began
  uint64_t stale_ = 0, stale_of_server_ = 0;
  uint64_t learner_kills_ = 0;
  Ledger ledger_;
};

TEST_F(LedgerJob, ClosesThoughProcessesAreKilled) {
  const uint64_t seed = testing::RandomSeed();
  int kills = 12;
  if (!Variable("TANDEM_LEDGER_KILLS").empty()) {
    ASSERT_TRUE(absl::SimpleAtoi(Variable("TANDEM_LEDGER_KILLS"), &kills));
  }
  CounterRandom random(seed, 0);
  for (int kill = 0; kill < kills && !HasFailure(); ++kill) {
    AwaitProgress(/*queue=*/30, /*paced=*/8);
    if (random.Below(3) > 0) SaveCheckpoint();
    AwaitProgress(random.Below(40), random.Below(6));
    switch (random.Below(6)) {
      case 0:
      case 1:
        KillServer();
        break;
      case 2:
        KillServerThatSaves();
        break;
      case 3:
        KillLearner();
        break;
      default:
        KillWriter(static_cast<int>(random.Below(kWriters)));
    }
  }
  AwaitProgress(30, 8);
  Finish();

  EXPECT_THAT(ledger_.mistakes, IsEmpty());
  EXPECT_THAT(ledger_.SeenWrongly(), IsEmpty());
  EXPECT_LE(ledger_.largest_lag, int64_t{kMaxLag});
  EXPECT_LE(ledger_.largest_own_lag, int64_t{kMaxLag});
  EXPECT_EQ(Info(kQueue).items(), 0u);
  EXPECT_EQ(Info(kPaced).items(), 0u);

  // The last batch of a learner that was killed may have been drawn for it.
  std::set<uint64_t> seen;
  for (const auto& [id, item] : ledger_.items) {
    if (!item.seen.empty()) seen.insert(id);
  }
  EXPECT_LE(Unexplained(kQueueWriters, seen), learner_kills_ * kQueueBatch);
  EXPECT_LE(Unexplained(kPacedWriters, seen), learner_kills_ * kPacedBatch + stale_);

  // The server counts the items that writers know to be lost, thus all of those that live at the end.
  const std::set<uint64_t> stored = Stored();
  EXPECT_EQ(Unexplained(kStoreWriters, stored), 0u);
  uint64_t lost = 0, lost_of_living = 0, sent = 0;
  for (const auto& [id, item] : ledger_.items) {
    if (LedgerId::WriterOf(id) != 4) continue;
    ++sent;
    if (stored.contains(id)) continue;
    ++lost;
    if (item.acknowledged != 0 && LedgerId::LifeOf(id) == lives_["actor-4"]) ++lost_of_living;
  }
  EXPECT_GE(Info(kStore).lost_items(), lost_of_living);
  EXPECT_LE(Info(kStore).lost_items(), lost);
  for (const uint64_t id : stored) EXPECT_TRUE(ledger_.items.contains(id)) << id;
  std::cout << "kills " << kills << ": " << ledger_.kills.size() << " of the server, " << learner_kills_
            << " of the learner; items " << ledger_.items.size() << ", seen " << seen.size() << ", stored "
            << stored.size() << " of " << sent << ", counted as lost " << Info(kStore).lost_items()
            << ", stale " << stale_ << ", largest lag " << ledger_.largest_lag << std::endl;
}

}  // namespace
}  // namespace tandem::cli
