#ifndef TANDEM_PS_SERVER_REQUEST_RESPONSE_H_
#define TANDEM_PS_SERVER_REQUEST_RESPONSE_H_

// The rows of a pull's answer, from the table to the bytes that are sent.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/buffer_pool.h"
#include "ps/server/request/wire.h"
#include "ps/server/table/server_table.h"
#include "ps/storage/table_storage.h"

namespace tandem::ps {

// Writes the slice's rows, pooled if it asks for that, in the format it asks for: slice.rows() * RowBytes
// bytes at `out`, at any alignment. As TableStorage::Gather otherwise: `create`, the errors, and what is then
// in `out`. Rows sent as f32 go from the table straight to `out` when that is aligned for floats; others
// through memory of the pool, a block that stays in the second-level cache at a time. `in_place`: who pulls
// reads `out` itself, from another core.
absl::Status WriteRows(TableStorage& storage, const ParsedSlice& slice, bool create, BufferPool& buffers,
                       bool in_place, char* out);

// The same of some of an unpooled slice's ids, which are sent as `values`: ids.size() * RowBytes bytes.
absl::Status WriteUnpooledRows(TableStorage& storage, absl::Span<const uint64_t> ids, v1::ValueFormat values,
                               uint32_t dim, bool create, BufferPool& buffers, char* out);

// A conditional slice's answer: the bitmap, then the rows that its copies do not serve for. Returns how many
// those are: BitmapBytes + so many * RowBytes bytes are written at `out`, which has room for all rows.
// FailedPrecondition when the copies may be older than the table's mode lets any row be; else as above.
absl::StatusOr<uint64_t> WriteNewerRows(const ServerTable::View& view, const ParsedSlice& slice, bool create,
                                        BufferPool& buffers, char* out);

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_REQUEST_RESPONSE_H_
