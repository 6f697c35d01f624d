#ifndef TANDEM_TESTS_RPC_ECHO_SERVICE_H_
#define TANDEM_TESTS_RPC_ECHO_SERVICE_H_

// The service of proto/tandem/v1/echo.proto, and a way to make it do what a test needs.

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
// How long a test waits for what must happen: far more than it takes.
inline constexpr absl::Duration kTestTimeout = absl::Seconds(30);

// Calls that were parked instead of answered. Thread-safe.
class DeferredCalls {
 public:
  void Park(std::shared_ptr<ServerCall> call) {
    absl::MutexLock lock(&mutex_);
    calls_.push_back(std::move(call));
  }
  // Takes the next parked call out, waiting for one; null when none comes.
  std::shared_ptr<ServerCall> Take(absl::Duration patience = kTestTimeout) {
    absl::MutexLock lock(&mutex_);
    const auto any = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !calls_.empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&any), patience)) return nullptr;
    auto call = std::move(calls_.front());
    calls_.erase(calls_.begin());
    return call;
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<ServerCall>> calls_ ABSL_GUARDED_BY(mutex_);
};

// Waits until the caller of a parked call is seen to be gone. To be called once for a call.
inline bool AwaitCancelled(ServerCall& call) {
  const auto gone = std::make_shared<absl::Notification>();  // the hook may outlast this wait
  call.OnCancel([gone] { gone->Notify(); });
  return gone->WaitForNotificationWithTimeout(kTestTimeout) && call.IsCancelled();
}

inline Service EchoService(Handler handler) { return {"tandem.v1.Echo", {{"Echo", std::move(handler)}}}; }

// Decodes and encodes again, as a bulk handler does: what comes back shares the request's memory.
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

inline Service ParkingService(DeferredCalls* lot) {
  return EchoService([lot](std::shared_ptr<ServerCall> call) { lot->Park(std::move(call)); });
}

// Bytes that show when they were shifted, cut or swapped.
inline std::string Pattern(size_t size) {
  std::string pattern(size, '\0');
  for (size_t i = 0; i < size; ++i) pattern[i] = static_cast<char>((i * 2654435761u) >> 13);
  return pattern;
}

}  // namespace tandem::rpc::testing

#endif  // TANDEM_TESTS_RPC_ECHO_SERVICE_H_
