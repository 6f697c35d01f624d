// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_WIRE_BYTES_STREAM_H_
#define TANDEM_RPC_WIRE_BYTES_STREAM_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "google/protobuf/io/zero_copy_stream.h"

namespace tandem::rpc {

// Lets protobuf parse a `Bytes` in place. `bytes` must outlive the stream. Not thread-safe.
class BytesInputStream : public google::protobuf::io::ZeroCopyInputStream {
 public:
  explicit BytesInputStream(const Bytes& bytes) : slices_(bytes.slices()) {}

  bool Next(const void** data, int* size) override;
  void BackUp(int count) override;
  bool Skip(int count) override;
  int64_t ByteCount() const override { return count_; }

 private:
  absl::Span<const Slice> slices_;
  size_t index_ = 0;   // slice being read
  size_t offset_ = 0;  // the offset in that slice
  int64_t count_ = 0;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_WIRE_BYTES_STREAM_H_
