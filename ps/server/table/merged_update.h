// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_TABLE_MERGED_UPDATE_H_
#define TANDEM_PS_SERVER_TABLE_MERGED_UPDATE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/buffer_pool.h"
#include "ps/server/table/table_push.h"
#include "ps/storage/table_storage.h"

namespace tandem::ps {

// Applies `pushes`, at least one, to a table of `dim` as one update: the gradients are concatenated in the
// order given. The learning rate factor is that of the first push, even if it has no rows, so that every
// server uses the same. `batch_share` is that of the update (ApplyOptions). `helpers` take part in a large
// update; `buffers` hold the merged arrays.
// Returns the number of entries that had no row, or the error for which the table serves no more.
absl::StatusOr<uint64_t> ApplyMerged(TableStorage& storage, uint32_t dim,
                                     absl::Span<const TablePush* const> pushes, float batch_share,
                                     BufferPool& buffers, Helpers* helpers);

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_TABLE_MERGED_UPDATE_H_
