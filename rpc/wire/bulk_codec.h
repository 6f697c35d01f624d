// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_WIRE_BULK_CODEC_H_
#define TANDEM_RPC_WIRE_BULK_CODEC_H_

// Encodes bulk messages without copying their payload. A bulk message is an ordinary protobuf message whose
// last field is `bytes payload = 15`. Its wire form has three parts:
//
//   A  the header: every other field, serialised by protobuf
//   B  the payload's tag (0x7a) and varint length
//   C  the payload, as slices over memory that is not copied
//
// Any protobuf client can therefore send and read it. TensorFlow's grpc_tensor_coding also encodes by hand
// around a tensor that is not copied.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "google/protobuf/message_lite.h"

namespace tandem::rpc {

inline constexpr int kPayloadField = 15;

// Returns the wire form of `header` with `payload` as its field 15. `header` must not have field 15 set. The
// result shares the payload's memory.
Bytes EncodeBulk(const google::protobuf::MessageLite& header, Bytes payload);

// Returns the size of EncodeBulk's result.
size_t BulkSize(const google::protobuf::MessageLite& header, uint64_t payload_bytes);
// Appends EncodeBulk's result to `out`, as a copy: for short payloads.
void AppendBulk(const google::protobuf::MessageLite& header, const Bytes& payload, std::string* out);

// Returns the parts A and B of EncodeBulk's form for a payload of `payload_bytes` (> 0), which is produced
// later.
Bytes EncodeBulkHead(const google::protobuf::MessageLite& header, uint64_t payload_bytes);

// Reads parts A and B of a message of `total` bytes in EncodeBulk's form, from its first bytes `begin`.
// Returns their size. Returns nullopt if the message has another form or `begin` is too short to decide; the
// caller must then decode the whole message.
std::optional<size_t> DecodeBulkHead(const Bytes& begin, uint64_t total,
                                     google::protobuf::MessageLite* header);

// Splits a message into its header, without field 15, and its payload, which shares the memory of `wire` and
// is empty if absent. Accepts the output of any protobuf encoder: the payload may stand anywhere among the
// fields, and if it occurs several times the last one counts. InvalidArgument, which names the message type
// and the offset, if `wire` is malformed. ResourceExhausted, before the header is parsed, if it has more than
// `max_header_bytes`: parsed messages can be a hundred times as large as their wire form.
absl::Status DecodeBulk(const Bytes& wire, google::protobuf::MessageLite* header, Bytes* payload,
                        size_t max_header_bytes = std::numeric_limits<size_t>::max());

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_WIRE_BULK_CODEC_H_
