// SPDX-License-Identifier: Apache-2.0
#include "rpc/connect.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/ipc/host_identity.h"
#include "base/status.h"
#include "rpc/endpoint/make_transport.h"
#include "rpc/grpc/client/grpc_transport.h"
#include "rpc/shm/auto_transport.h"
#include "rpc/transport/retrying_channel.h"

namespace tandem::rpc {

absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(const std::string& target,
                                                         const ConnectOptions& options) {
  std::string choice = options.transport, origin = "ConnectOptions::transport";
  if (const char* variable = std::getenv("TANDEM_TRANSPORT"); variable != nullptr && *variable != '\0') {
    choice = variable;
    origin = "TANDEM_TRANSPORT";
  }
  if (choice != "auto" && choice != "grpc" && choice != "shm") {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, " is \"", choice, "\"; expected auto, grpc or shm"));
  }
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Transport> grpc, MakeGrpcTransport(target, options.channel));
  if (choice == "grpc") return grpc;
  auto transport = std::make_unique<shm::AutoTransport>(
      target, std::move(grpc),
      shm::AutoTransportOptions{.only_shm = choice == "shm",
                                .host = options.host.empty() ? ipc::HostIdentity() : options.host,
                                .offer_timeout = options.offer_timeout,
                                .max_message_bytes = options.channel.max_message_bytes});
  TANDEM_RETURN_IF_ERROR(transport->Connect());
  return transport;
}

absl::StatusOr<std::unique_ptr<Channel>> Connect(const std::string& target, const ConnectOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, MakeTransport(target, options));
  return MakeRetryingChannel(target, std::move(transport), std::make_unique<TimerQueue>(),
                             options.channel.max_message_bytes, {}, options.channel.max_outstanding_bytes);
}

}  // namespace tandem::rpc
