// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_STREAM_FUNCTIONS_H_
#define TANDEM_RPC_REMOTE_STREAM_FUNCTIONS_H_

// The functions with which a client uses a stream. They are unary calls, so every transport carries streams.
// The client requests the next items, and the call waits at the server until there are some. The client sends
// its own items, and the response waits until the server can take more. Items are numbered, so a repeated
// call has no effect.

#include <cstdint>
#include <string>
#include <vector>

#include "rpc/remote/call/codec.h"
#include "rpc/remote/call/function.h"

namespace tandem::rpc::remote {

// One encoded item.
struct StreamItem {
  std::string small;
  Tensor bulk;  // of DType::kU8
  size_t bytes() const { return small.size() + bulk.bytes(); }
  TANDEM_REMOTE_FIELDS(StreamItem, small, bulk)
};

// Items of the server, from the requested number on. After the last item it also tells how the stream ended.
struct StreamBatch {
  std::vector<StreamItem> items;
  bool ended = false;
  int32_t code = 0;
  std::string error;
  TANDEM_REMOTE_FIELDS(StreamBatch, items, ended, code, error)
};

inline constexpr size_t kStreamWindow = 64;                    // items that wait at either end
inline constexpr size_t kStreamWindowBytes = size_t{8} << 20;  // their bytes; a single item may be larger
// The longest time that one call of a stream waits.
inline constexpr absl::Duration kStreamPoll = absl::Seconds(10);
// The server cancels a stream whose client has been silent for this long.
inline constexpr absl::Duration kStreamSilence = absl::Seconds(30);

// (stream, number of the first item that is requested). Confirms that all earlier items have arrived.
inline constexpr Function<StreamBatch(uint64_t, uint64_t)> kStreamRead{"tandem.stream.read",
                                                                       {.idempotent = true}};
// (stream, number of the first of these items, items, whether they are the last). Without items and not last,
// the response does not wait.
inline constexpr Function<void(uint64_t, uint64_t, std::vector<StreamItem>, bool)> kStreamWrite{
    "tandem.stream.write", {.idempotent = true}};
inline constexpr Function<void(uint64_t)> kStreamCancel{"tandem.stream.cancel", {.idempotent = true}};

// The interval at which a client that requests no items, because enough of them wait to be read, confirms
// that it is alive: it calls kStreamWrite without items.
inline constexpr absl::Duration kStreamKeepAlive = absl::Seconds(10);

template <typename T>
absl::StatusOr<StreamItem> EncodeItem(const T& value) {
  Writer writer;
  Codec<T>::Encode(writer, value);
  if (!writer.status().ok()) return writer.status();
  Encoded encoded = writer.Take();
  const int64_t bytes = static_cast<int64_t>(encoded.bulk.size());
  TANDEM_ASSIGN_OR_RETURN(Tensor bulk, Tensor::FromBytes(DType::kU8, {bytes}, std::move(encoded.bulk)));
  return StreamItem{std::move(encoded.small), std::move(bulk)};
}

template <typename T>
absl::StatusOr<T> DecodeItem(const StreamItem& item) {
  T value{};
  Reader reader(item.small, item.bulk.Chunks());
  if (Codec<T>::Decode(reader, &value) && reader.Finish()) return value;
  return Annotate(reader.status(), "an item of the stream cannot be read");
}

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_STREAM_FUNCTIONS_H_
