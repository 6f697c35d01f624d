// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_RPC_ECHO_SERVICE_H_
#define TANDEM_TESTS_RPC_ECHO_SERVICE_H_

// The service of proto/tandem/v1/echo.proto, with handlers for the needs of tests.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "rpc/service.h"
#include "rpc/wire/bulk_codec.h"
#include "tandem/v1/echo.pb.h"

namespace tandem::rpc::testing {

inline constexpr char kEcho[] = "/tandem.v1.Echo/Echo";
// How long a test waits for an event that must happen: far longer than it takes.
inline constexpr absl::Duration kTestTimeout = absl::Seconds(30);

// Calls that were deferred instead of answered. Thread-safe.
class DeferredCalls {
 public:
  void Defer(std::shared_ptr<ServerCall> call) {
    absl::MutexLock lock(&mutex_);
    calls_.push_back(std::move(call));
  }
  // Removes and returns the next deferred call, waiting for one. Returns nullptr if none arrives.
  std::shared_ptr<ServerCall> Take(absl::Duration timeout = kTestTimeout) {
    absl::MutexLock lock(&mutex_);
    const auto any = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !calls_.empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&any), timeout)) return nullptr;
    auto call = std::move(calls_.front());
    calls_.erase(calls_.begin());
    return call;
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<ServerCall>> calls_ ABSL_GUARDED_BY(mutex_);
};

// Waits until `call` reports that its client is gone. Must be called at most once per call.
inline bool AwaitCancelled(ServerCall& call) {
  const auto gone = std::make_shared<absl::Notification>();  // the hook may outlast this wait
  call.OnCancel([gone] { gone->Notify(); });
  return gone->WaitForNotificationWithTimeout(kTestTimeout) && call.IsCancelled();
}

inline Service EchoService(Handler handler, Right right = Right::kObserve) {
  return {"tandem.v1.Echo", {{"Echo", right, std::move(handler)}}};
}

// Decodes and encodes the message, as a bulk handler does. The response shares the request's memory.
inline Service PlainEchoService() {
  return EchoService([](std::shared_ptr<ServerCall> call) {
    v1::EchoMessage header;
    Bytes payload;
    if (absl::Status status = DecodeBulk(call->request(), &header, &payload); !status.ok()) {
      call->Finish(status);
      return;
    }
    call->Finish(EncodeBulk(header, std::move(payload)));
  });
}

// Defers all calls to `deferred_calls`.
inline Service DeferringService(DeferredCalls* deferred_calls) {
  return EchoService(
      [deferred_calls](std::shared_ptr<ServerCall> call) { deferred_calls->Defer(std::move(call)); });
}

// Returns bytes in which a shift, a truncation or a swap is noticed.
inline std::string Pattern(size_t size) {
  std::string pattern(size, '\0');
  for (size_t i = 0; i < size; ++i) pattern[i] = static_cast<char>((i * 2654435761u) >> 13);
  return pattern;
}

}  // namespace tandem::rpc::testing

#endif  // TANDEM_TESTS_RPC_ECHO_SERVICE_H_
