// SPDX-License-Identifier: Apache-2.0
#include "rpc/transport/loopback.h"

#include <atomic>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "rpc/cancel_hook.h"
#include "rpc/transport/retrying_channel.h"
#include "rpc/transport/timer_queue.h"
#include "rpc/wire/owned_bytes.h"

namespace tandem::rpc {
namespace {

const Handler* FindHandler(const std::vector<Service>& services, absl::string_view path) {
  for (const Service& service : services) {
    for (const Method& method : service.methods) {
      if (path == absl::StrCat("/", service.name, "/", method.name)) return &method.handler;
    }
  }
  return nullptr;
}

class LoopbackAttempt : public Attempt, public std::enable_shared_from_this<LoopbackAttempt> {
 public:
  LoopbackAttempt(const std::vector<Service>& services, const std::string& method, const Bytes& request,
                  absl::Time deadline, Fault fault, TimerQueue* timers, std::shared_ptr<const Caller> caller)
      : services_(services),
        method_(method),
        request_(request),
        deadline_(deadline),
        fault_(std::move(fault)),
        timers_(timers),
        caller_(std::move(caller)) {}

  void Start(Channel::Done done) override;

  void Cancel() override {
    Complete(absl::CancelledError("the call was cancelled"));
    // A duplicated call has two handlers.
    for (CancelHook& hook : cancel_hooks_) {
      if (CancelHook::Hook run = hook.Cancel()) std::move(run)();
    }
  }

  // Ends the attempt with the handler's response, as changed by the fault.
  void Respond(absl::StatusOr<Bytes> response) {
    switch (fault_.kind) {
      case Fault::Kind::kNeverRespond:
        return;
      case Fault::Kind::kFailAfter:
        Complete(fault_.status);
        return;
      default:
        if (response.ok()) response = OwnedBytes(*std::move(response));
        Complete(std::move(response));
    }
  }

  bool over() const {
    absl::MutexLock lock(&mutex_);
    return over_;
  }

 private:
  friend class LoopbackServerCall;

  // The first result counts; it is delivered on the channel's thread.
  void Complete(absl::StatusOr<Bytes> result) {
    absl::MutexLock lock(&mutex_);
    if (over_) return;
    over_ = true;
    // Cancelled before it started: there is no `done` yet, and the transport may be destroyed at any moment.
    if (!started_) {
      early_result_ = std::move(result);
      return;
    }
    Post(std::move(result));
  }
  void Post(absl::StatusOr<Bytes> result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (deadline_timer_.has_value()) timers_->Cancel(*deadline_timer_);
    timers_->RunSoon([done = std::move(done_), result = std::move(result)]() mutable {
      std::move(done)(std::move(result));
    });
  }
  void RunHandler();

  const std::vector<Service>& services_;
  const std::string method_;
  const Bytes request_;
  const absl::Time deadline_;
  const Fault fault_;
  TimerQueue* const timers_;
  const std::shared_ptr<const Caller> caller_;

  CancelHook cancel_hooks_[2];
  mutable absl::Mutex mutex_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  absl::StatusOr<Bytes> early_result_ ABSL_GUARDED_BY(mutex_) = Bytes();
  Channel::Done done_ ABSL_GUARDED_BY(mutex_);
  std::optional<TimerQueue::Id> deadline_timer_ ABSL_GUARDED_BY(mutex_);
};

class LoopbackServerCall : public ServerCall {
 public:
  // `time` is 0 for the first run of the attempt's handler and 1 for the second.
  LoopbackServerCall(std::shared_ptr<LoopbackAttempt> attempt, int time)
      : attempt_(std::move(attempt)), cancel_hook_(attempt_->cancel_hooks_[time]) {}
  ~LoopbackServerCall() override {
    if (!finished_.load()) {
      attempt_->Respond(
          absl::InternalError(absl::StrCat("the handler of ", attempt_->method_, " gave no answer")));
    }
  }

  const Bytes& request() const override { return attempt_->request_; }
  const std::string& peer() const override { return peer_; }
  const Caller& caller() const override { return *attempt_->caller_; }
  absl::Time deadline() const override { return attempt_->deadline_; }
  bool IsCancelled() const override { return attempt_->over() || MonotonicNow() > attempt_->deadline_; }
  void Finish(absl::StatusOr<Bytes> response) override {
    finished_.store(true);
    cancel_hook_.Drop();
    attempt_->Respond(std::move(response));
  }
  void OnCancel(absl::AnyInvocable<void() &&> hook) override { cancel_hook_.Set(std::move(hook)); }

 private:
  const std::shared_ptr<LoopbackAttempt> attempt_;
  CancelHook& cancel_hook_;
  const std::string peer_ = "loopback";
  std::atomic<bool> finished_{false};
};

void LoopbackAttempt::Start(Channel::Done done) {
  absl::MutexLock lock(&mutex_);
  started_ = true;
  done_ = std::move(done);
  if (over_) {
    Post(std::move(early_result_));
    return;
  }
  if (fault_.kind == Fault::Kind::kFailBefore) {
    over_ = true;
    Post(fault_.status);
    return;
  }
  auto self = shared_from_this();
  deadline_timer_ = timers_->Schedule(
      deadline_, [self] { self->Complete(absl::DeadlineExceededError("the deadline passed")); });
  timers_->RunSoon([self] { self->RunHandler(); });
}

void LoopbackAttempt::RunHandler() {
  const Handler* handler = FindHandler(services_, method_);
  if (handler == nullptr) {
    Complete(absl::UnimplementedError("there is no such method"));
    return;
  }
  const int times = fault_.kind == Fault::Kind::kDuplicate ? 2 : 1;
  for (int i = 0; i < times; ++i) {
    if (i == 0 && over()) return;
    (*handler)(std::make_shared<LoopbackServerCall>(shared_from_this(), i));
  }
}

class LoopbackTransport : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<const std::vector<Service>> services, FaultInjector injector,
                    TimerQueue* timers, Caller caller)
      : services_(std::move(services)),
        injector_(std::move(injector)),
        timers_(timers),
        caller_(std::make_shared<const Caller>(std::move(caller))) {}

  std::shared_ptr<Attempt> NewAttempt(const std::string& method, const Bytes& request, absl::Time deadline,
                                      int failures) override {
    Fault fault;
    const int64_t index = attempts_.fetch_add(1);
    if (injector_) fault = injector_(method, index);
    return std::make_shared<LoopbackAttempt>(*services_, method, request, deadline, std::move(fault), timers_,
                                             caller_);
  }
  absl::string_view name() const override { return "loopback"; }

 private:
  const std::shared_ptr<const std::vector<Service>> services_;
  const FaultInjector injector_;
  TimerQueue* const timers_;
  const std::shared_ptr<const Caller> caller_;
  std::atomic<int64_t> attempts_{0};
};

// A loopback transport with a thread of its own.
class OwnThreadTransport : public Transport {
 public:
  OwnThreadTransport(std::shared_ptr<const std::vector<Service>> services, FaultInjector injector,
                     Caller caller)
      : loopback_(std::move(services), std::move(injector), &timers_, std::move(caller)) {}
  // The thread may still run a handler, which belongs to `loopback_`.
  ~OwnThreadTransport() override { timers_.Stop(); }

  std::shared_ptr<Attempt> NewAttempt(const std::string& method, const Bytes& request, absl::Time deadline,
                                      int failures) override {
    return loopback_.NewAttempt(method, request, deadline, failures);
  }
  absl::string_view name() const override { return loopback_.name(); }

 private:
  TimerQueue timers_;
  LoopbackTransport loopback_;
};

}  // namespace

std::unique_ptr<Transport> MakeLoopbackTransport(std::shared_ptr<const std::vector<Service>> services,
                                                 FaultInjector injector, Caller caller) {
  return std::make_unique<OwnThreadTransport>(std::move(services), std::move(injector), std::move(caller));
}

std::unique_ptr<Channel> ConnectLoopback(std::shared_ptr<const std::vector<Service>> services,
                                         FaultInjector injector, const BackoffOptions& backoff,
                                         Caller caller) {
  auto timers = std::make_unique<TimerQueue>();
  auto transport = std::make_unique<LoopbackTransport>(std::move(services), std::move(injector), timers.get(),
                                                       std::move(caller));
  return MakeRetryingChannel("loopback", std::move(transport), std::move(timers),
                             std::numeric_limits<size_t>::max(), backoff);
}

}  // namespace tandem::rpc
