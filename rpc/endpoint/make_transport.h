// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_ENDPOINT_MAKE_TRANSPORT_H_
#define TANDEM_RPC_ENDPOINT_MAKE_TRANSPORT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "rpc/connect.h"
#include "rpc/transport/retrying_channel.h"

namespace tandem::rpc {

// Returns the transport of a channel that Connect returns. For channels that choose a server at each attempt.
// Blocks and fails like Connect.
absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(const std::string& target,
                                                         const ConnectOptions& options);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_ENDPOINT_MAKE_TRANSPORT_H_
