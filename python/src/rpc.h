// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_RPC_H_
#define TANDEM_PYTHON_SRC_RPC_H_

#include "nanobind/nanobind.h"

namespace tandem::python {

// Adds RpcAgent, RpcCall, RpcReference and RpcContext, on which tandem.rpc is built.
void BindRpc(nanobind::module_& module);

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_RPC_H_
