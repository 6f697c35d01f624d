#ifndef TANDEM_LAUNCHER_LOCAL_RENDEZVOUS_H_
#define TANDEM_LAUNCHER_LOCAL_RENDEZVOUS_H_

// The rendezvous of a launcher that is alone: every round begins at once, and nothing needs a thread, a
// heartbeat or a store.

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "collectives/rendezvous/rendezvous.h"

namespace tandem::launcher {

// Thread-safe; the contract is that of Rendezvous, for one node.
class LocalRendezvous final : public collectives::Rendezvous {
 public:
  explicit LocalRendezvous(int max_restarts) : max_restarts_(max_restarts) {}

  absl::StatusOr<collectives::Round> Join(const collectives::Node& node) override;
  absl::StatusOr<collectives::RendezvousEvent> WaitForEvent(int64_t epoch, absl::Time deadline) override;
  absl::Status RequestRestart(int64_t epoch, absl::string_view reason, int exit_code) override;
  absl::Status Finish(int64_t epoch) override;
  absl::Status Close(bool failed, absl::string_view reason, int exit_code) override;
  absl::Status Leave() override;

 private:
  const int max_restarts_;
  absl::Mutex mutex_;
  int64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t restarts_ ABSL_GUARDED_BY(mutex_) = 0;
  bool joined_ ABSL_GUARDED_BY(mutex_) = false;  // in a round that goes on
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
  std::string reason_ ABSL_GUARDED_BY(mutex_);  // of the round's or the job's end
  int exit_code_ ABSL_GUARDED_BY(mutex_) = 0;   // of a job that has failed
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_LOCAL_RENDEZVOUS_H_
