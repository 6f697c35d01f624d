#ifndef TANDEM_PS_SERVER_REQUEST_POOLING_H_
#define TANDEM_PS_SERVER_REQUEST_POOLING_H_

// Bags of rows to one row each, and back. MEAN is the mean of the ids in this request: a client whose bags
// are spread over several servers sends SUM and divides by the whole bag's size itself.

#include <cstdint>

#include "absl/types/span.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// out[b] = sum (or mean) of rows[offsets[b] .. offsets[b+1]), in that order; an empty bag gives zeros. rows
// is [offsets.back() x dim], out [bags x dim]. pooling is SUM or MEAN.
void PoolRows(const float* rows, absl::Span<const uint32_t> offsets, uint32_t dim, v1::Pooling pooling,
              float* out);

// out[i] = gradients[b], for MEAN divided by the bag's size, for every i of bag b. gradients is [bags x dim],
// out [offsets.back() x dim].
void ExpandBags(const float* gradients, absl::Span<const uint32_t> offsets, uint32_t dim, v1::Pooling pooling,
                float* out);

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_REQUEST_POOLING_H_
