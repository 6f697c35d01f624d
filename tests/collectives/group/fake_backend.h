// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_COLLECTIVES_GROUP_FAKE_BACKEND_H_
#define TANDEM_TESTS_COLLECTIVES_GROUP_FAKE_BACKEND_H_

// A backend that records its operations, waits at a gate if the test closes it, and moves no data.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "collectives/backend.h"
#include "collectives/process_group.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {

// Lets a test control the backend and observe it. Thread-safe.
class Script {
 public:
  // Operations wait until the gate is opened, the group is aborted or their time-out is over.
  void CloseGate() {
    absl::MutexLock lock(&mutex_);
    open_ = false;
  }
  void OpenGate() {
    absl::MutexLock lock(&mutex_);
    open_ = true;
  }
  void FailWith(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    failure_ = std::move(status);
  }
  // Blocks until `count` operations have begun.
  void AwaitBegun(size_t count) {
    absl::MutexLock lock(&mutex_);
    auto begun = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return begun_.size() >= count; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&begun), absl::Seconds(60)));
  }
  // Descriptions, in the order of their beginnings.
  std::vector<std::string> begun() {
    absl::MutexLock lock(&mutex_);
    return begun_;
  }

  absl::Status Run(const Operation& operation) {
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(collective_runs_) << "two collectives at once";
    const bool collective = operation.kind != OpKind::kSend && operation.kind != OpKind::kRecv;
    if (collective) collective_runs_ = true;
    begun_.push_back(Describe(operation));
    auto go_on = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return open_ || !aborted_.ok(); };
    const bool went_on = mutex_.AwaitWithTimeout(absl::Condition(&go_on), operation.timeout);
    if (collective) collective_runs_ = false;
    if (!aborted_.ok()) return aborted_;
    if (!went_on) return absl::DeadlineExceededError(Describe(operation));
    return failure_;
  }
  void Abort(const absl::Status& reason) {
    absl::MutexLock lock(&mutex_);
    if (aborted_.ok()) aborted_ = reason;
  }

 private:
  absl::Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
  bool collective_runs_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> begun_ ABSL_GUARDED_BY(mutex_);
};

class FakeBackend final : public Backend {
 public:
  explicit FakeBackend(std::shared_ptr<Script> script) : script_(std::move(script)) {}
  absl::string_view name() const override { return "fake"; }
  absl::Status Supports(const Operation& operation) const override {
    if (operation.kind != OpKind::kAllReduce || operation.reduce != ReduceOp::kBitXor)
      return absl::OkStatus();
    return absl::UnimplementedError("fake cannot bxor");
  }
  absl::Status Run(const Operation& operation) override { return script_->Run(operation); }
  void StartPointToPoint(const Operation& operation, Done done) override {
    const absl::Status status = script_->Run(operation);
    done(status.ok() ? absl::StatusOr<int>(1) : status);
  }
  void Abort(const absl::Status& reason) override { script_->Abort(reason); }

 private:
  const std::shared_ptr<Script> script_;
};

// Makes a group of one rank over the backend.
inline std::unique_ptr<ProcessGroup> FakeGroup(std::shared_ptr<Script> script,
                                               absl::Duration timeout = absl::Seconds(60)) {
  ProcessGroupOptions options;
  options.rank = 0;
  options.world_size = 1;
  options.backend = "fake";
  options.timeout = timeout;
  BackendFactory factory;
  factory.name = "fake";
  factory.make = [script](const BackendOptions&) -> absl::StatusOr<std::unique_ptr<Backend>> {
    return std::make_unique<FakeBackend>(script);
  };
  options.extra_backends = {factory};
  auto group = InitProcessGroup(nullptr, options);
  TANDEM_CHECK_MSG(group.ok(), group.status().ToString());
  return *std::move(group);
}

}  // namespace tandem::collectives

#endif  // TANDEM_TESTS_COLLECTIVES_GROUP_FAKE_BACKEND_H_
