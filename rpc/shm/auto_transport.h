// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SHM_AUTO_TRANSPORT_H_
#define TANDEM_RPC_SHM_AUTO_TRANSPORT_H_

// Makes attempts over shared memory while it is available, otherwise over gRPC.

#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "rpc/shm/client_connection.h"
#include "rpc/transport/retrying_channel.h"

namespace tandem::rpc::shm {

// The options of AutoTransport.
struct AutoTransportOptions {
  bool only_shm = false;  // attempts without shared memory fail with Unavailable
  std::string host;       // the identity of this process's host, see ipc::HostIdentity
  absl::Duration offer_timeout = absl::Seconds(5);
  size_t max_message_bytes = size_t{1} << 30;
};

// A transport that prefers shared memory. Thread-safe.
class AutoTransport : public Transport {
 public:
  AutoTransport(std::string target, std::unique_ptr<Transport> grpc, AutoTransportOptions options)
      : target_(std::move(target)), grpc_(std::move(grpc)), options_(std::move(options)) {}
  ~AutoTransport() override;

  // Asks the server once for shared memory. Blocks at most offer_timeout. Returns OK if the server offers it,
  // or if gRPC can be used instead.
  absl::Status Connect();

  std::shared_ptr<Attempt> NewAttempt(const std::string& method, const Bytes& request, absl::Time deadline,
                                      int failures) override;
  absl::string_view name() const override;
  std::shared_ptr<char> RequestMemory(size_t bytes) override;
  void PrepareInlinePoll() override { grpc_->PrepareInlinePoll(); }
  void InlinePoll(absl::FunctionRef<bool()> over, absl::Time deadline) override;

 private:
  // Returns the shared-memory connection, or nullptr.
  std::shared_ptr<ClientConnection> Current() const;
  // Makes one attempt to connect, without changing this object. Errors that cannot pass by themselves are
  // FailedPrecondition or Unimplemented.
  absl::StatusOr<std::shared_ptr<ClientConnection>> TryConnect();
  // Starts connector_ unless it is running, or the last attempt was too recent.
  void ReconnectSoon() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Runs on connector_: closes `old` and connects again.
  void Reconnect(std::shared_ptr<ClientConnection> old);

  const std::string target_;
  const std::unique_ptr<Transport> grpc_;
  const AutoTransportOptions options_;

  mutable absl::Mutex mutex_;
  std::shared_ptr<ClientConnection> connection_ ABSL_GUARDED_BY(mutex_);
  absl::Status why_not_ ABSL_GUARDED_BY(mutex_);  // the reason why there is no connection
  // The reason in why_not_ will not pass, so no further attempts are made.
  bool permanent_ ABSL_GUARDED_BY(mutex_) = false;
  bool connecting_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time next_try_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::shared_ptr<Attempt> offer_ ABSL_GUARDED_BY(mutex_);  // the attempt that waits for the server's offer
  std::thread connector_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::rpc::shm

#endif  // TANDEM_RPC_SHM_AUTO_TRANSPORT_H_
