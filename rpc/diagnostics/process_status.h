#ifndef TANDEM_RPC_DIAGNOSTICS_PROCESS_STATUS_H_
#define TANDEM_RPC_DIAGNOSTICS_PROCESS_STATUS_H_

// What a process says of itself to `tandem status`: by its heartbeats, and when asked.

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem::rpc {

// Thread-safe. Made by whoever runs the process; shared by what reports and what is told.
class ProcessStatus {
 public:
  // `member` as in "worker/0". `epoch`: the round of the job's rendezvous in which it takes part, 0 where
  // there is none.
  explicit ProcessStatus(std::string member, int64_t epoch = 0);

  // Cheap enough for every training step.
  void SetStep(uint64_t step) { step_.store(step, std::memory_order_relaxed); }
  // Of the passes over the data, from 1.
  void SetTrainEpoch(int64_t epoch) { train_epoch_.store(epoch, std::memory_order_relaxed); }
  // A process that has re-joined its job in a later round.
  void SetEpoch(int64_t epoch) { epoch_.store(epoch, std::memory_order_relaxed); }
  // What it does, in a word: "starting", "training", "evaluating", "serving".
  void SetState(std::string state);
  // Where it serves tandem.v1.Diagnostics: "host:port".
  void SetDiagnostics(std::string address);

  struct Values {
    std::string member, host, state, diagnostics;
    int64_t pid = 0;
    uint64_t step = 0;
    int64_t epoch = 0, train_epoch = 0;
  };
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
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_DIAGNOSTICS_PROCESS_STATUS_H_
