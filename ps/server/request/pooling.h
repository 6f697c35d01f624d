// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_REQUEST_POOLING_H_
#define TANDEM_PS_SERVER_REQUEST_POOLING_H_

// Pools bags of rows into one row each, and expands their gradients. MEAN is the mean over the bag's ids in
// this request: a client whose bags are spread over several servers sends SUM and divides by the size of the
// whole bag itself.

#include <cstdint>

#include "absl/types/span.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// Sets out[b] to the sum or mean of rows[offsets[b] .. offsets[b+1]), added in that order. An empty bag gives
// zeros. rows is [offsets.back() x dim], out is [bags x dim]. `pooling` is SUM or MEAN.
void PoolRows(const float* rows, absl::Span<const uint32_t> offsets, uint32_t dim, v1::Pooling pooling,
              float* out);

// Sets out[i] to gradients[b], with MEAN divided by the bag's size, for every row i of bag b. gradients is
// [bags x dim], out is [offsets.back() x dim].
void ExpandBags(const float* gradients, absl::Span<const uint32_t> offsets, uint32_t dim, v1::Pooling pooling,
                float* out);

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_REQUEST_POOLING_H_
