#ifndef TANDEM_PS_CHECKPOINT_FORMAT_H_
#define TANDEM_PS_CHECKPOINT_FORMAT_H_

// A table file: the rows of one table that one server owned. All integers and floats are little-endian.
//
//   A  8 bytes   magic "TANDEMT1"; the last character is the version of the format
//   B  u32       bytes of C
//   C            TableFileHeader, protobuf
//   D  u32       CRC-32 of A..C
//   E            for each bucket of the footer, in its order and without gaps: its rows, ascending by id,
//   each
//                  E1  u64                id
//                  E2  f32 x row_floats   embedding (dim floats), then optimizer state
//   F            TableFileFooter, protobuf: for each bucket where it begins, its rows, bytes and CRC-32
//   G  u32       bytes of F
//   H  u32       CRC-32 of F and G
//   I  8 bytes   the magic again: a file that was cut off does not end in it
//
// A file written twice from the same rows is the same byte for byte. It can be read onto any number of
// servers, because rows are found by bucket.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ps/checkpoint/file.h"
#include "ps/storage/table_storage.h"
#include "tandem/v1/checkpoint.pb.h"

namespace tandem::ps {

inline constexpr absl::string_view kTableFileMagic = "TANDEMT1";
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

  // Calls visit(id, row) for each row of a bucket of footer(); row is [row_floats]. The CRC is known to be
  // right only when OK comes back: on an error, throw away what was visited.
  absl::Status ReadBucket(const v1::BucketIndex& bucket,
                          absl::FunctionRef<void(uint64_t id, const float* row)> visit);

 private:
  explicit TableFileReader(std::unique_ptr<ReadableFile> file) : file_(std::move(file)) {}
  absl::Status ReadHeader(uint64_t* rows_begin);
  absl::Status ReadFooter(uint64_t rows_begin);
  absl::Status Corrupt(uint64_t offset, absl::string_view what) const;
  uint64_t row_bytes() const { return sizeof(uint64_t) + header_.row_floats() * sizeof(float); }

  const std::unique_ptr<ReadableFile> file_;
  v1::TableFileHeader header_;
  v1::TableFileFooter footer_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CHECKPOINT_FORMAT_H_
