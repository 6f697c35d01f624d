// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_DIAGNOSTICS_PROCESS_STATUS_H_
#define TANDEM_RPC_DIAGNOSTICS_PROCESS_STATUS_H_

// Holds what a process reports about itself to `tandem status`, in its heartbeats and on request.

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem::rpc {

// The reported status of one process. Thread-safe. Owned by the process's main function and shared by the
// parts that update it and those that report it.
class ProcessStatus {
 public:
  // `member` is the process's name in its job, such as "worker/0". `epoch` is the rendezvous round in which
  // it takes part, 0 if there is none.
  explicit ProcessStatus(std::string member, int64_t epoch = 0);

  // Sets the training step. Cheap enough to call in every step.
  void SetStep(uint64_t step) { step_.store(step, std::memory_order_relaxed); }
  // Sets the current pass over the training data, counted from 1.
  void SetTrainEpoch(int64_t epoch) { train_epoch_.store(epoch, std::memory_order_relaxed); }
  // Sets the rendezvous round, after the process has joined its job again in a later one.
  void SetEpoch(int64_t epoch) { epoch_.store(epoch, std::memory_order_relaxed); }
  // Sets what the process does, in one word: "starting", "training", "evaluating", "serving".
  void SetState(std::string state);
  // Sets the address at which the process serves tandem.v1.Diagnostics: "host:port".
  void SetDiagnostics(std::string address);
  // Sets the address at which the process serves its job: "host:port".
  void SetAddress(std::string address);

  // A copy of the values at one moment.
  struct Values {
    std::string member, host, state, diagnostics, address;
    int64_t pid = 0;
    uint64_t step = 0;
    int64_t epoch = 0, train_epoch = 0;
  };
  // Returns the current status.
  Values Get() const;

 private:
  const std::string member_;
  const std::string host_;
  const int64_t pid_;
  std::atomic<uint64_t> step_{0};
  std::atomic<int64_t> epoch_;
  std::atomic<int64_t> train_epoch_{0};
  mutable absl::Mutex mutex_;
  std::string state_ ABSL_GUARDED_BY(mutex_) = "starting";
  std::string diagnostics_ ABSL_GUARDED_BY(mutex_);
  std::string address_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_DIAGNOSTICS_PROCESS_STATUS_H_
