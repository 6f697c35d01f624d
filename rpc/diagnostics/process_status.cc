// SPDX-License-Identifier: Apache-2.0
#include "rpc/diagnostics/process_status.h"

#include <unistd.h>

#include <utility>

namespace tandem::rpc {
namespace {

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "?";
}

}  // namespace

ProcessStatus::ProcessStatus(std::string member, int64_t epoch)
    : member_(std::move(member)), host_(HostName()), pid_(::getpid()), epoch_(epoch) {}

void ProcessStatus::SetState(std::string state) {
  absl::MutexLock lock(&mutex_);
  state_ = std::move(state);
}

void ProcessStatus::SetDiagnostics(std::string address) {
  absl::MutexLock lock(&mutex_);
  diagnostics_ = std::move(address);
}

void ProcessStatus::SetAddress(std::string address) {
  absl::MutexLock lock(&mutex_);
  address_ = std::move(address);
}

ProcessStatus::Values ProcessStatus::Get() const {
  Values values{.member = member_, .host = host_, .pid = pid_};
  values.step = step_.load(std::memory_order_relaxed);
  values.epoch = epoch_.load(std::memory_order_relaxed);
  values.train_epoch = train_epoch_.load(std::memory_order_relaxed);
  absl::MutexLock lock(&mutex_);
  values.state = state_;
  values.diagnostics = diagnostics_;
  values.address = address_;
  return values;
}

}  // namespace tandem::rpc
