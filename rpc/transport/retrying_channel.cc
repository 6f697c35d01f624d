// SPDX-License-Identifier: Apache-2.0
#include "rpc/transport/retrying_channel.h"

#include <algorithm>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status.h"
#include "rpc/earlier_attempts.h"
#include "rpc/transport/traced_call.h"
#include "rpc/wire/owned_bytes.h"

namespace tandem::rpc {
namespace {

// Records on the stack that this thread runs a `done` of `channel`. A channel may be destroyed there, and
// must then not wait for that `done`.
class DoneScope {
 public:
  explicit DoneScope(const void* channel) : channel_(channel), outer_(innermost_) { innermost_ = this; }
  ~DoneScope() { innermost_ = outer_; }
  DoneScope(const DoneScope&) = delete;
  DoneScope& operator=(const DoneScope&) = delete;

  static bool Any() { return innermost_ != nullptr; }
  static int Count(const void* channel) {
    int count = 0;
    for (const DoneScope* scope = innermost_; scope != nullptr; scope = scope->outer_) {
      if (scope->channel_ == channel) ++count;
    }
    return count;
  }

 private:
  static thread_local const DoneScope* innermost_;
  const void* channel_;
  const DoneScope* outer_;
};
thread_local const DoneScope* DoneScope::innermost_ = nullptr;

struct PendingCall {
  std::string method;
  Bytes request;
  CallOptions options;
  absl::Time deadline;
  Channel::Done done;
  CallTrace trace;
  // Number of attempts that failed with Unavailable. Written between attempts only.
  int failures = 0;
  // The message of the last failure. Written between attempts only.
  std::string last_failure;
  // Guarded by State::mutex:
  std::shared_ptr<Attempt> attempt;  // the current attempt
  bool waits = false;                // waits for its next attempt
  bool cancelled = false;            // cancelled by CallOptions::cancel
  // Set before the first attempt, destroyed before `done` runs.
  std::optional<std::stop_callback<absl::AnyInvocable<void()>>> on_stop;
};

// The state that must exist until the last instruction of every call. It outlives the channel object if the
// channel is destroyed inside a `done`.
struct State {
  State(std::string target, std::unique_ptr<Transport> transport, std::unique_ptr<TimerQueue> timers,
        size_t max_message_bytes, const BackoffOptions& backoff, size_t max_outstanding_bytes)
      : target(std::move(target)),
        transport(std::move(transport)),
        timers(std::move(timers)),
        max_message_bytes(max_message_bytes),
        backoff(backoff),
        max_outstanding_bytes(max_outstanding_bytes) {}

  const std::string target;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<TimerQueue> timers;
  const size_t max_message_bytes;
  const BackoffOptions backoff;
  const size_t max_outstanding_bytes;

  absl::Mutex mutex;
  bool closing ABSL_GUARDED_BY(mutex) = false;
  // The calls whose `done` has not begun.
  absl::flat_hash_set<std::shared_ptr<PendingCall>> calls ABSL_GUARDED_BY(mutex);
  size_t outstanding_bytes ABSL_GUARDED_BY(mutex) = 0;  // the total size of the requests of `calls`
  int running_dones ABSL_GUARDED_BY(mutex) = 0;
  uint64_t retries ABSL_GUARDED_BY(mutex) = 0;
};

void StartAttempt(const std::shared_ptr<State>& state, const std::shared_ptr<PendingCall>& call);

absl::Status InContext(const State& state, const PendingCall& call, const absl::Status& status) {
  return Annotate(status, absl::StrCat(call.method, " at ", state.target));
}

void Deliver(const std::shared_ptr<State>& state, const std::shared_ptr<PendingCall>& call,
             absl::StatusOr<Bytes> result) {
  {
    absl::MutexLock lock(&state->mutex);
    state->calls.erase(call);
    state->outstanding_bytes -= call->request.size();
    call->attempt.reset();
    ++state->running_dones;
  }
  // Waits for a cancellation that is running on another thread.
  call->on_stop.reset();
  if (!result.ok()) result = InContext(*state, *call, result.status());
  call->trace.End(call->method, call->request.size());
  {
    DoneScope scope(state.get());
    Channel::Done done = std::move(call->done);
    std::move(done)(std::move(result));
    call->request = Bytes();
  }
  absl::MutexLock lock(&state->mutex);
  --state->running_dones;
}

// Returns the error of a call whose deadline passed after failed attempts. It names the last failure, which
// is the cause.
absl::Status OutOfTime(const PendingCall& call) {
  return absl::DeadlineExceededError(
      absl::StrCat("no answer within ", absl::FormatDuration(call.options.timeout), ", after ", call.failures,
                   " attempts of which the last failed with: ", call.last_failure));
}

void OnAttemptDone(const std::shared_ptr<State>& state, const std::shared_ptr<PendingCall>& call,
                   absl::StatusOr<Bytes> result) {
  if (result.ok() || !absl::IsUnavailable(result.status()) || !call->options.idempotent) {
    if (call->failures > 0 && absl::IsDeadlineExceeded(result.status())) {
      result = OutOfTime(*call);
    } else if (call->failures > 0 && !result.ok()) {
      absl::Status status = result.status();
      SetEarlierAttempts(call->failures, &status);
      result = std::move(status);
    }
    Deliver(state, call, std::move(result));
    return;
  }
  double random;
  {
    absl::MutexLock lock(&state->mutex);
    random = static_cast<double>(Mix64(reinterpret_cast<uintptr_t>(state.get()), state->retries++) >> 11) *
             0x1.0p-53;
  }
  const absl::Time next = MonotonicNow() + Backoff(call->failures++, state->backoff, random);
  call->last_failure = std::string(result.status().message());
  if (next >= call->deadline) {
    Deliver(state, call, OutOfTime(*call));
    return;
  }
  bool cancelled;
  {
    absl::MutexLock lock(&state->mutex);
    cancelled = call->cancelled;
    call->waits = !cancelled;
  }
  if (cancelled) {
    Deliver(state, call, absl::CancelledError("the call was cancelled"));
    return;
  }
  state->timers->Schedule(next, [state, call] {
    {
      absl::MutexLock lock(&state->mutex);
      if (!call->waits) return;  // cancelled in the meantime
      call->waits = false;
    }
    StartAttempt(state, call);
  });
}

// CallOptions::cancel was requested.
void CancelCall(const std::shared_ptr<State>& state, const std::shared_ptr<PendingCall>& call) {
  std::shared_ptr<Attempt> attempt;
  bool waited;
  {
    absl::MutexLock lock(&state->mutex);
    call->cancelled = true;
    waited = std::exchange(call->waits, false);
    attempt = call->attempt;
  }
  if (waited) {
    Deliver(state, call, absl::CancelledError("the call was cancelled"));
  } else if (attempt != nullptr) {
    attempt->Cancel();
  }
}

void StartAttempt(const std::shared_ptr<State>& state, const std::shared_ptr<PendingCall>& call) {
  std::shared_ptr<Attempt> attempt =
      state->transport->NewAttempt(call->method, call->request, call->deadline, call->failures);
  bool closing, cancelled;
  {
    absl::MutexLock lock(&state->mutex);
    closing = state->closing;
    cancelled = call->cancelled;
    call->attempt = attempt;  // from here on the destructor, or a cancellation, cancels it
  }
  if (closing || cancelled) {
    Deliver(state, call, absl::CancelledError(closing ? "the channel was closed" : "the call was cancelled"));
    return;
  }
  if (call->options.sink != nullptr) attempt->SetSink(call->options.sink);
  attempt->Start(
      [state, call](absl::StatusOr<Bytes> result) { OnAttemptDone(state, call, std::move(result)); });
}

class RetryingChannel : public Channel {
 public:
  explicit RetryingChannel(std::shared_ptr<State> state) : state_(std::move(state)) {}

  ~RetryingChannel() override {
    std::vector<std::shared_ptr<Attempt>> attempts;
    {
      absl::MutexLock lock(&state_->mutex);
      state_->closing = true;
      for (const auto& call : state_->calls) {
        if (call->attempt != nullptr) attempts.push_back(call->attempt);
      }
    }
    for (const auto& attempt : attempts) attempt->Cancel();
    // Calls that wait for their next attempt then see that the channel is closing.
    state_->timers->RunAllNow();
    attempts.clear();

    const int own = DoneScope::Count(state_.get());
    {
      absl::MutexLock lock(&state_->mutex);
      const auto quiet = [this, own]() ABSL_SHARED_LOCKS_REQUIRED(state_->mutex) {
        return state_->calls.empty() && state_->running_dones == own;
      };
      state_->mutex.Await(absl::Condition(&quiet));
    }
    // The timers are destroyed first: they may still run a handler of the loopback, which belongs to the
    // transport.
    if (!DoneScope::Any()) {
      state_->timers.reset();
      state_->transport.reset();
      return;
    }
    // Destroying a transport joins its threads, and this thread may be one of them.
    std::thread([transport = std::move(state_->transport), timers = std::move(state_->timers)]() mutable {
      timers.reset();
      transport.reset();
    }).detach();
  }

  void CallAsync(absl::string_view method, Bytes request, const CallOptions& options, Done done) override {
    auto call = std::make_shared<PendingCall>();
    call->method = std::string(method);
    call->request = OwnedBytes(std::move(request));
    call->options = options;
    call->deadline = MonotonicNow() + options.timeout;
    call->done = std::move(done);
    call->trace.Begin(call->method, call->request);
    absl::Status refused;
    {
      absl::MutexLock lock(&state_->mutex);
      const size_t held = state_->outstanding_bytes;
      if (held > 0 && held + call->request.size() > state_->max_outstanding_bytes) {
        refused = absl::ResourceExhaustedError(absl::StrCat(
            "unanswered calls hold ", held, " bytes of requests, with these ", call->request.size(),
            " it would be more than ", state_->max_outstanding_bytes,
            " (ChannelOptions::max_outstanding_bytes): the server is slow or gone; await answers first"));
      }
      state_->calls.insert(call);
      state_->outstanding_bytes += call->request.size();
      if (state_->closing) refused = absl::CancelledError("the channel was closed");
    }
    if (call->request.size() > state_->max_message_bytes) {
      refused = absl::ResourceExhaustedError(
          absl::StrCat("a request of ", call->request.size(), " bytes exceeds the channel's limit of ",
                       state_->max_message_bytes, " bytes (ChannelOptions::max_message_bytes)"));
    }
    if (!refused.ok()) {
      Deliver(state_, call, refused);
      return;
    }
    if (options.cancel.stop_possible()) {
      // `done` may destroy the captured objects while the function runs, so it works on copies.
      call->on_stop.emplace(options.cancel, [state = state_, weak = std::weak_ptr(call)] {
        const std::shared_ptr<State> kept = state;
        if (const std::shared_ptr<PendingCall> alive = weak.lock()) CancelCall(kept, alive);
      });
    }
    StartAttempt(state_, call);
  }

  std::shared_ptr<char> RequestMemory(size_t bytes) override {
    return state_->transport->RequestMemory(bytes);
  }
  void PrepareInlinePoll() override { state_->transport->PrepareInlinePoll(); }
  void InlinePoll(absl::FunctionRef<bool()> over, absl::Time deadline) override {
    // A `done` that runs in here may destroy the channel.
    const std::shared_ptr<State> state = state_;
    state->transport->InlinePoll(over, deadline);
  }
  absl::string_view transport() const override { return state_->transport->name(); }
  const std::string& target() const override { return state_->target; }

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace

std::unique_ptr<Channel> MakeRetryingChannel(std::string target, std::unique_ptr<Transport> transport,
                                             std::unique_ptr<TimerQueue> timers, size_t max_message_bytes,
                                             const BackoffOptions& backoff, size_t max_outstanding_bytes) {
  return std::make_unique<RetryingChannel>(std::make_shared<State>(std::move(target), std::move(transport),
                                                                   std::move(timers), max_message_bytes,
                                                                   backoff, max_outstanding_bytes));
}

}  // namespace tandem::rpc
