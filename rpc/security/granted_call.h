// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SECURITY_GRANTED_CALL_H_
#define TANDEM_RPC_SECURITY_GRANTED_CALL_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "rpc/security/grant_checker.h"
#include "rpc/service.h"

namespace tandem::rpc {

// Returns `call`, whose caller is `holder`: it knows its grant, and its response counts. `refused` gets the
// error before it is sent if the handler answers with PermissionDenied.
std::shared_ptr<ServerCall> GrantedCall(std::shared_ptr<ServerCall> call, std::shared_ptr<GrantHolder> holder,
                                        std::function<void(const absl::Status&)> refused);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_SECURITY_GRANTED_CALL_H_
