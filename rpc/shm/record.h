#ifndef TANDEM_RPC_SHM_RECORD_H_
#define TANDEM_RPC_SHM_RECORD_H_

// The small records of a shared-memory connection, and the ring they travel in. Nothing here trusts what it
// reads: a record is copied out of the ring before it is looked at.
//
//   A  RecordHead
//   B  SegmentRef x segments
//   C  text: the method of a request, the message of a failed answer
//   D  the inline bytes, all together
//
// filled up to a multiple of 64 bytes. The body of a message is its segments in order, each either the next
// inline bytes or a run of the direction's payload memory.

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::rpc::shm {

enum class RecordKind : uint8_t {
  kRequest = 1,  // client to server
  kResponse = 2,   // server to client
  kCancel = 3,   // client to server: nobody waits for the answer any more
  kAbandon = 4,  // either way: the message sent in parts will not be completed
};

struct RecordHead {
  uint32_t bytes = 0;  // of the whole record
  uint8_t kind = 0;
  uint8_t more = 0;  // 1: the next record of this call goes on with the message
  uint16_t segments = 0;
  uint64_t call = 0;
  int64_t deadline_ns = 0;  // requests: since the Unix epoch; the largest number: none
  uint32_t code = 0;        // answers: absl::StatusCode
  uint32_t text_bytes = 0;
  uint32_t inline_bytes = 0;
  uint32_t unused = 0;
};
static_assert(sizeof(RecordHead) == 40);

struct SegmentRef {
  static constexpr uint32_t kInline = ~uint32_t{0};
  uint32_t block = kInline;  // first page of the block that holds it, to be named when it is given back
  uint32_t bytes = 0;
  uint64_t offset = 0;  // into payload; 0 when inline
};
static_assert(sizeof(SegmentRef) == 16);

inline constexpr size_t kRecordUnit = 64;
inline constexpr size_t kMaxSegments = 32;
inline constexpr size_t kMaxText = 4096;
inline constexpr size_t kMaxInline = 4096;
inline constexpr size_t kMaxRecord =
    (sizeof(RecordHead) + kMaxSegments * sizeof(SegmentRef) + kMaxText + kMaxInline + kRecordUnit - 1) /
    kRecordUnit * kRecordUnit;

// A record as a value. The views are into memory of the reader, or of the writer, never into the ring.
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

// Reads what a RecordReader has copied out. DataLoss, saying what is wrong, unless every count, kind and
// length fits, inline segments use up the inline bytes exactly, and all others lie in `payload_bytes` of
// payload, in their block's part of it.
absl::Status ParseRecord(absl::string_view copy, size_t payload_bytes, Record* record);

// Writes `record` to `out`, which has room for kMaxRecord bytes; returns its size. The record must keep to
// the limits above.
size_t EncodeRecord(const Record& record, char* out);

// The receiving end of a ring. Used by one thread at a time.
class RecordReader {
 public:
  // `ring` has `size` bytes, a power of two of at least kMaxRecord.
  RecordReader(const char* ring, size_t size, const std::atomic<uint64_t>* written,
               std::atomic<uint64_t>* read)
      : ring_(ring), size_(size), written_(written), read_(read) {}

  // Whether somebody has written more (or damaged the ring).
  bool HasMore() const { return written_->load(std::memory_order_seq_cst) != position_; }
  // Copies the next record to *copy and gives its room back; false when there is none. DataLoss when the ring
  // is damaged: then never again to be called.
  absl::StatusOr<bool> Next(std::string* copy);

 private:
  const char* const ring_;
  const size_t size_;
  const std::atomic<uint64_t>* const written_;
  std::atomic<uint64_t>* const read_;
  uint64_t position_ = 0;  // ours, not the peer's to change
};

// The sending end. Used by one thread at a time.
class RecordWriter {
 public:
  RecordWriter(char* ring, size_t size, std::atomic<uint64_t>* written, const std::atomic<uint64_t>* read)
      : ring_(ring), size_(size), written_(written), read_(read) {}

  // Whether there is room for any record. DataLoss when the peer claims to have read what was never written.
  absl::StatusOr<bool> HasRoom();
  // Publishes an encoded record; HasRoom() must have said yes.
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
