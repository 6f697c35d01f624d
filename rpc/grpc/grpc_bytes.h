#ifndef TANDEM_RPC_GRPC_GRPC_BYTES_H_
#define TANDEM_RPC_GRPC_GRPC_BYTES_H_

// For rpc/grpc only: the border between our bytes and gRPC's.

#include "base/bytes.h"
#include "grpcpp/support/byte_buffer.h"

namespace tandem::rpc {

// A valid buffer (also when empty) over the memory of `bytes`: its owners live until gRPC lets go of the
// slices. Short slices, and those without an owner, are copied.
grpc::ByteBuffer ToByteBuffer(const Bytes& bytes);

// The contents of `buffer`, in place. Short messages are copied, so that keeping one does not keep the whole
// receive buffer it came in.
Bytes FromByteBuffer(const grpc::ByteBuffer& buffer);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_GRPC_BYTES_H_
