// SPDX-License-Identifier: Apache-2.0
#include "weights/client/remote_weights.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/copy_bytes.h"
#include "base/status.h"
#include "rpc/wire/bulk_codec.h"
#include "tandem/v1/weights.pb.h"
#include "weights/client/call_window.h"
#include "weights/wire/messages.h"

namespace tandem::weights {
namespace {

constexpr char kStartEpoch[] = "/tandem.v1.Weights/StartEpoch";
constexpr char kPublish[] = "/tandem.v1.Weights/Publish";
constexpr char kBeginUpload[] = "/tandem.v1.Weights/BeginUpload";
constexpr char kPutPiece[] = "/tandem.v1.Weights/PutPiece";
constexpr char kHead[] = "/tandem.v1.Weights/Head";
constexpr char kPull[] = "/tandem.v1.Weights/Pull";

// A call that need not wait, or whose deadline has passed, gets this long for its round trip.
constexpr absl::Duration kRoundTrip = absl::Seconds(5);
constexpr absl::Duration kLongestCall = absl::Hours(24);
// While a piece is copied at one end, the next one is at the other end, and two are between.
constexpr int kPiecesUnderWay = 4;

rpc::CallOptions Within(absl::Duration timeout) { return {.timeout = timeout, .idempotent = true}; }

// The time until `deadline`, or that of a round trip if that is longer.
rpc::CallOptions Until(absl::Time deadline) {
  return Within(std::clamp(deadline - MonotonicNow(), kRoundTrip, kLongestCall));
}
// Returns the time at which calls that Until() describes end, for several calls that end together.
absl::Time EndOf(absl::Time deadline) { return MonotonicNow() + Until(deadline).timeout; }
rpc::CallOptions Before(absl::Time end) {
  return Within(std::max(end - MonotonicNow(), absl::Milliseconds(1)));
}

// Returns true if a server that has not taken a version in pieces may take it as a whole: it has dropped the
// pieces, has started again, or is of an earlier release.
bool MayCommitWhole(const absl::Status& in_pieces) {
  return absl::IsNotFound(in_pieces) || absl::IsUnimplemented(in_pieces);
}

size_t BytesOf(const Model& model) { return model.count * sizeof(float); }

uint64_t RandomToken() {  // not 0
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

}  // namespace

absl::StatusOr<EpochGrant> RemoteWeights::StartEpoch(absl::string_view model, absl::string_view publisher,
                                                     absl::Time deadline) {
  v1::StartWeightsEpochRequest request;
  request.set_model(std::string(model));
  request.set_publisher(std::string(publisher));
  // A repetition of this request, however late it arrives, must not begin another epoch.
  request.set_token(RandomToken());
  v1::StartWeightsEpochResponse response;
  TANDEM_RETURN_IF_ERROR(rpc::CallProto(*channel_, kStartEpoch, request, &response, Until(deadline)));
  return EpochGrant{.epoch = response.epoch(), .version = response.version()};
}

absl::Status RemoteWeights::Commit(const std::shared_ptr<const Model>& model, absl::Time deadline) {
  const absl::Time end = EndOf(deadline);
  if (!InPieces(BytesOf(*model))) return CommitWhole(model, end);
  const absl::Status committed = CommitInPieces(
      model, [](size_t, size_t) {}, end);
  return MayCommitWhole(committed) ? CommitWhole(model, end) : committed;
}

absl::Status RemoteWeights::FillAndCommit(UnfilledModel* unfilled, absl::Time deadline) {
  const absl::Time end = EndOf(deadline);
  Model& model = *unfilled->model;
  const size_t bytes = BytesOf(model);
  if (!InPieces(bytes)) {
    unfilled->Fill();
    return CommitWhole(unfilled->model, end);
  }
  PiecesDigest digest(model.info.tensors, bytes);
  PartsReader parts(unfilled->parts);
  size_t filled = 0;
  const auto fill = [&](size_t offset, size_t size) {
    digest.Copy(reinterpret_cast<char*>(unfilled->values.get()), offset, size, &parts);
    filled = offset + size;
    if (filled < bytes) return;
    model.info.digest_kind = DigestKind::kPieces;
    model.info.digest = digest.Digest();
  };
  const absl::Status committed = CommitInPieces(unfilled->model, fill, end);
  if (filled < bytes) fill(filled, bytes - filled);
  return MayCommitWhole(committed) ? CommitWhole(unfilled->model, end) : committed;
}

absl::Status RemoteWeights::CommitWhole(const std::shared_ptr<const Model>& model, absl::Time end) {
  v1::PublishWeightsRequest request;
  *request.mutable_info() = ToProto(model->info);
  return channel_->Call(kPublish, rpc::EncodeBulk(request, PayloadOf(model)), Before(end)).status();
}

bool RemoteWeights::InPieces(size_t bytes) const {
  return knows_pieces_ && bytes > kPieceBytes && bytes <= kMaxBytesInPieces;
}

absl::Status RemoteWeights::CommitInPieces(const std::shared_ptr<const Model>& model,
                                           absl::FunctionRef<void(size_t, size_t)> fill, absl::Time end) {
  const uint64_t upload = RandomToken();
  v1::BeginWeightsUploadRequest begin;
  begin.set_upload(upload);
  *begin.mutable_info() = ToProto(model->info);
  v1::BeginWeightsUploadResponse begun;
  const absl::Status status = rpc::CallProto(*channel_, kBeginUpload, begin, &begun, Before(end));
  if (absl::IsUnimplemented(status)) knows_pieces_ = false;
  if (!status.ok() || begun.committed()) return status;
  const char* const values = reinterpret_cast<const char*>(model->data.get());
  CallWindow window(channel_.get(), kPiecesUnderWay, end);
  for (size_t offset = 0, size = 0; offset < BytesOf(*model); offset += size) {
    size = std::min(kPieceBytes, BytesOf(*model) - offset);
    std::shared_ptr<char> memory = channel_->RequestMemory(size);
    // Steps of this size stay in a near cache.
    for (size_t at = 0, step = 0; at < size; at += step) {
      step = std::min(kDigestPieceBytes, size - at);
      fill(offset + at, step);
      if (memory != nullptr) CopyBytes(memory.get() + at, values + offset + at, step);
    }
    v1::PutWeightsPieceRequest request;
    request.set_upload(upload);
    request.set_offset(offset);
    const char* const piece = memory.get();
    Bytes payload =
        piece == nullptr ? PayloadOf(model, offset, size) : Bytes(Slice(std::move(memory), piece, size));
    TANDEM_RETURN_IF_ERROR(window.Start(kPutPiece, rpc::EncodeBulk(request, std::move(payload)),
                                        [](const Bytes&) { return absl::OkStatus(); }));
  }
  TANDEM_RETURN_IF_ERROR(window.Finish());
  v1::PublishWeightsRequest publish;
  *publish.mutable_info() = ToProto(model->info, /*tensors=*/false);
  publish.set_upload(upload);
  return channel_->Call(kPublish, Bytes(publish.SerializeAsString()), Before(end)).status();
}

absl::StatusOr<ModelVersion> RemoteWeights::Head(absl::string_view model, absl::Time deadline,
                                                 std::stop_token cancel) {
  v1::WeightsHeadRequest request;
  request.set_model(std::string(model));
  v1::WeightsHeadResponse response;
  rpc::CallOptions options = Until(deadline);
  options.cancel = std::move(cancel);
  TANDEM_RETURN_IF_ERROR(rpc::CallProto(*channel_, kHead, request, &response, options));
  return FromProto(response.info()).version;
}

absl::StatusOr<std::shared_ptr<const Model>> RemoteWeights::PullHead(absl::string_view model,
                                                                     absl::Time deadline) {
  v1::PullWeightsRequest request;
  request.set_model(std::string(model));
  // A socket's transport has the next part of a message on its way by itself, so there one message is faster.
  // Servers of earlier releases always give the whole version.
  const bool socket = channel_->transport() == "tcp" || channel_->transport() == "unix";
  request.set_limit(socket ? 0 : kPieceBytes);
  // A version that has been announced is worth more time than is left of the wait for it.
  const absl::Time end = MonotonicNow() + std::clamp(deadline - MonotonicNow(), options_.call_timeout,
                                                     std::max(options_.call_timeout, kLongestCall));
  std::shared_ptr<Model> pulled;
  while (pulled == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(const Bytes wire,
                            channel_->Call(kPull, Bytes(request.SerializeAsString()), Before(end)));
    v1::PullWeightsResponse response;
    Bytes payload;
    TANDEM_RETURN_IF_ERROR(rpc::DecodeBulk(wire, &response, &payload));
    const ModelInfo info = FromProto(response.info());
    TANDEM_RETURN_IF_ERROR(Annotate(CheckDigestKind(info.digest_kind), absl::StrCat("model '", model, "'")));
    TANDEM_ASSIGN_OR_RETURN(const size_t count, CheckTensors(info.tensors));
    if (request.limit() == 0 || count <= kPieceBytes / sizeof(float) || payload.size() != kPieceBytes) {
      TANDEM_ASSIGN_OR_RETURN(pulled, FromProto(response.info(), payload));
      break;
    }
    request.set_limit(0);
    if (count > kMaxBytesInPieces / sizeof(float)) continue;
    absl::StatusOr<std::shared_ptr<Model>> all = PullRest(info, payload, end);
    // Newer versions have removed this one: the next one comes as a whole, which nothing can interrupt.
    if (absl::IsNotFound(all.status())) continue;
    TANDEM_RETURN_IF_ERROR(all.status());
    pulled = *std::move(all);
  }
  if (!pulled->HasItsDigest()) {
    return absl::DataLossError(absl::StrCat("model '", model, "': the digest of ",
                                            ToString(pulled->info.version), " from ", channel_->target(),
                                            " is not that of its values: it was damaged on its way"));
  }
  return std::shared_ptr<const Model>(std::move(pulled));
}

absl::StatusOr<std::shared_ptr<Model>> RemoteWeights::PullRest(const ModelInfo& first, const Bytes& begin,
                                                               absl::Time end) {
  auto model = std::make_shared<Model>();
  model->info = first;
  TANDEM_ASSIGN_OR_RETURN(model->count, CheckTensors(first.tensors));
  const std::shared_ptr<float> values = AllocateValues(model->count);
  if (values == nullptr) return NoMemoryFor(model->count);
  model->data = values;
  const size_t bytes = BytesOf(*model);
  PiecesDigest digest(first.tensors, bytes);
  const auto copy = [&](size_t offset, const Bytes& payload) {
    const std::vector<absl::string_view> parts = PartsOf(payload);
    PartsReader reader(parts);
    digest.Copy(reinterpret_cast<char*>(values.get()), offset, payload.size(), &reader);
  };
  v1::PullWeightsRequest request;
  request.set_model(first.model);
  request.set_epoch(first.version.epoch);
  request.set_version(first.version.number);
  CallWindow window(channel_.get(), kPiecesUnderWay, end);
  for (size_t offset = begin.size(), size = 0; offset < bytes; offset += size) {
    size = std::min(kPieceBytes, bytes - offset);
    request.set_offset(offset);
    request.set_limit(size);
    TANDEM_RETURN_IF_ERROR(window.Start(
        kPull, Bytes(request.SerializeAsString()), [&copy, offset, size](const Bytes& wire) -> absl::Status {
          v1::PullWeightsResponse response;
          Bytes payload;
          TANDEM_RETURN_IF_ERROR(rpc::DecodeBulk(wire, &response, &payload));
          if (payload.size() != size) {
            return absl::InternalError(absl::StrCat("the server's piece of a version has ", payload.size(),
                                                    " bytes; ", size, " were requested"));
          }
          copy(offset, payload);
          return absl::OkStatus();
        }));
    if (offset == begin.size()) copy(0, begin);  // while the next pieces are on their way
  }
  TANDEM_RETURN_IF_ERROR(window.Finish());
  if (first.digest_kind == DigestKind::kPieces) model->computed_digest = digest.Digest();
  return model;
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
