// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_SERVER_DATA_PATH_H_
#define TANDEM_PS_FAILOVER_SERVER_DATA_PATH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/longest_time.h"
#include "ps/failover/data_path.h"
#include "ps/failover/follower_tables.h"
#include "ps/failover/receiver.h"
#include "ps/failover/shipped_log.h"
#include "ps/server/copy_role.h"
#include "ps/server/server_parts.h"

namespace tandem::ps {

// Returns how long the `attempts`-th copy to the same process within kForgetAttempts is put off: not at all
// for the first. A copy that cannot succeed then does not hold pushes up again and again.
absl::Duration CopyDelay(int attempts);

// The DataPath of a ParameterServer, which owns it. Thread-safe as DataPath is.
class ServerDataPath : public DataPath, public CopyRole {
 public:
  explicit ServerDataPath(const ServerParts& server);
  ~ServerDataPath() override;

  absl::Status CheckServing() const override;
  bool serving() const override { return serving_.load(std::memory_order_acquire) && HoldsLease(); }
  absl::StatusOr<FollowerRead> CheckRead(absl::Duration max_lag) override;
  void CountRead(bool served) override;
  absl::Status BeforeLoad() override;
  void AfterLoad() override;
  void Stop() override;
  DataPath* data_path() override { return this; }

  void SetServing(bool serving, const std::string& why) override;
  void SetLeaseEnd(absl::Time end) override;
  absl::Time BootTime() const override { return server_.boot_time(); }
  void Clear() override;
  Receiver& receiver() override { return receiver_; }
  void SetReceiverEvents(ReceiverEvents events) override;
  FollowerReads follower_reads() const override;
  absl::Status Promote(Promotion promotion) override;
  ShippedLog* log() override { return shipped_.load(std::memory_order_acquire); }
  void StepDown(std::function<void(const absl::Status&)> done) override;
  absl::Status StartLink(const Copy& copy, std::unique_ptr<rpc::Channel> channel,
                         const Lineage& held = {}) override;
  double longest_copy_pause_s() const override;
  void SetLoadHooks(std::function<absl::Status()> before, std::function<void()> after) override;

 private:
  // The copies that were begun to one address.
  struct Attempts {
    int number = 0;
    absl::Time last;
  };
  static constexpr absl::Duration kForgetAttempts = absl::Minutes(2);

  // StepDown, on the background thread.
  absl::Status EndTerm();
  // Returns whether the time of SetLeaseEnd has not come.
  bool HoldsLease() const;
  // Counts an attempt, and returns when to begin it.
  absl::Time NextAttempt(const std::string& address);
  // Calls one of the receiver's events.
  template <typename... Args>
  void Tell(std::function<void(Args...)> ReceiverEvents::*event, Args... args);

  const ServerParts server_;
  std::atomic<bool> stopped_{false};
  std::atomic<bool> serving_{false};
  std::atomic<int64_t> lease_end_ns_{std::numeric_limits<int64_t>::max()};  // ToSteadyNanoseconds
  LongestTime longest_pause_;
  std::atomic<uint64_t> reads_served_{0}, reads_refused_{0};
  mutable absl::Mutex mutex_;
  std::string why_not_ ABSL_GUARDED_BY(mutex_);
  ReceiverEvents events_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Attempts> attempts_ ABSL_GUARDED_BY(mutex_);  // by address
  std::function<absl::Status()> before_load_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> after_load_ ABSL_GUARDED_BY(mutex_);
  bool loading_ = false;  // of the background thread: the links have ended for a load
  FollowerTables tables_;
  Receiver receiver_;
  std::unique_ptr<ShippedLog> log_;
  std::atomic<ShippedLog*> shipped_{nullptr};  // log_, for other threads
  // The logs of earlier terms, which threads that handle calls may use still. They have stopped, and are
  // small.
  std::vector<std::unique_ptr<ShippedLog>> ended_logs_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_SERVER_DATA_PATH_H_
