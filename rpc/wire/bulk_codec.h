#ifndef TANDEM_RPC_WIRE_BULK_CODEC_H_
#define TANDEM_RPC_WIRE_BULK_CODEC_H_

// Bulk messages without copies. A bulk message is an ordinary protobuf message whose last field is `bytes
// payload = 15`:
//
//   A  the header: every other field, serialised by protobuf
//   B  the payload's tag (0x7a) and varint length
//   C  the payload, as slices over memory that is not copied
//
// so that any stock protobuf client can send and read it. (The idea of hand-encoding around an uncopied
// tensor is TensorFlow's grpc_tensor_coding.)

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "google/protobuf/message_lite.h"

namespace tandem::rpc {

inline constexpr int kPayloadField = 15;

// The wire form of `header` with `payload` as its field 15. `header` must not have field 15 set itself.
Bytes EncodeBulk(const google::protobuf::MessageLite& header, Bytes payload);

// How long that is, and the same appended to `out` in place of a message of its own: for short payloads.
size_t BulkSize(const google::protobuf::MessageLite& header, uint64_t payload_bytes);
void AppendBulk(const google::protobuf::MessageLite& header, const Bytes& payload, std::string* out);

// What comes before a payload of `payload_bytes` (> 0) in EncodeBulk's form: for a payload that is made
// later.
Bytes EncodeBulkHead(const google::protobuf::MessageLite& header, uint64_t payload_bytes);

// Reads what comes before the payload of a message of `total` bytes in EncodeBulk's form, of which `begin` is
// the beginning. How long that is; nothing when the message has another form, or `begin` is too short to
// tell: then see the whole message.
std::optional<size_t> DecodeBulkHead(const Bytes& begin, uint64_t total,
                                     google::protobuf::MessageLite* header);

// Splits a wire message into its header (field 15 left out) and its payload (sharing `wire`'s memory; empty
// when absent). Accepts what any protobuf encoder may produce: the payload anywhere among the fields, the
// last one winning when it is there twice. InvalidArgument, naming the message type and the offset, when
// `wire` is malformed.
absl::Status DecodeBulk(const Bytes& wire, google::protobuf::MessageLite* header, Bytes* payload);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_WIRE_BULK_CODEC_H_
