// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_WIRE_OWNED_BYTES_H_
#define TANDEM_RPC_WIRE_OWNED_BYTES_H_

#include "base/bytes.h"

namespace tandem::rpc {

// Returns `bytes` with a copy in place of every slice that has no owner. A transport may read a message after
// the caller has been told that the call is over (its deadline passed while the socket was full). It must
// therefore not refer to memory whose lifetime it cannot extend. Slices with an owner are shared, not copied.
Bytes OwnedBytes(Bytes bytes);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_WIRE_OWNED_BYTES_H_
