// SPDX-License-Identifier: Apache-2.0
// What a server does for which caller, and the limits of what it takes.

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "rpc/security/epoch_gate.h"
#include "tests/ps/server/driver.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kNotAllowed = absl::StatusCode::kPermissionDenied;
constexpr auto kUsedUp = absl::StatusCode::kResourceExhausted;

constexpr char kToken[] = "0123456789abcdef";
const PushOf kGradientOfOne = {.table = "user", .dim = 1, .ids = {42}, .gradients = {1.0f}};

class CallOf : public TestCall {
 public:
  CallOf(Bytes request, rpc::Caller caller)
      : TestCall(std::move(request), absl::InfiniteFuture()), caller_(std::move(caller)) {}
  const rpc::Caller& caller() const override { return caller_; }

 private:
  const rpc::Caller caller_;
};

// A server of a launched job, at epoch 5.
class AccessTest : public ::testing::Test {
 protected:
  AccessTest() : service_(rpc::Gated(server_.service(), gate_)) {
    for (const char* name : {"user", "item"}) {
      v1::CreateTableRequest request;
      *request.mutable_config() = TestTable(name, 1, 3, Async(), Sgd(1.0f));
      TANDEM_EXPECT_OK(Call("CreateTable", Bytes(request.SerializeAsString()), kWorker1));
    }
  }
  absl::StatusOr<Bytes> Call(absl::string_view method, Bytes request, const rpc::Caller& caller) {
    auto call = std::make_shared<CallOf>(std::move(request), caller);
    for (const rpc::Method& candidate : service_.methods) {
      if (candidate.name == method) candidate.handler(call);
    }
    return call->Wait();
  }
  template <typename Request>
  absl::Status Call(absl::string_view method, const Request& request, const rpc::Caller& caller) {
    return Call(method, Bytes(request.SerializeAsString()), caller).status();
  }
  absl::Status Pull(uint32_t worker, bool read_only, const rpc::Caller& caller) {
    return Call("Pull", PullRequestBytes(worker, 0, {{"user", {42}}}, read_only), caller).status();
  }
  absl::Status Push(uint32_t worker, const rpc::Caller& caller, uint64_t epoch = 1) {
    return Call("Push",
                PushRequestBytes({.worker = worker, .step = step_++, .epoch = epoch}, {kGradientOfOne}),
                caller)
        .status();
  }
  absl::StatusOr<v1::RegisterResponse> Register(const std::string& name, const rpc::Caller& caller) {
    v1::RegisterRequest request;
    request.set_name(name);
    const absl::StatusOr<Bytes> answer = Call("Register", Bytes(request.SerializeAsString()), caller);
    if (!answer.ok()) return answer.status();
    v1::RegisterResponse response;
    TANDEM_CHECK(response.ParseFromString(answer->Flatten()));
    return response;
  }

  absl::StatusOr<uint64_t> StartEpoch(uint32_t worker, const rpc::Caller& caller) {
    v1::StartPushEpochRequest request;
    request.set_worker(worker);
    const absl::StatusOr<Bytes> answer = Call("StartPushEpoch", Bytes(request.SerializeAsString()), caller);
    if (!answer.ok()) return answer.status();
    v1::StartPushEpochResponse response;
    TANDEM_CHECK(response.ParseFromString(answer->Flatten()));
    return response.epoch();
  }
  absl::Status Write(uint32_t worker, const rpc::Caller& caller, uint64_t sequence = 100) {
    v1::WriteRowStatesRequest request;
    request.set_worker(worker);
    request.set_epoch(1);
    request.set_sequence(sequence);
    request.set_table("user");
    request.set_dim(1);
    request.add_ids(42);
    request.add_values(0.0f);
    return Call("WriteRowStates", request, caller);
  }

  const rpc::Caller kWorker1 = {.run_id = "job", .epoch = 5, .member = "worker/1", .token = kToken};
  const rpc::Caller kStranger = {};
  const rpc::Caller kNotebook = {.token = kToken};  // has not registered yet
  uint64_t step_ = 0;
  const std::shared_ptr<rpc::EpochGate> gate_ = std::make_shared<rpc::EpochGate>(
      rpc::Caller{.run_id = "job", .epoch = 5, .member = "ps/0", .token = kToken});
  ParameterServer server_{
      {.gate = gate_, .job = [] { return rpc::Caller{.run_id = "job", .epoch = 5}; }, .first_free_rank = 2}};
  const rpc::Service service_;
};

TEST_F(AccessTest, AProcessOfNoJobObserves) {
  TANDEM_EXPECT_OK(Call("ListTables", v1::ListTablesRequest(), kStranger));
  TANDEM_EXPECT_OK(Call("GetServerInfo", v1::GetServerInfoRequest(), kStranger));
  TANDEM_EXPECT_OK(Call("GetServerStatistics", v1::GetServerStatisticsRequest(), kStranger));
}

TEST_F(AccessTest, AProcessOfNoJobReadsAndChangesNothing) {
  EXPECT_THAT(Pull(0, /*read_only=*/true, kStranger), StatusIs(kNotAllowed, HasSubstr("the right to read")));
  EXPECT_THAT(Push(0, kStranger),
              StatusIs(kNotAllowed, AllOf(HasSubstr("Push"), HasSubstr("tandem key show"))));
  EXPECT_THAT(Register("notebook/eve", kStranger), StatusIs(kNotAllowed, HasSubstr("Register")));
  EXPECT_THAT(Pull(0, /*read_only=*/false, kStranger), StatusIs(kNotAllowed));
  v1::CreateTableRequest create;
  *create.mutable_config() = TestTable("other", 1, 1, Async(), Sgd(1.0f));
  EXPECT_THAT(Call("CreateTable", create, kStranger), StatusIs(kNotAllowed));
  v1::SetUpdateModeRequest mode;
  mode.set_table("user");
  *mode.mutable_update_mode() = Sync();
  EXPECT_THAT(Call("SetUpdateMode", mode, kStranger), StatusIs(kNotAllowed));
  v1::FlushRequest flush;
  flush.set_table("user");
  EXPECT_THAT(Call("Flush", flush, kStranger), StatusIs(kNotAllowed));
  EXPECT_THAT(Call("SaveCheckpoint", v1::SaveCheckpointRequest(), kStranger), StatusIs(kNotAllowed));
  EXPECT_THAT(Call("BeginCheckpoint", v1::BeginCheckpointRequest(), kStranger), StatusIs(kNotAllowed));
  EXPECT_THAT(Call("LoadCheckpoint", v1::LoadCheckpointRequest(), kStranger), StatusIs(kNotAllowed));
  EXPECT_THAT(Write(0, kStranger), StatusIs(kNotAllowed));
  EXPECT_THAT(StartEpoch(0, kStranger), StatusIs(kNotAllowed));
}

TEST_F(AccessTest, AWorkerSpeaksForItselfOnly) {
  TANDEM_EXPECT_OK(Pull(1, /*read_only=*/false, kWorker1));
  TANDEM_EXPECT_OK(Push(1, kWorker1));
  EXPECT_THAT(Push(0, kWorker1), StatusIs(kNotAllowed, HasSubstr("push as worker 0 by worker/1")));
  EXPECT_THAT(Pull(0, /*read_only=*/false, kWorker1), StatusIs(kNotAllowed, HasSubstr("as worker 0")));
  EXPECT_THAT(Write(0, kWorker1), StatusIs(kNotAllowed, HasSubstr("as worker 0 by worker/1")));
  TANDEM_EXPECT_OK(Write(1, kWorker1));
  EXPECT_THAT(StartEpoch(0, kWorker1), StatusIs(kNotAllowed, HasSubstr("a push epoch as worker 0")));
  // A refused call takes no sequence and no epoch, so that worker 0 is not disturbed.
  TANDEM_EXPECT_OK(Push(0, {.run_id = "job", .epoch = 5, .member = "worker/0", .token = kToken}));
}

TEST_F(AccessTest, AProcessThatRegistersGetsAnEpochAndARank) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::RegisterResponse one, Register("notebook/ann", kNotebook));
  EXPECT_EQ(one.run_id(), "job");
  EXPECT_EQ(one.epoch(), 5);
  EXPECT_EQ(one.worker(), 2);
  const rpc::Caller ann = {
      .run_id = one.run_id(), .epoch = one.epoch(), .member = "notebook/ann", .token = kToken};
  TANDEM_ASSERT_OK_AND_ASSIGN(const uint64_t first, StartEpoch(one.worker(), ann));
  TANDEM_EXPECT_OK(Push(one.worker(), ann, first));
  // The process registers again, which fences off its earlier pushes.
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::RegisterResponse again, Register("notebook/ann", kNotebook));
  EXPECT_EQ(again.worker(), 2);
  TANDEM_ASSERT_OK_AND_ASSIGN(const uint64_t second, StartEpoch(again.worker(), ann));
  EXPECT_GT(second, first);
  EXPECT_THAT(Push(one.worker(), ann, first), StatusIs(absl::StatusCode::kFailedPrecondition));
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::RegisterResponse other, Register("notebook/bob", kNotebook));
  EXPECT_EQ(other.worker(), 3);
  // A tool that only changes modes needs no rank.
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::RegisterResponse tool, Register("", kNotebook));
  EXPECT_EQ(tool.epoch(), 5);
  EXPECT_THAT(Register(std::string(257, 'x'), kNotebook), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Access, AServerWithoutATokenServesProcessesOfNoJob) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(TestTable("user", 1, 1, Async(), Sgd(1.0f))));
  TANDEM_EXPECT_OK(driver.Push({}, {kGradientOfOne}));
}

TEST(Access, CheckpointsAreWrittenAndReadBelowTheRoot) {
  tandem::testing::TempDir dir;
  const std::string root = dir.path() + "/root", outside = dir.path() + "/outside";
  for (const std::string& path : {root + "/step-1", outside}) std::filesystem::create_directories(path);
  std::filesystem::create_directory_symlink(outside, root + "/link");
  ParameterServerOptions options;
  options.checkpoint_root = root;
  Driver driver(options);
  TANDEM_ASSERT_OK(driver.CreateTable(TestTable("user", 1, 1, Async(), Sgd(1.0f))));
  TANDEM_EXPECT_OK(driver.Save(root + "/step-1"));
  EXPECT_FALSE(std::filesystem::is_empty(root + "/step-1"));
  for (const std::string& path : {outside, root + "/../outside", std::string("/etc")}) {
    EXPECT_THAT(driver.Save(path), StatusIs(kNotAllowed, HasSubstr(path))) << path;
    EXPECT_THAT(driver.Load(path), StatusIs(kNotAllowed, HasSubstr(path))) << path;
  }
  EXPECT_FALSE(driver.Save(root + "/link").ok());
  EXPECT_TRUE(std::filesystem::is_empty(outside));
  // Errors name the directory as the client did.
  EXPECT_THAT(driver.Load(root + "/step-1"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(root + "/step-1")));
}

TEST(Access, TheMemoryOfTablesIsLimitedBeforeItIsAllocated) {
  ParameterServerOptions options;
  options.max_memory_bytes = uint64_t{8} << 20;
  Driver driver(options);
  EXPECT_THAT(driver.CreateTable(DenseTable("huge", uint64_t{1} << 32, Sgd(1.0f), Zeros())),
              StatusIs(kUsedUp, AllOf(HasSubstr("table 'huge' needs"), HasSubstr("--max-memory"))));
  v1::TableConfig config = TestTable("user", 64, 1, Async(), Sgd(1.0f));
  TANDEM_ASSERT_OK(driver.CreateTable(config));
  absl::Status pulled;
  uint64_t id = 0;
  // 256 MiB of rows would follow.
  for (int call = 0; call < 1000 && pulled.ok(); ++call) {
    std::vector<uint64_t> ids(1000);
    for (uint64_t& one : ids) one = id++;
    pulled = driver.Pull(0, 0, {{"user", ids}}).status();
  }
  EXPECT_THAT(pulled, StatusIs(kUsedUp, HasSubstr("pulls create no more rows")));
  TANDEM_EXPECT_OK(driver.Pull(0, 0, {{"user", {1, 2, 3}}}, /*read_only=*/true));
}

TEST(Access, WritesOfRowsKeepTheMemoryLimit) {
  ParameterServerOptions options;
  options.max_memory_bytes = uint64_t{8} << 20;
  Driver driver(options);
  TANDEM_ASSERT_OK(driver.CreateTable(TestTable("user", 64, 1, Async(), Sgd(1.0f))));
  v1::WriteRowStatesRequest write;
  write.set_table("user");
  write.set_epoch(1);
  write.set_dim(64);
  write.mutable_values()->Resize(1000 * 64, 0.5f);
  absl::Status written;
  // 256 MiB of rows would follow.
  for (int call = 0; call < 1000 && written.ok(); ++call) {
    write.set_sequence(write.sequence() + 1);
    write.clear_ids();
    for (uint64_t i = 0; i < 1000; ++i) write.add_ids(1000 * call + i);
    written = driver.Call<v1::WriteRowStatesResponse>("WriteRowStates", write).status();
  }
  EXPECT_THAT(written, StatusIs(kUsedUp, HasSubstr("--max-memory")));
  // Rows that exist may be written.
  write.clear_ids();
  for (uint64_t i = 0; i < 1000; ++i) write.add_ids(i);
  TANDEM_EXPECT_OK(driver.Call<v1::WriteRowStatesResponse>("WriteRowStates", write));
}

TEST(Access, ACheckpointKeepsTheMemoryLimit) {
  const ::tandem::testing::TempDir dir;
  Driver unlimited{ParameterServerOptions()};
  v1::TableConfig config = TestTable("user", 64, 1, Async(), Sgd(1.0f));
  TANDEM_ASSERT_OK(unlimited.CreateTable(config));
  std::vector<uint64_t> ids(50000);  // 12.8 MB of embeddings
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  TANDEM_ASSERT_OK(unlimited.Pull(0, 0, {{"user", ids}}));
  const auto save = [&](uint64_t step) -> absl::StatusOr<std::string> {
    TANDEM_ASSIGN_OR_RETURN(const std::string unfinished, BeginCheckpoint(dir.File("ckpt"), step));
    TANDEM_RETURN_IF_ERROR(unlimited.Save(unfinished));
    TANDEM_RETURN_IF_ERROR(WriteDenseState(unfinished, {}));
    return CommitCheckpoint(unfinished, {});
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string rows, save(1));
  config.set_name("planned");
  *config.mutable_eviction() = EvictLru();
  config.set_byte_budget(uint64_t{64} << 20);
  TANDEM_ASSERT_OK(unlimited.CreateTable(config));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string planned, save(2));
  ParameterServerOptions options;
  options.max_memory_bytes = uint64_t{8} << 20;
  Driver small(options);
  EXPECT_THAT(small.Load(rows), StatusIs(kUsedUp, HasSubstr("--max-memory")));
  EXPECT_THAT(small.Load(planned), StatusIs(kUsedUp, HasSubstr("table 'planned' needs")));
  EXPECT_EQ(small.Table("user").config().name(), "");  // no table was created
  options.max_memory_bytes = uint64_t{128} << 20;
  Driver large(options);
  TANDEM_EXPECT_OK(large.Load(planned));
}

}  // namespace
}  // namespace tandem::ps::testing
