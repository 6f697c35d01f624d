// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SHM_RECORD_H_
#define TANDEM_RPC_SHM_RECORD_H_

// The small records of a shared-memory connection, and the ring that carries them. Nothing here trusts the
// data that it reads: a record is copied out of the ring before it is parsed.
//
//   A  RecordHead
//   B  SegmentRef x segments
//   C  text: the method of a request, the message of an error response
//   D  the inline bytes of all segments
//
// A record is padded to a multiple of 64 bytes. The body of a message consists of its segments, in order.
// Each segment is either the next inline bytes or a run of the direction's payload memory.

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::rpc::shm {

enum class RecordKind : uint8_t {
  kRequest = 1,   // client to server
  kResponse = 2,  // server to client
  // Client to server: the client does not wait for the response any more.
  kCancel = 3,
  // Both directions: the message that was sent in parts will not be completed.
  kAbandon = 4,
};

// The fixed-size beginning of a record.
struct RecordHead {
  uint32_t bytes = 0;  // size of the whole record
  uint8_t kind = 0;
  // 1: the next record of this call continues the message.
  uint8_t more = 0;
  uint16_t segments = 0;
  uint64_t call = 0;
  // Set in requests, in ns of the host's CLOCK_MONOTONIC; the largest number: no deadline.
  int64_t deadline_ns = 0;
  uint32_t code = 0;  // for responses: absl::StatusCode
  uint32_t text_bytes = 0;
  uint32_t inline_bytes = 0;
  uint32_t unused = 0;
};
static_assert(sizeof(RecordHead) == 40);

// One segment of a message's body.
struct SegmentRef {
  static constexpr uint32_t kInline = ~uint32_t{0};
  // The first page of the block that contains it, which the receiver names when it releases the block.
  uint32_t block = kInline;
  uint32_t bytes = 0;
  uint64_t offset = 0;  // in payload memory; 0 if inline
};
static_assert(sizeof(SegmentRef) == 16);

inline constexpr size_t kRecordUnit = 64;
inline constexpr size_t kMaxSegments = 32;
inline constexpr size_t kMaxText = 4096;
inline constexpr size_t kMaxInline = 4096;
inline constexpr size_t kMaxRecord =
    (sizeof(RecordHead) + kMaxSegments * sizeof(SegmentRef) + kMaxText + kMaxInline + kRecordUnit - 1) /
    kRecordUnit * kRecordUnit;

// A parsed record. The views refer to memory of the reader or the writer, never to the ring.
struct Record {
  RecordKind kind = RecordKind::kRequest;
  bool more = false;
  uint64_t call = 0;
  int64_t deadline_ns = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  absl::InlinedVector<SegmentRef, 4> segments;
  absl::string_view text;
  absl::string_view inline_bytes;
};

// Parses a record that a RecordReader has copied. DataLoss, which says what is wrong, unless all of these
// hold:
//
// - every count, kind and length is within its limit
// - the inline segments use exactly the inline bytes
// - all other segments lie within `payload_bytes` of payload, not before the first page of their block
absl::Status ParseRecord(absl::string_view copy, size_t payload_bytes, Record* record);

// Writes `record` to `out`, which must have at least kMaxRecord bytes, and returns its size. The record must
// respect the limits above.
size_t EncodeRecord(const Record& record, char* out);

// The receiving end of a ring. Used by one thread at a time.
class RecordReader {
 public:
  // `ring` has `size` bytes, a power of two of at least kMaxRecord.
  RecordReader(const char* ring, size_t size, const std::atomic<uint64_t>* written,
               std::atomic<uint64_t>* read)
      : ring_(ring), size_(size), written_(written), read_(read) {}

  // Returns true if the peer has written more (or has damaged the ring).
  bool HasMore() const { return written_->load(std::memory_order_seq_cst) != position_; }
  // Copies the next record to *copy and frees its space in the ring. Returns false if there is none. DataLoss
  // if the ring is damaged; it must not be called again after that.
  absl::StatusOr<bool> Next(std::string* copy);

 private:
  const char* const ring_;
  const size_t size_;
  const std::atomic<uint64_t>* const written_;
  std::atomic<uint64_t>* const read_;
  uint64_t position_ = 0;  // private, so the peer cannot change it
};

// The sending end. Used by one thread at a time.
class RecordWriter {
 public:
  RecordWriter(char* ring, size_t size, std::atomic<uint64_t>* written, const std::atomic<uint64_t>* read)
      : ring_(ring), size_(size), written_(written), read_(read) {}

  // Returns true if any record fits into the ring. DataLoss if the peer claims to have read bytes that were
  // never written.
  absl::StatusOr<bool> HasRoom();
  // Publishes an encoded record. HasRoom() must have returned true.
  void Put(absl::string_view record);

 private:
  char* const ring_;
  const size_t size_;
  std::atomic<uint64_t>* const written_;
  const std::atomic<uint64_t>* const read_;
  uint64_t position_ = 0;
  uint64_t known_read_ = 0;
};

}  // namespace tandem::rpc::shm

#endif  // TANDEM_RPC_SHM_RECORD_H_
