// SPDX-License-Identifier: Apache-2.0
#include "ps/server/request/pooling.h"

#include <algorithm>

namespace tandem::ps {

void PoolRows(const float* rows, absl::Span<const uint32_t> offsets, uint32_t dim, v1::Pooling pooling,
              float* out) {
  for (size_t b = 0; b + 1 < offsets.size(); ++b, out += dim) {
    std::fill_n(out, dim, 0.0f);
    for (uint32_t i = offsets[b]; i < offsets[b + 1]; ++i) {
      const float* row = rows + size_t{i} * dim;
      for (uint32_t d = 0; d < dim; ++d) out[d] += row[d];
    }
    const uint32_t size = offsets[b + 1] - offsets[b];
    if (pooling == v1::MEAN && size > 1) {
      const float scale = 1.0f / static_cast<float>(size);
      for (uint32_t d = 0; d < dim; ++d) out[d] *= scale;
    }
  }
}

void ExpandBags(const float* gradients, absl::Span<const uint32_t> offsets, uint32_t dim, v1::Pooling pooling,
                float* out) {
  for (size_t b = 0; b + 1 < offsets.size(); ++b, gradients += dim) {
    const uint32_t size = offsets[b + 1] - offsets[b];
    const float scale = pooling == v1::MEAN && size > 1 ? 1.0f / static_cast<float>(size) : 1.0f;
    for (uint32_t i = 0; i < size; ++i, out += dim) {
      for (uint32_t d = 0; d < dim; ++d) out[d] = gradients[d] * scale;
    }
  }
}

}  // namespace tandem::ps
