#ifndef TANDEM_PS_CHECKPOINT_FORMAT_H_
#define TANDEM_PS_CHECKPOINT_FORMAT_H_

// A table file: the rows of one table that one server owned. All integers and floats are little-endian.
//
//   A  8 bytes   magic "TANDEMT2"; the last character is the version of the format
//   B  u32       bytes of C
//   C            TableFileHeader, protobuf
//   D  u32       CRC-32 of A..C
//   E            for each bucket of the footer, in its order and without gaps: its rows, ascending by id,
//   each
//                  E1  u64                id
//                  E2  u32                version: the low half of the table's clock at the row's last update
//                  E3  u32                count of the row's updates, in tables that evict by it, else 0
//                  E4  number x dim       embedding, in the table's row_type (f32, f16 or bf16)
//                  E5  f32 x state        optimizer state, row_floats - dim of them
//                and then
//                  E6  filter_bytes       the bucket's admission counters (ps/admission), if the table has
//                  any
//   F            TableFileFooter, protobuf: for each bucket where it begins, its rows, bytes and CRC-32
//   G  u32       bytes of F
//   H  u32       CRC-32 of F and G
//   I  8 bytes   the magic again: a file that was cut off does not end in it
//
// A file written twice from the same rows is the same byte for byte. It can be read onto any number of
// servers, because rows are found by bucket. Version 1, which had f32 embeddings and neither E2, E3 nor E6,
// is still read: its rows' versions are taken to be the table's, their counts 1.

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
inline constexpr absl::string_view kTableFileSuffix = ".table";

// "user.0-of-2.table".
std::string TableFileName(absl::string_view table, uint32_t server_index, uint32_t num_servers);

// Writes the rows of `buckets` to "<path>.tmp", syncs and renames it to `path`. Memory: a buffer of a
// megabyte. Rows must not change meanwhile (new ones may appear); a bucket's lock is held while its rows are
// written. Returns the file's size. Errors (disk full: ResourceExhausted with path and bytes; Cancelled when
// `cancel` turns true) leave nothing behind.
absl::StatusOr<uint64_t> WriteTableFile(const std::string& path, const v1::TableFileHeader& header,
                                        absl::Span<const uint32_t> buckets, TableStorage& storage,
                                        const std::atomic<bool>& cancel,
                                        const OpenFile& open = OpenPosixFile);

// Reads a table file. Not thread-safe.
class TableFileReader {
 public:
  // Checks everything but the rows: magic, version, sizes, CRCs, that the buckets fill the file without gap,
  // and that the header makes sense by itself. NotFound, or DataLoss naming file, byte and what is wrong;
  // FailedPrecondition for a newer format.
  static absl::StatusOr<std::unique_ptr<TableFileReader>> Open(const std::string& path);

  const std::string& path() const { return file_->path(); }
  const v1::TableFileHeader& header() const { return header_; }
  const v1::TableFileFooter& footer() const { return footer_; }

  // Calls visit(id, row, history) for each row of a bucket of footer(); row is [row_floats]. `filter`, unless
  // it is nullptr, becomes the bucket's admission counters. The CRC is known to be right only when OK comes
  // back: on an error, throw away what was visited.
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
  uint64_t rows_bytes(const v1::BucketIndex& bucket) const { return bucket.bytes() - bucket.filter_bytes(); }

  absl::string_view magic_ = kTableFileMagic;
  const std::unique_ptr<ReadableFile> file_;
  v1::TableFileHeader header_;
  v1::TableFileFooter footer_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CHECKPOINT_FORMAT_H_
