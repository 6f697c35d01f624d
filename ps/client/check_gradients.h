// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_CHECK_GRADIENTS_H_
#define TANDEM_PS_CLIENT_CHECK_GRADIENTS_H_

// Finds gradients that a server would refuse, before a push is sent. Each server sees only its own part of a
// push: without this check one server could refuse its part while another applies its own.

#include <cstdint>

#include "absl/status/status.h"
#include "ps/client/parts.h"
#include "ps/client/wire_options.h"

namespace tandem::ps {

// Returns the magnitude that every gradient of a push must be below: kMaxGradient if it is sent as f32, and
// half of that otherwise, because rounding and error feedback may add to it.
float GradientLimit(const WireOptions& wire);

// Returns OK if all gradients of the part are below `limit` in magnitude. `dim` is the dim of its table.
// Otherwise InvalidArgument: names the worker, the table, the id or bag, and the value.
absl::Status CheckGradients(uint32_t worker, const PushPart& part, uint32_t dim, float limit);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_CHECK_GRADIENTS_H_
