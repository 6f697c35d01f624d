// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_HEALTH_H_
#define TANDEM_RPC_HEALTH_H_

// The client of grpc.health.v1.Health, which every server of Tandem, and other gRPC servers, serve.

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/channel.h"

namespace tandem::rpc {

// Asks the server at the other end of `channel` for the state of `service`; "" is the server as a whole.
// Returns whether it is SERVING. Blocks at most `timeout`, and must not be called on an RPC thread. Errors:
// NotFound if the server does not know the service, Unimplemented if it does not serve its health, Internal
// if the response is malformed, and those of Channel::Call.
absl::StatusOr<bool> CheckHealth(Channel& channel, const std::string& service, absl::Duration timeout);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_HEALTH_H_
