// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CHECKPOINT_FORMAT_H_
#define TANDEM_PS_CHECKPOINT_FORMAT_H_

// Writes and reads table files. A complete table file contains the rows of one table that one server owned.
// They are grouped by bucket (ps/shard_map.h). Another kind holds only the rows that have changed since
// another file was written; ps/checkpoint/chain.h puts the two together. All integers and floats are
// little-endian. CRC-32 is zlib's (Crc32). A file has these fields:
//
//   A  8 bytes   magic "TANDEMT2"; the last character is the version of the format
//   B  u32       size of C in bytes
//   C            TableFileHeader, protobuf
//   D  u32       CRC-32 of A..C
//   E            for each bucket of the footer, in the footer's order and without gaps,
//                the bucket's rows in ascending order of id, each consisting of
//                  E1  u64                id
//                  E2  u32                version: low 32 bits of the table's clock (the number of updates
//                                         so far) when the row was last updated, or created
//                  E3  u32                count: in tables that evict by it, that of Eviction::Counted at
//                                         the last update; else 0
//                  E4  row_type x dim     embedding; row_type is the table's: f32, f16 or bf16
//                  E5  f32 x state        optimizer state; state = row_floats - dim
//                and after the bucket's rows
//                  E6  filter_bytes       the bucket's admission counters, if the table has any
//                                         (ps/policies/admission.h)
//                and in format version 3
//                  E7  u64 x removed      the ids of rows that have been removed, in ascending order
//   F            TableFileFooter, protobuf: for each bucket its offset in the file, rows, bytes, filter_bytes
//                (included in bytes) and the CRC-32 of all its bytes
//   G  u32       size of F in bytes
//   H  u32       CRC-32 of F and G
//   I  8 bytes   the magic again; a truncated file does not end in it
//
// Format version 3, "TANDEMT3", holds what has changed since the file that the header's `base` names. Its
// buckets are as above, except that those which the footer does not call `whole` have
//
//   E1 to E5   the rows that were created or changed since then, and possibly others
//   E6         the blocks of admission counters that have changed (ps/storage/admission_filter.h)
//   E7         the ids of rows that were removed since then; those that exist again are among E1, too
//
// Writing the same rows twice gives the same bytes. A file can be restored onto any number of servers,
// because its rows are grouped by bucket: each server reads the buckets that it owns. Format version 1, which
// had f32 embeddings and no E2, E3 or E6, can still be read: its rows get the low half of the saved table's
// clock as their version, and the count Eviction::kOneOccurrence.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/checksummed_file.h"
#include "base/numeric/dtype.h"
#include "ps/storage/table_storage.h"
#include "ps/table.h"
#include "tandem/v1/checkpoint.pb.h"

namespace tandem::ps {

inline constexpr absl::string_view kTableFileMagic = "TANDEMT2";
inline constexpr absl::string_view kOldTableFileMagic = "TANDEMT1";
inline constexpr absl::string_view kDeltaFileMagic = "TANDEMT3";
inline constexpr absl::string_view kTableFileSuffix = ".table";

// Returns the name of a server's file of a table, such as "user.0-of-2.table". The table's name is used as it
// is: ValidateTableName admits only characters that a file name may contain.
std::string TableFileName(absl::string_view table, uint32_t server_index, uint32_t num_servers);

// A table file as it was written.
struct TableFileSummary {
  uint64_t bytes = 0;
  uint32_t crc32 = 0;         // of the whole file
  uint32_t footer_crc32 = 0;  // field H; it covers the CRC-32 of every bucket
};

// Writes the rows of `buckets`, in this order, to "<path>.tmp", syncs it and renames it to `path`, which
// replaces an existing file. Does not sync the directory. Requires distinct `buckets`, and a `header` that
// the caller has filled in completely; its row_floats is that of `storage`. If the header has a base, writes
// what has changed since the cut of `storage`, in format version 3.
//
// Existing rows must not change during the call; pulls may still create rows. Blocks on the disk, without a
// deadline, and holds a bucket's lock (shared) while its rows are written. Uses a buffer of 1 MiB.
//
// Errors are those of the file, such as ResourceExhausted with path and bytes if the disk is full, and those
// of `storage`. Cancelled: `cancel`, which is checked after each bucket, became true. After an error the
// temporary file is removed and `path` is unchanged.
absl::StatusOr<TableFileSummary> WriteTableFile(const std::string& path, const v1::TableFileHeader& header,
                                                absl::Span<const uint32_t> buckets, TableStorage& storage,
                                                const std::atomic<bool>& cancel,
                                                const OpenFile& open = OpenPosixFile);
// As above, with rows from `source`, which is called for one bucket after the other and visits its rows in
// ascending order of id. If the header has no base, every bucket must be whole.
using BucketSource =
    absl::FunctionRef<absl::StatusOr<BucketChanges>(uint32_t bucket, TableStorage::RowVisitor visit)>;
absl::StatusOr<TableFileSummary> WriteTableFile(const std::string& path, const v1::TableFileHeader& header,
                                                absl::Span<const uint32_t> buckets, BucketSource source,
                                                const std::atomic<bool>& cancel,
                                                const OpenFile& open = OpenPosixFile);

// Reads a table file. Every call blocks on the disk, without a deadline. Not thread-safe.
class TableFileReader {
 public:
  // Opens a file and checks everything except the rows: magic, version, sizes, the CRCs of header and footer,
  // that the buckets fill the file without gaps, and that the header is consistent. Errors:
  //
  //   - NotFound: there is no such file;
  //   - DataLoss, naming file, byte and what is wrong: the file is damaged or no table file;
  //   - FailedPrecondition: this program does not read the format's version;
  //   - InvalidArgument: it is not a regular file, or the header's table configuration is invalid;
  //   - other errors: the system's, when the file cannot be read;
  //   - PermissionDenied: it is a symbolic link that leads out of its directory.
  static absl::StatusOr<std::unique_ptr<TableFileReader>> Open(const std::string& path);
  // Opens the file `name`, a relative path, of a directory. PermissionDenied: a symbolic link in `name` leads
  // out of the directory. Otherwise as Open.
  static absl::StatusOr<std::unique_ptr<TableFileReader>> OpenBelow(const std::string& directory,
                                                                    const std::string& name);

  const std::string& path() const { return file_->path(); }
  const v1::TableFileHeader& header() const { return header_; }
  const v1::TableFileFooter& footer() const { return footer_; }
  uint64_t bytes() const { return file_->size(); }
  uint32_t footer_crc32() const { return footer_crc32_; }  // as in TableFileSummary
  // Returns whether the file holds only what has changed since another.
  bool builds_on_another() const { return header_.has_base(); }

  // Calls visit(id, row, history) for each row of `bucket` in this file. `bucket` must be an entry of
  // footer(). Rows are in ascending order of id. `row` is [row_floats]: the embedding converted to f32, then
  // the optimizer state; it is valid during the call of `visit` only. Returns the rest of the bucket:
  // `filter` has the admission counters (empty if there are none), or a patch of them if the bucket is not
  // whole.
  //
  // Errors: DataLoss as of Open; the system's when the file cannot be read. The CRC is checked last: after an
  // error the caller must discard the rows that were visited.
  absl::StatusOr<BucketChanges> ReadChanges(const v1::BucketIndex& bucket, TableStorage::RowVisitor visit);
  // As ReadChanges, for files that build on no other. Sets `filter`, unless it is nullptr, to the bucket's
  // admission counters; after an error it is unchanged. FailedPrecondition: the file builds on another.
  absl::Status ReadBucket(const v1::BucketIndex& bucket, TableStorage::RowVisitor visit, std::string* filter);

 private:
  explicit TableFileReader(std::unique_ptr<ReadableFile> file) : file_(std::move(file)) {}
  absl::Status ReadHeader(uint64_t* rows_begin);
  absl::Status ReadFooter(uint64_t rows_begin);
  absl::Status Corrupt(uint64_t offset, absl::string_view what) const;
  bool old() const { return magic_ == kOldTableFileMagic; }
  size_t history_bytes() const { return old() ? 0 : 2 * sizeof(uint32_t); }
  DType dtype() const { return old() ? DType::kF32 : RowTypeOf(header_.config()); }
  uint64_t row_bytes() const {
    const uint64_t dim = header_.config().dim();
    return sizeof(uint64_t) + history_bytes() + dim * SizeOf(dtype()) +
           (header_.row_floats() - dim) * sizeof(float);
  }
  static uint64_t rows_bytes(const v1::BucketIndex& bucket) {
    return bucket.bytes() - bucket.filter_bytes() - bucket.removed() * sizeof(uint64_t);
  }

  absl::string_view magic_ = kTableFileMagic;
  const std::unique_ptr<ReadableFile> file_;
  v1::TableFileHeader header_;
  v1::TableFileFooter footer_;
  uint32_t footer_crc32_ = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CHECKPOINT_FORMAT_H_
