// SPDX-License-Identifier: Apache-2.0
#include "weights/client/remote_weights.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "rpc/wire/bulk_codec.h"
#include "tandem/v1/weights.pb.h"
#include "weights/wire/messages.h"

namespace tandem::weights {
namespace {

constexpr char kStartEpoch[] = "/tandem.v1.Weights/StartEpoch";
constexpr char kPublish[] = "/tandem.v1.Weights/Publish";
constexpr char kHead[] = "/tandem.v1.Weights/Head";
constexpr char kPull[] = "/tandem.v1.Weights/Pull";

// A call that need not wait, or whose deadline has passed, gets this long for its round trip.
constexpr absl::Duration kRoundTrip = absl::Seconds(5);
constexpr absl::Duration kLongestCall = absl::Hours(24);

rpc::CallOptions Within(absl::Duration timeout) { return {.timeout = timeout, .idempotent = true}; }

// The time until `deadline`, or that of a round trip if that is longer.
rpc::CallOptions Until(absl::Time deadline) {
  return Within(std::clamp(deadline - MonotonicNow(), kRoundTrip, kLongestCall));
}

}  // namespace

absl::StatusOr<EpochGrant> RemoteWeights::StartEpoch(absl::string_view model, absl::string_view publisher,
                                                     absl::Time deadline) {
  v1::StartWeightsEpochRequest request;
  request.set_model(std::string(model));
  request.set_publisher(std::string(publisher));
  // A repetition of this request, however late it arrives, must not begin another epoch.
  std::random_device random;
  request.set_token((uint64_t{random()} << 32 | random()) | 1);
  v1::StartWeightsEpochResponse response;
  TANDEM_RETURN_IF_ERROR(rpc::CallProto(*channel_, kStartEpoch, request, &response, Until(deadline)));
  return EpochGrant{.epoch = response.epoch(), .version = response.version()};
}

absl::Status RemoteWeights::Commit(const std::shared_ptr<const Model>& model, absl::Time deadline) {
  v1::PublishWeightsRequest request;
  *request.mutable_info() = ToProto(model->info);
  return channel_->Call(kPublish, rpc::EncodeBulk(request, PayloadOf(model)), Until(deadline)).status();
}

absl::StatusOr<ModelVersion> RemoteWeights::Head(absl::string_view model, absl::Time deadline) {
  v1::WeightsHeadRequest request;
  request.set_model(std::string(model));
  v1::WeightsHeadResponse response;
  TANDEM_RETURN_IF_ERROR(rpc::CallProto(*channel_, kHead, request, &response, Until(deadline)));
  return FromProto(response.info()).version;
}

absl::StatusOr<std::shared_ptr<const Model>> RemoteWeights::PullHead(absl::string_view model,
                                                                     absl::Time deadline) {
  v1::PullWeightsRequest request;
  request.set_model(std::string(model));
  // A version that has been announced is worth more time than is left of the wait for it.
  const absl::Duration timeout = std::clamp(deadline - MonotonicNow(), options_.call_timeout,
                                            std::max(options_.call_timeout, kLongestCall));
  TANDEM_ASSIGN_OR_RETURN(const Bytes wire,
                          channel_->Call(kPull, Bytes(request.SerializeAsString()), Within(timeout)));
  v1::PullWeightsResponse response;
  Bytes payload;
  TANDEM_RETURN_IF_ERROR(rpc::DecodeBulk(wire, &response, &payload));
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Model> pulled, FromProto(response.info(), payload));
  if (DigestOf(pulled->info.tensors, pulled->values()) != pulled->info.digest) {
    return absl::DataLossError(absl::StrCat("model '", model, "': the digest of ",
                                            ToString(pulled->info.version), " from ", channel_->target(),
                                            " is not that of its values: it was damaged on its way"));
  }
  return std::shared_ptr<const Model>(std::move(pulled));
}

absl::StatusOr<std::shared_ptr<const Model>> RemoteWeights::Newer(absl::string_view model,
                                                                  const ModelVersion& than,
                                                                  absl::Time deadline) {
  v1::WeightsHeadRequest request;
  request.set_model(std::string(model));
  request.set_have_epoch(than.epoch);
  request.set_have_version(than.number);
  for (;;) {
    const absl::Duration wait =
        std::clamp(deadline - MonotonicNow(), absl::ZeroDuration(), options_.call_timeout);
    request.set_wait(wait > absl::ZeroDuration());
    request.set_wait_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(wait)) + 1);
    v1::WeightsHeadResponse response;
    // The server ends the wait; the rest of the time is for the way there and back.
    const absl::Status asked =
        rpc::CallProto(*channel_, kHead, request, &response, Within(wait + kRoundTrip));
    const bool over = MonotonicNow() >= deadline;
    if (!asked.ok()) {
      if (!over && (absl::IsDeadlineExceeded(asked) || absl::IsUnavailable(asked))) continue;
      return asked;
    }
    if (response.newer()) {
      // Asks for the head: newer versions may have removed the one that was announced.
      absl::StatusOr<std::shared_ptr<const Model>> pulled = PullHead(model, deadline);
      if (pulled.ok() ? (*pulled)->info.version > than : !absl::IsNotFound(pulled.status())) return pulled;
      // The server has started again meanwhile, and has lost the version.
    }
    if (over || !request.wait()) return nullptr;
  }
}

}  // namespace tandem::weights
