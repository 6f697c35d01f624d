#ifndef TANDEM_RPC_WIRE_RESPONSE_SOURCE_H_
#define TANDEM_RPC_WIRE_RESPONSE_SOURCE_H_

// Answers that are made while they are sent, and used while they arrive: a piece of some hundred KiB is still
// in a near cache when it is sent, or copied to where it is wanted; megabytes would not be.

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace tandem::rpc {

// A server's answer, made piece by piece. Used by one thread at a time, not always the same one. Goes when
// all has been made, or when nobody wants the rest.
class ResponseSource {
 public:
  virtual ~ResponseSource() = default;
  // Of the whole answer; always the same.
  virtual size_t size() const = 0;
  // The next bytes of the answer: at least one, at most `limit` and what is left. `limit` is at least
  // kMinChunk, or all that is left. Must not block.
  virtual Bytes Next(size_t limit) = 0;

  static constexpr size_t kMinChunk = size_t{64} << 10;
};

// What a caller does with the pieces of an answer.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  // The bytes of the answer from `offset` on, of `total`. Chunks come in order; offset 0 begins a new answer
  // (the call was tried again): what came before counts for nothing. One at a time, on any thread, and none
  // once the call's `done` has begun. Must not block.
  virtual void OnChunk(uint64_t offset, uint64_t total, Bytes chunk) = 0;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_WIRE_RESPONSE_SOURCE_H_
