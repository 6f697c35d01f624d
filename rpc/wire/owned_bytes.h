#ifndef TANDEM_RPC_WIRE_OWNED_BYTES_H_
#define TANDEM_RPC_WIRE_OWNED_BYTES_H_

#include "base/bytes.h"

namespace tandem::rpc {

// `bytes` with every slice that has no owner replaced by a copy. A transport may read a message after the
// caller has been told that the call is over (a deadline passes while the socket is full), so it must not
// hold on to memory whose life it cannot prolong. Slices with an owner are shared, not copied.
Bytes OwnedBytes(Bytes bytes);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_WIRE_OWNED_BYTES_H_
