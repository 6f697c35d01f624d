// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/inference/remote_policy.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "rpc/wire/bulk_codec.h"
#include "tandem/v1/inference.pb.h"

namespace tandem::rl {

absl::StatusOr<ActedWith> RemotePolicy::Act(absl::Span<const float> observations, size_t rows,
                                            absl::Span<float> actions, absl::Span<float> log_probabilities,
                                            absl::Time deadline) {
  tandem::v1::InferenceActRequest request;
  request.set_rows(static_cast<uint32_t>(rows));
  // A copy, because a call that has timed out may still be in a queue.
  std::string payload(reinterpret_cast<const char*>(observations.data()),
                      observations.size() * sizeof(float));
  const absl::Duration timeout =
      std::clamp(deadline - MonotonicNow(), absl::Milliseconds(20), absl::Duration(absl::Hours(1)));
  TANDEM_ASSIGN_OR_RETURN(
      const Bytes wire,
      channel_->Call("/tandem.v1.Inference/Act", rpc::EncodeBulk(request, Bytes(std::move(payload))),
                     {.timeout = timeout, .idempotent = true}));
  tandem::v1::InferenceActResponse response;
  Bytes answer;
  TANDEM_RETURN_IF_ERROR(rpc::DecodeBulk(wire, &response, &answer));
  BytesReader reader(answer);
  if (answer.size() != (actions.size() + log_probabilities.size()) * sizeof(float) ||
      !reader.Copy(actions.data(), actions.size() * sizeof(float)) ||
      !reader.Copy(log_probabilities.data(), log_probabilities.size() * sizeof(float))) {
    return absl::InternalError(absl::StrCat("the inference server at ", channel_->target(), " answered with ",
                                            answer.size(), " bytes instead of ",
                                            (actions.size() + log_probabilities.size()) * sizeof(float),
                                            "; actors and inference servers must run the same job"));
  }
  return ActedWith{.version = {.epoch = response.epoch(), .number = response.version()},
                   .last = response.last()};
}

}  // namespace tandem::rl
