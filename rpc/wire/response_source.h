// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_WIRE_RESPONSE_SOURCE_H_
#define TANDEM_RPC_WIRE_RESPONSE_SOURCE_H_

// Responses that are produced while they are sent and consumed while they arrive. A chunk of a few hundred
// KiB is still in a near cache when it is sent, or copied to its destination; a response of megabytes would
// not be.

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace tandem::rpc {

// A server's response, produced chunk by chunk. The transport owns it (ServerCall::FinishInChunks) and uses
// it from one thread at a time, not always the same one. It is destroyed, on any of these threads, when the
// whole response has been produced or the rest is no longer needed. It cannot report an error: use one only
// if the response cannot fail any more.
class ResponseSource {
 public:
  virtual ~ResponseSource() = default;
  // Returns the size of the whole response in bytes; at least one and always the same.
  virtual size_t size() const = 0;
  // Returns the next bytes of the response: at least one, at most `limit`, and at most the remaining ones.
  // `limit` is at least kMinChunk, or the number of remaining bytes if that is smaller. Not called once
  // size() bytes were returned. The bytes must own their memory (base/bytes.h), since they may outlive this
  // object. Must not block.
  virtual Bytes Next(size_t limit) = 0;

  static constexpr size_t kMinChunk = size_t{64} << 10;
};

// Consumes the chunks of a response on the client's side (CallOptions::sink). The call shares ownership. A
// call that succeeds delivers its response either in chunks, and its `done` then receives no bytes, or whole
// to `done`, even if chunks of an earlier attempt have arrived.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  // Receives the bytes of the response that begin at `offset`; `total` is its whole size. Chunks arrive in
  // order and without gaps. Offset 0 begins a response; if chunks arrived before, the call was retried and
  // they must be discarded. `chunk` may be kept. Runs on any thread, one call at a time, and never once the
  // call's `done` has begun. Must not block.
  virtual void OnChunk(uint64_t offset, uint64_t total, Bytes chunk) = 0;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_WIRE_RESPONSE_SOURCE_H_
