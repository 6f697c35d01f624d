// SPDX-License-Identifier: Apache-2.0
#include "rpc/shm/auto_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "rpc/shm/handshake.h"
#include "rpc/wire/bytes_stream.h"
#include "tandem/v1/shared_memory.pb.h"

namespace tandem::rpc::shm {
namespace {

constexpr absl::Duration kBetweenTries = absl::Milliseconds(500);

bool PassesByItself(const absl::Status& status) {
  return !absl::IsFailedPrecondition(status) && !absl::IsUnimplemented(status);
}

// An attempt that fails because there is no shared memory and gRPC may not be used.
class FailedAttempt : public Attempt {
 public:
  explicit FailedAttempt(absl::Status why) : why_(std::move(why)) {}
  void Start(Channel::Done done) override { std::move(done)(why_); }
  void Cancel() override {}

 private:
  const absl::Status why_;
};

}  // namespace

AutoTransport::~AutoTransport() {
  std::thread connector;
  std::shared_ptr<Attempt> offer;
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    connector = std::move(connector_);
    offer = offer_;
  }
  if (offer != nullptr) offer->Cancel();
  if (connector.joinable()) connector.join();
  absl::MutexLock lock(&mutex_);
  if (connection_ != nullptr) connection_->Close();
}

absl::Status AutoTransport::Connect() {
  absl::StatusOr<std::shared_ptr<ClientConnection>> made = TryConnect();
  absl::MutexLock lock(&mutex_);
  if (made.ok()) {
    connection_ = *std::move(made);
    LogDebug(absl::StrCat(target_, ": over shared memory"));
    return absl::OkStatus();
  }
  why_not_ = made.status();
  permanent_ = !PassesByItself(why_not_);
  next_try_ = MonotonicNow() + kBetweenTries;
  if (options_.only_shm) {
    return Annotate(why_not_, absl::StrCat("no shared memory with the server at ", target_));
  }
  // If the server cannot be reached at all, the calls will report that.
  if (absl::IsUnavailable(why_not_) || absl::IsDeadlineExceeded(why_not_)) return absl::OkStatus();
  LogInfo(absl::StrCat(target_, ": over ", grpc_->name(), ", without shared memory: ", why_not_.message()));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<ClientConnection>> AutoTransport::TryConnect() {
  const absl::Time deadline = MonotonicNow() + options_.offer_timeout;
  v1::SharedMemoryOfferRequest request;
  request.set_host(options_.host);
  request.set_layout(kMagic);
  const std::string method = "/tandem.v1.SharedMemory/Offer";
  const Bytes bytes(request.SerializeAsString());
  absl::Notification answered;
  absl::StatusOr<Bytes> response;
  const std::shared_ptr<Attempt> attempt = grpc_->NewAttempt(method, bytes, deadline, /*failures=*/0);
  {
    absl::MutexLock lock(&mutex_);
    if (closing_) return absl::CancelledError("the channel was closed");
    offer_ = attempt;
  }
  attempt->Start([&](absl::StatusOr<Bytes> result) {
    response = std::move(result);
    answered.Notify();
  });
  answered.WaitForNotification();  // the attempt ends at its deadline at the latest
  {
    absl::MutexLock lock(&mutex_);
    offer_.reset();
  }
  if (absl::IsUnimplemented(response.status())) {
    return absl::UnimplementedError("the server does not know how");
  }
  TANDEM_RETURN_IF_ERROR(response.status());
  v1::SharedMemoryOfferResponse offer;
  BytesInputStream stream(*response);
  if (!offer.ParseFromZeroCopyStream(&stream)) {
    return absl::FailedPreconditionError("the server's offer does not parse");
  }
  if (!offer.refusal().empty()) {
    return offer.passes() ? absl::ResourceExhaustedError(offer.refusal())
                          : absl::FailedPreconditionError(offer.refusal());
  }
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Link> link,
                          Dial(offer.socket(), offer.ticket(), deadline, options_.max_message_bytes));
  return ClientConnection::Start(std::move(link));
}

std::shared_ptr<ClientConnection> AutoTransport::Current() const {
  absl::MutexLock lock(&mutex_);
  return connection_;
}

std::shared_ptr<Attempt> AutoTransport::NewAttempt(const std::string& method, const Bytes& request,
                                                   absl::Time deadline, int failures) {
  {
    absl::MutexLock lock(&mutex_);
    if (connection_ != nullptr && !connection_->broken()) {
      return connection_->NewAttempt(method, request, deadline);
    }
    ReconnectSoon();
    if (options_.only_shm) {
      return std::make_shared<FailedAttempt>(
          absl::UnavailableError(absl::StrCat("no shared memory with the server: ", why_not_.message())));
    }
  }
  return grpc_->NewAttempt(method, request, deadline, failures);
}

absl::string_view AutoTransport::name() const {
  const std::shared_ptr<ClientConnection> current = Current();
  return options_.only_shm || (current != nullptr && !current->broken()) ? "shm" : grpc_->name();
}

std::shared_ptr<char> AutoTransport::RequestMemory(size_t bytes) {
  const std::shared_ptr<ClientConnection> current = Current();
  return current == nullptr ? nullptr : current->RequestMemory(bytes);
}

void AutoTransport::InlinePoll(absl::FunctionRef<bool()> over, absl::Time deadline) {
  const std::shared_ptr<ClientConnection> current = Current();
  const bool shared = current != nullptr && !current->broken();
  if (shared) current->InlinePoll(over, deadline);
  // It expects the call, because PrepareInlinePoll was called.
  grpc_->InlinePoll(over, shared ? absl::InfinitePast() : deadline);
}

void AutoTransport::ReconnectSoon() {
  if (connecting_ || permanent_ || closing_ || MonotonicNow() < next_try_) return;
  connecting_ = true;
  std::shared_ptr<ClientConnection> old = std::move(connection_);
  connection_ = nullptr;
  if (old != nullptr) {
    why_not_ = old->failure();
    LogWarning(absl::StrCat(target_, ": shared memory has ended",
                            options_.only_shm ? "" : ", calls go on over ",
                            options_.only_shm ? "" : grpc_->name(), ": ", why_not_.message()));
  }
  if (connector_.joinable()) connector_.join();  // the thread has finished its work
  connector_ = std::thread([this, old = std::move(old)]() mutable { Reconnect(std::move(old)); });
}

void AutoTransport::Reconnect(std::shared_ptr<ClientConnection> old) {
  if (old != nullptr) old->Close();
  old.reset();
  absl::StatusOr<std::shared_ptr<ClientConnection>> made = TryConnect();
  absl::MutexLock lock(&mutex_);
  connecting_ = false;
  next_try_ = MonotonicNow() + kBetweenTries;
  if (made.ok()) {
    connection_ = *std::move(made);
    LogInfo(absl::StrCat(target_, ": over shared memory again"));
    return;
  }
  why_not_ = made.status();
  permanent_ = !PassesByItself(why_not_);
}

}  // namespace tandem::rpc::shm
