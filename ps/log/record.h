// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_LOG_RECORD_H_
#define TANDEM_PS_LOG_RECORD_H_

// Describes the records of a parameter server's log and of its snapshots. All integers are little-endian.
//
// A segment of the log is named "log-<first position>-<term>", both as 16 hexadecimal digits. A snapshot is
// named "snapshot-<position>", with the position as 16 hexadecimal digits.
//
//   segment of the log
//     A  8 bytes   magic "TANDEMW1"; the last character is the version of the format
//     B  u32       size of C in bytes
//     C            LogSegmentHeader, protobuf
//     D  u32       CRC-32C of A..C
//     E            zeros up to the next multiple of 8
//     F            records, then zeros up to the end of the file, whose size is allocated in advance
//   snapshot
//     A  8 bytes   magic "TANDEMS1"
//     B            records: STATE, ROWS of each bucket and table, END
//   record
//     A  u32       magic 0x31525754, "TWR1"
//     B  u32       CRC-32C of C..G
//     C  u32       size of G in bytes
//     D  u32       kind
//     E  u64       position: records of a log count from 1, those of a snapshot too
//     F  u64       durable: every record up to this position was safe when this one was written
//     G            body
//     H            zeros up to the next multiple of 8
//
// Field F tells the torn end of a log from damage: a bad record that a later one calls durable is damage.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "tandem/v1/durability.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

inline constexpr absl::string_view kSegmentMagic = "TANDEMW1";
inline constexpr absl::string_view kSnapshotMagic = "TANDEMS1";
inline constexpr size_t kRecordHeaderBytes = 32;
// LogSegmentHeader.format_version of the segments that are written, and the largest that is read.
inline constexpr uint32_t kLogFormatVersion = 1;

// The kinds of records. The numbers are part of the format. proto/tandem/v1/durability.proto has the bodies.
enum class RecordKind : uint32_t {
  // Kinds of the log.
  kPush = 1,
  kCreateTable = 2,
  kChangeMode = 3,
  kFlush = 4,
  kWriteRows = 5,
  kStartEpoch = 6,
  kRegister = 7,
  kDropTable = 8,
  // Kinds of snapshots.
  kState = 32,
  kRows = 33,
  kEnd = 34,
  // Sent to followers only: the copy has all records of the primary up to this position.
  kContinue = 35,
};

// A record that was read. `body` refers to the memory that was parsed.
struct Record {
  RecordKind kind;
  uint64_t position;
  uint64_t durable;
  absl::string_view body;
  size_t bytes;  // in the file, with header and padding
};

// Returns the size in the file of a record whose body has `body_bytes` bytes.
size_t RecordBytes(size_t body_bytes);
// Appends a record to `out`. Copies the body first and takes the CRC of the copy: the sender of a push over
// shared memory may still be able to change the original. Requires a body below 4 GiB.
void AppendRecord(RecordKind kind, uint64_t position, uint64_t durable, const Bytes& body, std::string* out);
// Does the same into the RecordBytes(body.size()) bytes at `out`.
void WriteRecord(RecordKind kind, uint64_t position, uint64_t durable, const Bytes& body, char* out);
// Returns the number of bytes that ParseRecord reads at `offset` of `data`; 0 if no record can begin there.
size_t RecordCost(absl::string_view data, size_t offset);
// Returns the record that begins at `offset` of `data`; nullopt if there is no whole and undamaged one.
std::optional<Record> ParseRecord(absl::string_view data, size_t offset);

// Returns the name of a segment's file.
std::string SegmentName(uint64_t first_position, uint64_t term);
// Returns the term in the name of a segment's file; nullopt if `name` is of another file.
std::optional<uint64_t> TermOfSegment(absl::string_view name);
// Returns the first bytes of a segment, up to its first record.
std::string SegmentStart(const v1::LogSegmentHeader& header);
// Parses them and sets `records` to the offset of the first record. nullopt: they are damaged or cut short.
std::optional<v1::LogSegmentHeader> ParseSegmentStart(absl::string_view data, size_t* records);

}  // namespace tandem::ps

#endif  // TANDEM_PS_LOG_RECORD_H_
