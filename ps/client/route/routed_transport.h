// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_ROUTE_ROUTED_TRANSPORT_H_
#define TANDEM_PS_CLIENT_ROUTE_ROUTED_TRANSPORT_H_

// Makes attempts at the process that is a shard's primary.

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ps/client/route/primary_finder.h"
#include "ps/client/route/routed_channel.h"
#include "rpc/transport/retrying_channel.h"
#include "rpc/transport/timer_queue.h"

namespace tandem::ps {

// A transport that sends each attempt to the present primary. Thread-safe.
//
// A route is the connection to one primary. An attempt that fails with Unavailable puts its route out of use:
// later attempts are parked, which holds no thread, until the finder says that the primary serves, or names
// another one. When there is another one, the attempts under way on the old route end with Unavailable. The
// old connection is closed by the finder's thread when no attempt uses it any more.
class RoutedTransport : public rpc::Transport {
 public:
  // `options.open_transport` and `options.open_questions` must be set. `timers` must outlive the attempts.
  // `placed`: PrimaryFinder::Options::placed.
  RoutedTransport(RoutedChannelOptions options, rpc::TimerQueue* timers,
                  std::function<void(const v1::ShardPlacement&)> placed = nullptr);
  ~RoutedTransport() override;

  // Connects to the first address. To be called once, before anything else. Blocks like rpc::Connect.
  absl::Status Open();

  std::shared_ptr<rpc::Attempt> NewAttempt(const std::string& method, const Bytes& request,
                                           absl::Time deadline, int failures) override;
  absl::string_view name() const override;
  std::shared_ptr<char> RequestMemory(size_t bytes) override;
  void PrepareInlinePoll() override;
  void InlinePoll(absl::FunctionRef<bool()> over, absl::Time deadline) override;

 private:
  class RoutedAttempt;

  // The connection to one primary.
  struct Route {
    Route(std::string address, std::unique_ptr<rpc::Transport> transport)
        : address(std::move(address)), transport(std::move(transport)) {}
    const std::string address;
    std::unique_ptr<rpc::Transport> transport;
    // The number of users of `transport`. No user begins once another route has taken its place.
    std::atomic<int> uses{0};
    // An attempt has failed, so gRPC may be in its own pause between connections.
    std::atomic<bool> failed{false};
    // Guarded by mutex_: the attempts under way.
    absl::flat_hash_set<RoutedAttempt*> running;
  };
  // Keeps a route's transport from being closed.
  class Use {
   public:
    Use() = default;
    explicit Use(std::shared_ptr<Route> route) : route_(std::move(route)) { route_->uses.fetch_add(1); }
    Use(Use&& other) noexcept : route_(std::move(other.route_)) {}
    Use& operator=(Use&& other) noexcept {
      std::swap(route_, other.route_);
      return *this;
    }
    ~Use() {
      if (route_ != nullptr) route_->uses.fetch_sub(1, std::memory_order_release);
    }
    const std::shared_ptr<Route>& route() const { return route_; }
    rpc::Transport& transport() const { return *route_->transport; }
    explicit operator bool() const { return route_ != nullptr; }

   private:
    std::shared_ptr<Route> route_;
  };
  // The route that a thread has announced to poll.
  struct Prepared {
    const RoutedTransport* transport;
    Use use;
  };
  using Parked = std::list<std::shared_ptr<RoutedAttempt>>;

  Use Current() const {
    absl::MutexLock lock(&mutex_);
    return Use(route_);
  }
  absl::Status OnFound(const std::string& address, bool moved);
  // Closes the connections that are of no more use. Returns when to call it again.
  absl::Duration CloseRetired();
  static std::vector<Prepared>& PreparedByThisThread();

  const RoutedChannelOptions options_;
  rpc::TimerQueue* const timers_;

  mutable absl::Mutex mutex_;
  std::shared_ptr<Route> route_ ABSL_GUARDED_BY(mutex_);
  bool down_ ABSL_GUARDED_BY(mutex_) = false;  // route_ has failed, and nothing better is known
  Parked parked_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Route>> retired_ ABSL_GUARDED_BY(mutex_);
  PrimaryFinder finder_;  // its thread uses the members above
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_ROUTE_ROUTED_TRANSPORT_H_
