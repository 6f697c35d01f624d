// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_FAILOVER_COPY_PROCESS_H_
#define TANDEM_TESTS_PS_FAILOVER_COPY_PROCESS_H_

// Copies of a shard that decide their roles themselves, over gRPC and a board in memory.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/timed_wait.h"
#include "gtest/gtest.h"
#include "ps/failover/replica.h"
#include "rpc/server.h"
#include "tests/ps/server/driver.h"
#include "tests/testing/memory_board.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {

inline constexpr uint64_t kCommonRow = 7;
inline uint64_t RowOf(uint32_t worker, uint64_t step) { return 1000 + 100000 * uint64_t{worker} + step; }

// A process with one copy of shard 0.
class CopyProcess {
 public:
  explicit CopyProcess(std::shared_ptr<tandem::testing::MemoryDocuments> documents,
                       const std::function<void(ReplicaOptions*)>& change = nullptr,
                       std::shared_ptr<ColdStore> cold_store = nullptr)
      : board_(std::move(documents)),
        driver_({.cold_store = std::move(cold_store),
                 .boot_time = [this] { return BootTimeNow() + absl::Nanoseconds(suspended_ns_.load()); },
                 .failover = true}) {
    ReplicaOptions options{.board = &board_, .server = &driver_.server()};
    options.fresh = true;
    options.on_end = [this](const absl::Status& status) {
      absl::MutexLock lock(&mutex_);
      end_ = status;
    };
    if (change) change(&options);
    replica_ = std::make_unique<Replica>(options);
    service_ = replica_->service();
    auto listening = rpc::Server::Start({.listen = "127.0.0.1:0", .transport = "grpc"}, {service_});
    TANDEM_CHECK_MSG(listening.ok(), listening.status().ToString());
    listening_ = *std::move(listening);
    replica_->Start(absl::StrCat("127.0.0.1:", listening_->port()));
  }
  ~CopyProcess() { Kill(); }

  // Closes the connections of the process before it ends, so that it can tell nobody anything.
  void Kill() {
    listening_->Shutdown(absl::ZeroDuration());
    replica_->Stop();
    driver_.server().Stop();
  }
  // Makes the boot clock of the process pass `time`, while its monotonic clock stands still.
  void Suspend(absl::Duration time) { suspended_ns_ += absl::ToInt64Nanoseconds(time); }
  Driver* operator->() { return &driver_; }
  tandem::testing::MemoryBoard& board() { return board_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", listening_->port()); }
  Replica& replica() { return *replica_; }

  // Lets the process handle a call of its service.
  void Handle(const std::string& name, const std::shared_ptr<rpc::ServerCall>& call) {
    for (const rpc::Method& method : service_.methods) {
      if (method.name == name) method.handler(call);
    }
  }
  // Waits for a status with a property, by GetPlacement. Returns false after a minute.
  bool Await(const std::function<bool(const v1::ReplicaStatus&)>& property) {
    const absl::Time deadline = MonotonicNow() + absl::Minutes(1);
    v1::ReplicaStatus status = replica_->Status();
    while (!property(status)) {
      if (MonotonicNow() > deadline) {
        ADD_FAILURE() << status.ShortDebugString();
        return false;
      }
      v1::GetPlacementRequest request;
      request.set_wait_version(status.placement().version());
      request.set_wait_ms(20);
      const auto call =
          std::make_shared<TestCall>(Bytes(request.SerializeAsString()), absl::InfiniteFuture());
      Handle("GetPlacement", call);
      TANDEM_CHECK(status.ParseFromString(call->Wait()->Flatten()));
    }
    return true;
  }
  bool AwaitServing() {
    return Await([](const v1::ReplicaStatus& status) { return status.serving(); });
  }
  bool AwaitInSync(int followers) {
    return Await([&](const v1::ReplicaStatus& status) {
      return status.role() == v1::REPLICA_ROLE_PRIMARY && status.placement().in_sync_size() == followers;
    });
  }
  // Waits for the status with which the process has to end.
  absl::Status AwaitEnd() {
    absl::MutexLock lock(&mutex_);
    const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !end_.ok(); };
    EXPECT_TRUE(AwaitFor(&mutex_, absl::Condition(&ended), absl::Minutes(1)));
    return end_;
  }

 private:
  std::atomic<int64_t> suspended_ns_{0};
  tandem::testing::MemoryBoard board_;
  Driver driver_;
  absl::Mutex mutex_;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Replica> replica_;
  rpc::Service service_;
  std::unique_ptr<rpc::Server> listening_;
};

inline v1::TableConfig Counters(uint32_t workers) {
  v1::TableConfig config = TestTable("user", 1, workers, Async(), Sgd(1.0f));
  *config.mutable_initializer() = Zeros();
  return config;
}

inline PushOf Count(uint32_t worker, uint64_t step) {
  return {.table = "user", .dim = 1, .ids = {kCommonRow, RowOf(worker, step)}, .gradients = {-1, -1}};
}

inline float Value(CopyProcess& process, uint64_t id) {
  const absl::StatusOr<Rows> rows = process->Pull(0, 0, {{"user", {id}}}, /*read_only=*/true);
  TANDEM_CHECK_MSG(rows.ok(), rows.status().ToString());
  return rows->slices[0][0];
}

// Starts a primary with the table "user".
inline std::unique_ptr<CopyProcess> StartPrimary(
    const std::shared_ptr<tandem::testing::MemoryDocuments>& documents, uint32_t workers) {
  auto primary = std::make_unique<CopyProcess>(documents);
  EXPECT_TRUE(primary->AwaitServing());
  TANDEM_EXPECT_OK((*primary)->CreateTable(Counters(workers)));
  return primary;
}

// A call whose caller is gone as soon as `gone` says so. `gone` is called on the replica's thread.
class AbandonedCall : public TestCall {
 public:
  AbandonedCall(const google::protobuf::MessageLite& request, std::function<bool()> gone)
      : TestCall(Bytes(request.SerializeAsString()), MonotonicNow() + absl::Hours(1)),
        gone_(std::move(gone)) {}
  bool IsCancelled() const override { return gone_(); }

 private:
  const std::function<bool()> gone_;
};

}  // namespace tandem::ps::testing

#endif  // TANDEM_TESTS_PS_FAILOVER_COPY_PROCESS_H_
