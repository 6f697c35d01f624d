// SPDX-License-Identifier: Apache-2.0
#include "ps/client/check_gradients.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "ps/client/payload_writer.h"
#include "ps/wire/value_codec.h"

namespace tandem::ps {
namespace {

absl::Span<const float> GradientsOf(const PushPart& part, uint32_t dim) {
  const size_t rows = part.pooling == v1::NONE ? part.ids.size() : NumBags(part);
  return absl::MakeConstSpan(part.gradients, rows * dim);
}

}  // namespace

float GradientLimit(const WireOptions& wire) {
  return wire.push_values == v1::VALUES_F32 ? kMaxGradient : kMaxGradient / 2;
}

absl::Status CheckGradients(uint32_t worker, const PushPart& part, uint32_t dim, float limit) {
  const absl::Span<const float> gradients = GradientsOf(part, dim);
  if (LargestMagnitude(gradients) < limit) return absl::OkStatus();
  const auto wrong = std::find_if(gradients.begin(), gradients.end(),
                                  [limit](float gradient) { return !(std::abs(gradient) < limit); });
  if (wrong == gradients.end()) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", worker, ": table '", part.table,
                                                   "': gradients changed while they were checked; nothing "
                                                   "was pushed"));
  }
  const size_t row = static_cast<size_t>(wrong - gradients.begin()) / dim;
  const std::string which =
      part.pooling == v1::NONE ? absl::StrCat("id ", part.ids[row]) : absl::StrCat("bag ", row);
  const std::string what = std::isnan(*wrong)   ? "NaN"
                           : std::isinf(*wrong) ? "Inf"
                                                : absl::StrCat(*wrong, ", beyond 2^", std::ilogb(limit));
  return absl::InvalidArgumentError(absl::StrCat("worker ", worker, ": table '", part.table,
                                                 "': gradient of ", which, " is ", what,
                                                 "; nothing was pushed to any server"));
}

}  // namespace tandem::ps
