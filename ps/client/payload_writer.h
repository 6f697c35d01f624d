// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_PAYLOAD_WRITER_H_
#define TANDEM_PS_CLIENT_PAYLOAD_WRITER_H_

#include <cstring>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/buffer_pool.h"
#include "base/bytes.h"
#include "base/copy_bytes.h"
#include "base/copy_choice.h"
#include "base/status.h"
#include "ps/client/wire_options.h"
#include "ps/wire/id_codec.h"
#include "rpc/channel.h"

namespace tandem::ps {

// Where a request to one server is written, and how it gets there.
struct RequestRoute {
  // Returns memory of that size: the transport's own, or that of a pool.
  absl::FunctionRef<std::shared_ptr<char>(size_t bytes)> memory;
  bool reads_in_place = false;  // the server reads that memory itself: nothing crosses a socket
  // How long arrays are copied to memory that the server reads in place. Null: by std::memcpy.
  CopyChoice* copies = nullptr;
};

// Returns the number of bags of a PullPart or PushPart; 0 without pooling.
template <typename Part>
size_t NumBags(const Part& part) {
  return part.offsets.empty() ? 0 : part.offsets.size() - 1;
}

// Returns memory for a request: that of the channel's transport if it has any, else of the pool.
inline std::shared_ptr<char> RequestMemoryOf(rpc::Channel& channel, BufferPool* pool, size_t bytes) {
  std::shared_ptr<char> memory = channel.RequestMemory(bytes);
  return memory != nullptr ? memory : pool->Get(bytes);
}
// Returns whether the server reads request memory of this channel in place.
inline bool ReadsInPlace(const rpc::Channel& channel) {
  return channel.transport() == "shm" || channel.transport() == "loopback";
}

// The ids of one slice. Chooses their encoding before the memory of the whole request is allocated.
class IdArray {
 public:
  // `ids` must stay unchanged until Write.
  IdArray(absl::Span<const uint64_t> ids, PackIds pack, const RequestRoute& route) : ids_(ids) {
    if (pack == PackIds::kNever || ids.empty() || (pack == PackIds::kAuto && route.reads_in_place)) return;
    const size_t packed_bytes = packer_.Plan(ids);
    packed_ = pack == PackIds::kAlways || PackingPays(packed_bytes, ids.size());
    if (packed_) bytes_ = packed_bytes;
  }
  size_t bytes() const { return bytes_; }
  void Write(char* out) const {
    if (packed_) {
      packer_.Write(ids_, out);
    } else {
      CopyBytes(out, ids_.data(), bytes_);
    }
  }
  // Describes the ids in the header of a slice, a PullSlice or PushSlice.
  template <typename SliceHeader>
  void Describe(SliceHeader* slice) const {
    slice->set_num_ids(ids_.size());
    if (!packed_) return;
    slice->set_ids(v1::IDS_PACKED);
    slice->set_id_bytes(bytes_);
  }

 private:
  absl::Span<const uint64_t> ids_;
  IdPacker packer_;
  bool packed_ = false;
  size_t bytes_ = ids_.size() * sizeof(uint64_t);
};

// Writes arrays one after the other into one buffer of known size, or refers to them without a copy.
class PayloadWriter {
 public:
  // `size` is the number of bytes that are written, without those that are referred to.
  PayloadWriter(const RequestRoute& route, size_t size)
      : buffer_(size > 0 ? route.memory(size) : nullptr), size_(size) {}
  // Returns space for the next `bytes` bytes.
  char* Reserve(size_t bytes) {
    char* at = buffer_.get() + used_;
    used_ += bytes;
    return at;
  }
  void Put(const void* data, size_t bytes) { CopyBytes(Reserve(bytes), data, bytes); }
  void Put(const IdArray& ids) { ids.Write(Reserve(ids.bytes())); }
  // Appends bytes that are not copied.
  void Refer(Slice slice) {
    Close();
    payload_.Append(std::move(slice));
  }
  // Returns the payload. Requires that exactly `size` bytes were written.
  Bytes Finish() && {
    TANDEM_CHECK(used_ == size_);
    Close();
    return std::move(payload_);
  }

 private:
  // Appends what was written since the last call to the payload.
  void Close() {
    payload_.Append(Slice(buffer_, buffer_.get() + closed_, used_ - closed_));
    closed_ = used_;
  }

  Bytes payload_;
  size_t closed_ = 0;
  std::shared_ptr<char> buffer_;
  size_t size_;
  size_t used_ = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_PAYLOAD_WRITER_H_
