// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_LOCAL_RENDEZVOUS_H_
#define TANDEM_LAUNCHER_LOCAL_RENDEZVOUS_H_

// The rendezvous of a job with a single launcher: every round begins at once, and no thread, heartbeat or
// store is needed.

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cluster/rendezvous/rendezvous.h"

namespace tandem::launcher {

// Implements Rendezvous for one node. Thread-safe.
class LocalRendezvous final : public cluster::Rendezvous {
 public:
  explicit LocalRendezvous(int max_restarts) : max_restarts_(max_restarts) {}

  absl::StatusOr<cluster::Round> Join(const cluster::Node& node) override;
  absl::StatusOr<cluster::RendezvousEvent> WaitForEvent(int64_t epoch, absl::Time deadline) override;
  absl::Status RequestRestart(int64_t epoch, absl::string_view reason, int exit_code) override;
  absl::Status Finish(int64_t epoch) override;
  absl::Status Close(bool failed, absl::string_view reason, int exit_code) override;
  absl::Status Stop(absl::string_view reason, int exit_code) override;
  absl::Status Leave() override;
  void OnLease(std::function<void(absl::Time until)>) override {}  // a single node has no lease
  bool MayStart(int64_t, int) override { return true; }            // there is no other node
  absl::Status RecordRestarts(int64_t, int) override { return absl::OkStatus(); }

 private:
  void CloseLocked(bool failed, absl::string_view reason, int exit_code)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int max_restarts_;
  absl::Mutex mutex_;
  int64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t restarts_ ABSL_GUARDED_BY(mutex_) = 0;
  bool joined_ ABSL_GUARDED_BY(mutex_) = false;  // the node is in a round that is not over
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;  // by Stop
  std::string reason_ ABSL_GUARDED_BY(mutex_);    // why the round or the job ended
  int exit_code_ ABSL_GUARDED_BY(mutex_) = 0;     // of the failure that ended the round or the job
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_LOCAL_RENDEZVOUS_H_
