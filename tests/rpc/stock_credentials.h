// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_RPC_STOCK_CREDENTIALS_H_
#define TANDEM_TESTS_RPC_STOCK_CREDENTIALS_H_

// What clients and servers of gRPC's own API need to talk to Tandem's over TCP.

#include <memory>
#include <utility>

#include "base/status.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "rpc/grpc/tls_credentials.h"

namespace tandem::rpc::testing {

// The credentials of stock ends over TCP that have this process's key.
inline std::shared_ptr<grpc::ServerCredentials> StockServerCredentials() {
  auto credentials = ServerCredentialsFor({.host = "127.0.0.1"}, nullptr);
  TANDEM_CHECK_MSG(credentials.ok(), credentials.status().ToString());
  return *std::move(credentials);
}
inline std::shared_ptr<grpc::ChannelCredentials> StockChannelCredentials(grpc::ChannelArguments* arguments) {
  auto credentials = ChannelCredentialsFor({.host = "127.0.0.1"}, ProcessCredential().value(), arguments);
  TANDEM_CHECK_MSG(credentials.ok(), credentials.status().ToString());
  return *std::move(credentials);
}

}  // namespace tandem::rpc::testing

#endif  // TANDEM_TESTS_RPC_STOCK_CREDENTIALS_H_
