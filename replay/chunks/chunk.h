// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_CHUNKS_CHUNK_H_
#define TANDEM_REPLAY_CHUNKS_CHUNK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "replay/chunks/signature.h"

namespace tandem::replay {

// Consecutive steps of one writer, stored column by column: all values of the first column, then all of the
// second, without padding. Immutable and shared by all items that refer to it, in any number of tables.
class Chunk {
 public:
  // `bytes` must be steps * signature->step_bytes() bytes. `key` is unique among the chunks of one writer.
  Chunk(uint64_t key, std::shared_ptr<const Signature> signature, uint32_t steps,
        std::unique_ptr<char[]> bytes)
      : key_(key), signature_(std::move(signature)), steps_(steps), data_(std::move(bytes)) {}

  uint64_t key() const { return key_; }
  uint32_t steps() const { return steps_; }
  const std::shared_ptr<const Signature>& signature() const { return signature_; }
  // Returns the values of column `c`: steps() * signature()->step_bytes(c) bytes, not aligned.
  const char* column(size_t c) const { return data_.get() + steps_ * signature_->bytes_before(c); }
  // Returns the values of all columns.
  const char* data() const { return data_.get(); }
  size_t bytes() const { return steps_ * signature_->step_bytes(); }

 private:
  const uint64_t key_;
  const std::shared_ptr<const Signature> signature_;
  const uint32_t steps_;
  const std::unique_ptr<char[]> data_;
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_CHUNKS_CHUNK_H_
