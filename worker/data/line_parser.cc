// SPDX-License-Identifier: Apache-2.0
#include "worker/data/line_parser.h"

namespace tandem::worker {

void PrepareBatch(const Schema& schema, size_t rows, Batch* batch) {
  batch->size = 0;
  batch->labels.resize(rows);
  batch->num_dense = schema.dense.size();
  batch->dense.resize(rows * schema.dense.size());
  batch->num_kept = schema.kept.size();
  batch->kept.resize(rows * schema.kept.size());
  batch->sparse.resize(schema.sparse.size());
  for (size_t f = 0; f < schema.sparse.size(); ++f) {
    SparseColumn& column = batch->sparse[f];
    column.weights.clear();
    if (schema.sparse[f].separator == '\0') {
      column.ids.resize(rows);
      column.offsets.clear();
    } else {
      column.ids.clear();
      column.offsets.resize(rows + 1);
      column.offsets[0] = 0;
    }
  }
}

void TrimBatch(size_t rows, Batch* batch) {
  batch->size = rows;
  batch->labels.resize(rows);
  batch->dense.resize(rows * batch->num_dense);
  batch->kept.resize(rows * batch->num_kept);
  for (SparseColumn& column : batch->sparse) {
    size_t ids = rows;
    if (!column.offsets.empty()) {
      column.offsets.resize(rows + 1);
      ids = column.offsets[rows];  // a malformed last line may have left more
    }
    column.ids.resize(ids);
    if (!column.weights.empty()) column.weights.resize(ids);
  }
}

}  // namespace tandem::worker
