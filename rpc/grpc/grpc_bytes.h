// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_GRPC_BYTES_H_
#define TANDEM_RPC_GRPC_GRPC_BYTES_H_

// Converts between Bytes and gRPC's buffers. Only used in rpc/grpc.

#include "base/bytes.h"
#include "grpcpp/support/byte_buffer.h"

namespace tandem::rpc {

// Returns a valid buffer (also if `bytes` is empty) that shares the memory of `bytes`. The slices' owners are
// kept until gRPC releases the slices. Short slices, and those without an owner, are copied.
grpc::ByteBuffer ToByteBuffer(const Bytes& bytes);

// Returns the contents of `buffer`, sharing its memory. Short messages are copied, so that keeping one does
// not keep the whole receive buffer.
Bytes FromByteBuffer(const grpc::ByteBuffer& buffer);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_GRPC_BYTES_H_
