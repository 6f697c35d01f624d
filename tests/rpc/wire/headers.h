// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_RPC_WIRE_HEADERS_H_
#define TANDEM_TESTS_RPC_WIRE_HEADERS_H_

#include <cstdint>

#include "tandem/v1/stream.pb.h"

namespace tandem::rpc {

// Returns the header of a frame of `call`, with no other field set.
inline v1::StreamFrame Header(uint64_t call) {
  v1::StreamFrame header;
  header.set_call(call);
  return header;
}

}  // namespace tandem::rpc

#endif  // TANDEM_TESTS_RPC_WIRE_HEADERS_H_
