// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_ENGINE_CALLS_H_
#define TANDEM_PYTHON_SRC_ENGINE_CALLS_H_

// Calls of replay and weight clients, as Python makes them: they wait without the GIL, Ctrl-C and close() end
// the wait, and a forked child is refused.

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/timed_wait.h"
#include "python/src/errors.h"
#include "python/src/process.h"
#include "python/src/stoppable_channel.h"
#include "replay/client/may_repeat.h"

namespace tandem::python {

// Says whether a client may still be used. Shared by a client, what was made from it, and calls under way.
// Thread-safe.
class Gate {
 public:
  // `what` names the client in errors: "replay client". `client`: the gate of the client from which the
  // object was made; it closes this one as well.
  explicit Gate(std::string what, std::shared_ptr<const Gate> client = nullptr)
      : what_(std::move(what)), client_(std::move(client)) {}

  void Close() { closed_.store(true); }
  bool closed() const { return closed_.load() || (client_ != nullptr && client_->closed()); }
  bool forked() const { return ForkGeneration() != made_; }
  absl::Status Closed() const {
    if (client_ != nullptr && client_->closed()) return client_->Closed();
    return absl::CancelledError(absl::StrCat("this ", what_, " is closed"));
  }
  // Raises if the client was closed, or if this process was forked after the client had connected. Requires
  // the GIL.
  void Check() const {
    if (forked()) {
      Raise(absl::FailedPreconditionError(
          absl::StrCat("this process was forked after the ", what_,
                       " had connected, and threads do not survive a fork; start the process by "
                       "multiprocessing's spawn or forkserver, and connect in it")));
    }
    if (closed()) Raise(Closed());
  }

 private:
  const std::string what_;
  const std::shared_ptr<const Gate> client_;
  const uint64_t made_ = ForkGeneration();
  std::atomic<bool> closed_{false};
};

// Lets one call at a time use an object that is not thread-safe. Thread-safe.
class Turn {
 public:
  // Takes the turn. Blocks at most `seconds`; returns whether it has been taken.
  bool Take(double seconds) {
    absl::MutexLock lock(&mutex_);
    if (!AwaitFor(&mutex_, absl::Condition(&free_), absl::Seconds(seconds))) return false;
    free_ = false;
    return true;
  }
  void Return() {
    absl::MutexLock lock(&mutex_);
    free_ = true;
  }

 private:
  absl::Mutex mutex_;
  bool free_ ABSL_GUARDED_BY(mutex_) = true;
};

// A turn that was taken, and that the destructor returns. Movable.
class TakenTurn {
 public:
  explicit TakenTurn(std::shared_ptr<Turn> turn) : turn_(std::move(turn)) {}
  TakenTurn(TakenTurn&& other) noexcept = default;
  TakenTurn& operator=(TakenTurn&&) = delete;
  ~TakenTurn() {
    if (turn_ != nullptr) turn_->Return();
  }

 private:
  std::shared_ptr<Turn> turn_;  // null: moved from
};

// Takes the turn of `what`, or raises: DeadlineExceeded after `timeout_s`, Cancelled once the gate is closed.
// Requires the GIL.
inline TakenTurn TakeTurn(const Gate& gate, const std::shared_ptr<Turn>& turn, const char* what,
                          double timeout_s) {
  gate.Check();
  if (!turn->Take(0)) {
    bool taken = false;
    WaitInSlices(timeout_s, [&](double seconds) { return (taken = turn->Take(seconds)) || gate.closed(); });
    if (!taken) {
      if (gate.closed()) Raise(gate.Closed());
      Raise(absl::DeadlineExceededError(absl::StrCat("another call of this ", what, " has not ended within ",
                                                     absl::FormatDuration(absl::Seconds(timeout_s)))));
    }
  }
  TakenTurn taken(turn);
  gate.Check();
  return taken;
}

// The time that CallUntil gives to the first attempt, and the most that it gives to a later one. The pause
// after a server that refuses connections. How long after its time limit a call may take for its round trip.
inline constexpr absl::Duration kFirstPart = absl::Milliseconds(250), kLongestPart = absl::Seconds(30),
                                kPause = absl::Milliseconds(50), kRoundTrip = absl::Seconds(5);

struct CallPolicy {
  // The first attempt gets all the time: for calls that send or receive much, which a second attempt would
  // send again.
  bool whole = false;
  // There is one attempt only: for calls that have another effect if they are made twice.
  bool once = false;
  // The call is given up so long after its time limit.
  absl::Duration grace = kRoundTrip;
};

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// Calls `attempt(deadline)` on a thread of its own, again and again, for at most `timeout_s` seconds. It ends
// with the first result that is no error which may pass: the table does not permit the call yet, or the
// server is away. Returns the last result, Cancelled once the gate is closed, or DeadlineExceeded if the
// attempt has not ended within `policy.grace` after the time. Calls that an attempt makes through a
// StoppableChannel are cancelled when this function gives up or throws, which it does after Ctrl-C; the
// thread ends soon afterwards, and `attempt` must own what it uses. `attempt` is destroyed before this
// function returns, unless it throws or has given up. Requires the GIL.
template <typename Attempt>
auto CallUntil(const std::shared_ptr<Gate>& gate, double timeout_s, Attempt attempt,
               const CallPolicy& policy = {}) {
  using Result = std::invoke_result_t<Attempt&, absl::Time>;
  struct State {
    std::stop_source given_up;
    absl::Mutex mutex;
    bool finished ABSL_GUARDED_BY(mutex) = false;
    std::optional<Result> result ABSL_GUARDED_BY(mutex);
  };
  gate->Check();
  auto state = std::make_shared<State>();
  const absl::Time deadline = MonotonicNow() + absl::Seconds(timeout_s);
  std::thread([state, gate, deadline, policy,
               attempt = std::optional<Attempt>(std::move(attempt))]() mutable {
    StopOfThisThread() = state->given_up.get_token();
    absl::Duration part = policy.whole ? absl::InfiniteDuration() : kFirstPart;
    std::optional<Result> result;
    while (true) {
      // A short rest belongs to this attempt: it would be too short for the reason of a refusal to arrive.
      const absl::Duration left = deadline - MonotonicNow();
      result.emplace((*attempt)(left < part + kFirstPart / 2 ? deadline : deadline - left + part));
      const absl::Status& status = StatusOf(*result);
      if (!replay::MayRepeat(status) || policy.once || state->given_up.stop_requested() || gate->closed() ||
          MonotonicNow() >= deadline) {
        break;
      }
      if (!absl::IsDeadlineExceeded(status)) absl::SleepFor(kPause);
      if (!policy.whole) part = std::min(2 * part, kLongestPart);
    }
    attempt.reset();
    absl::MutexLock lock(&state->mutex);
    state->result = std::move(result);
    state->finished = true;
  }).detach();
  struct GiveUp {
    std::shared_ptr<State> state;
    ~GiveUp() { state->given_up.request_stop(); }
  } give_up{state};
  const absl::Time last = deadline + policy.grace;
  WaitInSlices(-1, [&](double seconds) {
    if (MonotonicNow() >= last) state->given_up.request_stop();
    absl::MutexLock lock(&state->mutex);
    return AwaitFor(&state->mutex, absl::Condition(&state->finished), absl::Seconds(seconds)) ||
           gate->closed() || MonotonicNow() >= last + kPause * 20;
  });
  absl::MutexLock lock(&state->mutex);
  const bool failed = !state->finished || !StatusOf(*state->result).ok();
  if (failed && gate->closed()) return Result(gate->Closed());
  if (!state->finished || (state->given_up.stop_requested() && absl::IsCancelled(StatusOf(*state->result)))) {
    return Result(absl::DeadlineExceededError(
        absl::StrCat("the server has not answered within ", absl::FormatDuration(absl::Seconds(timeout_s)))));
  }
  return *std::move(state->result);
}

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_ENGINE_CALLS_H_
