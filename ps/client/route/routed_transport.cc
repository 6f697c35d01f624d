// SPDX-License-Identifier: Apache-2.0
#include "ps/client/route/routed_transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"

namespace tandem::ps {
namespace {

// A thread that polls a connection for itself looks at least this often whether its call has gone elsewhere:
// a primary that has handed over lives on, so nothing else ends the poll.
constexpr absl::Duration kLongestPoll = absl::Milliseconds(10);
// How often retired connections are checked for users.
constexpr absl::Duration kBetweenChecks = absl::Milliseconds(20);

}  // namespace

// One attempt at a call. States: new, parked (in parked_), under way (in route->running), over.
class RoutedTransport::RoutedAttempt : public rpc::Attempt,
                                       public std::enable_shared_from_this<RoutedAttempt> {
 public:
  RoutedAttempt(RoutedTransport* owner, const std::string& method, const Bytes& request, absl::Time deadline,
                int failures)
      : owner_(*owner), method_(method), request_(request), deadline_(deadline), failures_(failures) {}

  void SetSink(std::shared_ptr<rpc::ResponseSink> sink) override { sink_ = std::move(sink); }

  void Start(rpc::Channel::Done done) override {
    done_ = std::move(done);
    Launch();
  }

  // Sends the call to the present primary, or parks it.
  void Launch() {
    while (true) {
      Use use;
      {
        absl::MutexLock lock(&owner_.mutex_);
        if (!cancelled_ && owner_.down_) return Park();
        use = Use(owner_.route_);
      }
      const int failures = failures_ + (use.route()->failed.load(std::memory_order_relaxed) ? 1 : 0);
      std::shared_ptr<rpc::Attempt> attempt =
          use.transport().NewAttempt(method_, request_, deadline_, failures);
      if (sink_ != nullptr) attempt->SetSink(sink_);
      bool cancelled;
      {
        absl::MutexLock lock(&owner_.mutex_);
        cancelled = cancelled_;
        if (!cancelled && (use.route() != owner_.route_ || owner_.down_)) continue;  // it was lost meanwhile
        // A cancellation, or another primary, ends the attempt from here on.
        attempt_ = attempt;
        moved_ = false;
        use.route()->running.insert(this);
        use_ = std::move(use);
      }
      if (cancelled) attempt->Cancel();
      attempt->Start(
          [self = shared_from_this()](absl::StatusOr<Bytes> result) { self->OnResult(std::move(result)); });
      return;
    }
  }

  void Cancel() override {
    std::shared_ptr<rpc::Attempt> attempt;
    Use use;
    bool parked;
    {
      absl::MutexLock lock(&owner_.mutex_);
      cancelled_ = true;
      parked = Unpark();
      if (attempt_ != nullptr) {
        attempt = attempt_;
        use = Use(use_.route());
      }
    }
    if (parked) {
      std::move(done_)(absl::CancelledError("the call was cancelled"));
    } else if (attempt != nullptr) {
      attempt->Cancel();
    }
  }

  // Marks an attempt under way as lost. Returns what to cancel, without the lock.
  std::pair<std::shared_ptr<rpc::Attempt>, Use> Move() ABSL_EXCLUSIVE_LOCKS_REQUIRED(owner_.mutex_) {
    moved_ = true;
    return {attempt_, Use(use_.route())};
  }
  void NoteLaunch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(owner_.mutex_) {
    is_parked_ = false;
    if (timer_.has_value()) owner_.timers_->Cancel(*timer_);
    timer_.reset();
  }

 private:
  void Park() ABSL_EXCLUSIVE_LOCKS_REQUIRED(owner_.mutex_) {
    parked_at_ = owner_.parked_.insert(owner_.parked_.end(), shared_from_this());
    is_parked_ = true;
    if (deadline_ == absl::InfiniteFuture()) return;
    timer_ = owner_.timers_->Schedule(deadline_, [weak = weak_from_this()] {
      if (const std::shared_ptr<RoutedAttempt> self = weak.lock()) self->OnDeadline();
    });
  }
  // Returns false if the attempt is not parked.
  bool Unpark() ABSL_EXCLUSIVE_LOCKS_REQUIRED(owner_.mutex_) {
    if (!is_parked_) return false;
    owner_.parked_.erase(parked_at_);
    NoteLaunch();
    return true;
  }

  void OnDeadline() {
    std::string address;
    {
      absl::MutexLock lock(&owner_.mutex_);
      if (!is_parked_) return;
      address = owner_.route_->address;
      timer_.reset();
      Unpark();
    }
    const std::string why =
        absl::StrCat("shard ", owner_.options_.shard, " has no primary; the last one was ", address,
                     ". Asked: ", owner_.finder_.Tried());
    // Channels take Unavailable at the deadline of a repeated call for the cause of its DeadlineExceeded.
    std::move(done_)(failures_ > 0 ? absl::UnavailableError(why) : absl::DeadlineExceededError(why));
  }

  void OnResult(absl::StatusOr<Bytes> result) {
    // The connection must not be closed before this returns.
    Use use;
    std::shared_ptr<rpc::Attempt> attempt;
    bool lost = false;
    {
      absl::MutexLock lock(&owner_.mutex_);
      use = std::move(use_);
      attempt = std::move(attempt_);
      attempt_ = nullptr;
      use.route()->running.erase(this);
      if (!result.ok() && absl::IsCancelled(result.status()) && moved_ && !cancelled_) {
        result = absl::UnavailableError(
            absl::StrCat("another copy, ", owner_.route_->address,
                         ", has become the primary; the call may or may not have been executed"));
      }
      // So a copy that does not serve, as it is not the primary or not yet, answers a pull that followers may
      // answer.
      if (!result.ok() && absl::IsOutOfRange(result.status()))
        result = absl::UnavailableError(result.status().message());
      if (!result.ok() && absl::IsUnavailable(result.status())) {
        use.route()->failed.store(true, std::memory_order_relaxed);
        lost = use.route() == owner_.route_ && !owner_.down_;
        if (lost) owner_.down_ = true;
      }
    }
    if (!result.ok()) {
      if (lost) owner_.finder_.Suspect(result.status().message());
      result = Annotate(result.status(), use.route()->address);
    }
    // The owner may be destroyed in here.
    std::move(done_)(std::move(result));
  }

  RoutedTransport& owner_;
  const std::string& method_;
  const Bytes& request_;
  const absl::Time deadline_;
  const int failures_;
  std::shared_ptr<rpc::ResponseSink> sink_;
  rpc::Channel::Done done_;  // only the thread that ends the attempt uses it

  // Guarded by owner_.mutex_:
  bool cancelled_ = false;
  bool moved_ = false;  // another copy has become the primary
  bool is_parked_ = false;
  Parked::iterator parked_at_;
  std::optional<rpc::TimerQueue::Id> timer_;
  std::shared_ptr<rpc::Attempt> attempt_;  // under way
  Use use_;                                // of its route
};

RoutedTransport::RoutedTransport(RoutedChannelOptions options, rpc::TimerQueue* timers,
                                 std::function<void(const v1::ShardPlacement&)> placed)
    : options_(std::move(options)),
      timers_(timers),
      finder_({.shard = options_.shard,
               .addresses = options_.addresses,
               .locate = options_.locate,
               .open = options_.open_questions,
               .found = [this](const std::string& address, bool moved) { return OnFound(address, moved); },
               .placed = std::move(placed),
               .tidy = [this] { return CloseRetired(); }}) {}

RoutedTransport::~RoutedTransport() {
  finder_.Stop();
  std::vector<std::shared_ptr<Route>> routes;
  {
    absl::MutexLock lock(&mutex_);
    routes.swap(retired_);
    routes.push_back(route_);
  }
  // An attempt that has just ended may own its route for a moment more, on a thread that the transport joins.
  for (const std::shared_ptr<Route>& route : routes) {
    if (route != nullptr) route->transport.reset();
  }
}

absl::Status RoutedTransport::Open() {
  const std::string& address = options_.addresses.front();
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Transport> transport, options_.open_transport(address));
  {
    absl::MutexLock lock(&mutex_);
    route_ = std::make_shared<Route>(address, std::move(transport));
  }
  finder_.Start();
  return absl::OkStatus();
}

std::shared_ptr<rpc::Attempt> RoutedTransport::NewAttempt(const std::string& method, const Bytes& request,
                                                          absl::Time deadline, int failures) {
  return std::make_shared<RoutedAttempt>(this, method, request, deadline, failures);
}

absl::string_view RoutedTransport::name() const { return Current().transport().name(); }

std::shared_ptr<char> RoutedTransport::RequestMemory(size_t bytes) {
  return Current().transport().RequestMemory(bytes);
}

std::vector<RoutedTransport::Prepared>& RoutedTransport::PreparedByThisThread() {
  static thread_local std::vector<Prepared> prepared;
  return prepared;
}

void RoutedTransport::PrepareInlinePoll() {
  Use use = Current();
  use.transport().PrepareInlinePoll();
  PreparedByThisThread().push_back({this, std::move(use)});
}

void RoutedTransport::InlinePoll(absl::FunctionRef<bool()> over, absl::Time deadline) {
  std::vector<Prepared>& prepared = PreparedByThisThread();
  const auto last = std::find_if(prepared.rbegin(), prepared.rend(),
                                 [this](const Prepared& one) { return one.transport == this; });
  if (last == prepared.rend()) return;
  // The route that was announced: each PrepareInlinePoll of a transport needs its InlinePoll.
  const Use use = std::move(last->use);
  prepared.erase(std::next(last).base());
  use.transport().InlinePoll(over, std::min(deadline, MonotonicNow() + kLongestPoll));
}

absl::Status RoutedTransport::OnFound(const std::string& address, bool moved) {
  Parked parked;
  std::vector<std::pair<std::shared_ptr<rpc::Attempt>, Use>> lost;
  if (moved) {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Transport> transport, options_.open_transport(address));
    LogInfo(absl::StrCat("shard ", options_.shard, ": the primary is now ", address));
    absl::MutexLock lock(&mutex_);
    retired_.push_back(std::exchange(route_, std::make_shared<Route>(address, std::move(transport))));
    for (RoutedAttempt* attempt : retired_.back()->running) lost.push_back(attempt->Move());
    down_ = false;
    parked.swap(parked_);
    for (const std::shared_ptr<RoutedAttempt>& attempt : parked) attempt->NoteLaunch();
  } else {
    absl::MutexLock lock(&mutex_);
    down_ = false;
    parked.swap(parked_);
    for (const std::shared_ptr<RoutedAttempt>& attempt : parked) attempt->NoteLaunch();
  }
  for (const std::shared_ptr<RoutedAttempt>& attempt : parked) attempt->Launch();
  for (auto& [attempt, use] : lost) attempt->Cancel();
  return absl::OkStatus();
}

absl::Duration RoutedTransport::CloseRetired() {
  std::vector<std::shared_ptr<Route>> closed;
  bool more;
  {
    absl::MutexLock lock(&mutex_);
    const auto unused = std::partition(
        retired_.begin(), retired_.end(),
        [](const std::shared_ptr<Route>& route) { return route->uses.load(std::memory_order_acquire) > 0; });
    closed.assign(std::make_move_iterator(unused), std::make_move_iterator(retired_.end()));
    retired_.erase(unused, retired_.end());
    more = !retired_.empty();
  }
  for (const std::shared_ptr<Route>& route : closed) route->transport.reset();
  return more ? kBetweenChecks : absl::InfiniteDuration();
}

}  // namespace tandem::ps
