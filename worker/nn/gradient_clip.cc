// SPDX-License-Identifier: Apache-2.0
#include "worker/nn/gradient_clip.h"

#include <cmath>

namespace tandem::worker {

double ClipGlobalNorm(double max_norm, absl::Span<float> gradients) {
  double squares = 0;
  for (const float gradient : gradients) squares += static_cast<double>(gradient) * gradient;
  const double norm = std::sqrt(squares);
  if (max_norm > 0 && std::isfinite(norm) && norm > max_norm) {
    const auto factor = static_cast<float>(max_norm / norm);
    for (float& gradient : gradients) gradient *= factor;
  }
  return norm;
}

}  // namespace tandem::worker
