// SPDX-License-Identifier: Apache-2.0
#include "weights/server/weight_server.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/copy_bytes.h"
#include "base/status.h"
#include "rpc/deferred_calls.h"
#include "rpc/wire/bulk_codec.h"
#include "weights/wire/messages.h"

namespace tandem::weights {
namespace {

// Requests of calls that wait stay in memory; a name and two numbers need less.
constexpr size_t kMaxHeadRequestBytes = 4096;

}  // namespace

WeightServer::WeightServer(const WeightServerOptions& options)
    : options_(options),
      started_(options.store.clock->Now()),
      store_(options.store),
      uploads_(options.store.max_bytes, options.store.clock),
      timers_(std::make_unique<rpc::DeferredCalls>(options.store.clock)) {}

WeightServer::~WeightServer() { Stop(); }

rpc::Service WeightServer::service() {
  rpc::Service service;
  service.name = "tandem.v1.Weights";
  service.methods = {
      {"StartEpoch", rpc::Right::kTrain,
       rpc::ProtoHandler<v1::StartWeightsEpochRequest, v1::StartWeightsEpochResponse>(
           [this](const auto& request) -> absl::StatusOr<v1::StartWeightsEpochResponse> {
             TANDEM_ASSIGN_OR_RETURN(
                 const EpochGrant grant,
                 store_.StartEpoch(request.model(), request.publisher(), request.token()));
             v1::StartWeightsEpochResponse response;
             response.set_epoch(grant.epoch);
             response.set_version(grant.version);
             return response;
           })},
      {"Publish", rpc::Right::kTrain, [this](std::shared_ptr<rpc::ServerCall> call) { Publish(call); }},
      {"BeginUpload", rpc::Right::kTrain,
       rpc::ProtoHandler<v1::BeginWeightsUploadRequest, v1::BeginWeightsUploadResponse>(
           [this](const auto& request) -> absl::StatusOr<v1::BeginWeightsUploadResponse> {
             return BeginUpload(request);
           })},
      {"PutPiece", rpc::Right::kTrain, [this](std::shared_ptr<rpc::ServerCall> call) { PutPiece(call); }},
      {"Head", rpc::Right::kRead, [this](std::shared_ptr<rpc::ServerCall> call) { Head(call); },
       rpc::Reach::kNamedTables},
      {"Pull", rpc::Right::kRead, [this](std::shared_ptr<rpc::ServerCall> call) { Pull(call); },
       rpc::Reach::kNamedTables},
      {"ListModels", rpc::Right::kObserve,
       rpc::ProtoHandler<v1::ListWeightsRequest, v1::ListWeightsResponse>(
           [this](const auto&) -> absl::StatusOr<v1::ListWeightsResponse> { return State(); })},
  };
  return service;
}

void WeightServer::Publish(const std::shared_ptr<rpc::ServerCall>& call) {
  v1::PublishWeightsRequest request;
  Bytes payload;
  absl::Status status = rpc::DecodeBulk(call->request(), &request, &payload, options_.max_header_bytes);
  if (!status.ok()) return call->Finish(std::move(status));
  if (request.upload() != 0) {
    status = CommitUpload(request);
  } else {
    absl::StatusOr<std::shared_ptr<Model>> model = FromProto(request.info(), payload);
    status = model.ok() ? store_.Commit(*std::move(model)) : model.status();
  }
  if (!status.ok()) return call->Finish(Annotate(status, options_.name));
  call->Finish(rpc::internal::SerializeResponse(v1::PublishWeightsResponse()));
}

absl::StatusOr<v1::BeginWeightsUploadResponse> WeightServer::BeginUpload(
    const v1::BeginWeightsUploadRequest& request) {
  ModelInfo info = FromProto(request.info());
  v1::BeginWeightsUploadResponse response;
  const auto begin = [&]() -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const size_t count, CheckTensors(info.tensors));
    TANDEM_ASSIGN_OR_RETURN(const bool committed, store_.CheckCommit(info, count * sizeof(float)));
    response.set_committed(committed);
    return committed ? absl::OkStatus() : uploads_.Begin(request.upload(), std::move(info));
  };
  TANDEM_RETURN_IF_ERROR(Annotate(begin(), options_.name));
  AwaitIdleUploads();
  return response;
}

void WeightServer::AwaitIdleUploads() {
  const absl::Time next = uploads_.DropIdle();
  if (next == absl::InfiniteFuture() || awaits_idle_uploads_.exchange(true)) return;
  timers_->Defer(timers_->NewTicket(), next, [this](rpc::DeferredCalls::Reason reason) {
    awaits_idle_uploads_ = false;
    if (reason == rpc::DeferredCalls::Reason::kDeadline) AwaitIdleUploads();
  });
}

void WeightServer::PutPiece(const std::shared_ptr<rpc::ServerCall>& call) {
  v1::PutWeightsPieceRequest request;
  Bytes payload;
  absl::Status status = rpc::DecodeBulk(call->request(), &request, &payload, options_.max_header_bytes);
  if (status.ok())
    status = Annotate(uploads_.Put(request.upload(), request.offset(), payload), options_.name);
  if (!status.ok()) return call->Finish(std::move(status));
  call->Finish(rpc::internal::SerializeResponse(v1::PutWeightsPieceResponse()));
}

absl::Status WeightServer::CommitUpload(const v1::PublishWeightsRequest& request) {
  ModelInfo info = FromProto(request.info());
  absl::StatusOr<std::shared_ptr<Model>> model = uploads_.Take(request.upload());
  if (!model.ok()) {
    // A repeated request, if the first one has committed the version.
    const std::shared_ptr<const Model> head = store_.Head(info.model);
    const bool committed = head != nullptr && head->info.version == info.version &&
                           head->info.digest == info.digest && head->info.digest_kind == info.digest_kind;
    return committed ? absl::OkStatus() : model.status();
  }
  Model& uploaded = **model;
  if (info.model != uploaded.info.model || info.version != uploaded.info.version) {
    return absl::InvalidArgumentError(absl::StrCat("model '", info.model, "', ", ToString(info.version),
                                                   ": the upload is of model '", uploaded.info.model, "', ",
                                                   ToString(uploaded.info.version)));
  }
  info.tensors = std::move(uploaded.info.tensors);
  uploaded.info = std::move(info);
  // The digest of the upload is that of the newest kind; the store computes others.
  if (uploaded.info.digest_kind != DigestKind::kPieces) uploaded.computed_digest.reset();
  return store_.Commit(*std::move(model));
}

void WeightServer::Pull(const std::shared_ptr<rpc::ServerCall>& call) {
  v1::PullWeightsRequest request;
  absl::Status status = rpc::internal::ParseRequest(*call, &request);
  if (status.ok()) status = call->CheckTable(request.model());
  if (!status.ok()) return call->Finish(std::move(status));
  const size_t offset = request.offset();
  const absl::StatusOr<std::shared_ptr<const Model>> model =
      store_.Get(request.model(), {.epoch = request.epoch(), .number = request.version()},
                 /*count=*/offset == 0);
  if (!model.ok()) return call->Finish(Annotate(model.status(), options_.name));
  const size_t bytes = (*model)->count * sizeof(float);
  if (offset > bytes) {
    return call->Finish(
        absl::InvalidArgumentError(absl::StrCat(options_.name, ", model '", request.model(), "': offset ",
                                                offset, " is behind the ", bytes, " bytes of the version")));
  }
  v1::PullWeightsResponse response;
  *response.mutable_info() = ToProto((*model)->info, /*tensors=*/offset == 0);
  const size_t size = request.limit() == 0 ? bytes - offset : std::min(bytes - offset, request.limit());
  Bytes payload = PayloadOf(*model, offset, size);
  if (std::shared_ptr<char> memory = size > 0 && size <= kPieceBytes ? call->ResponseMemory(size) : nullptr) {
    const char* const copy = memory.get();
    CopyBytes(memory.get(), payload.slices()[0].data(), size);
    payload = Bytes(Slice(std::move(memory), copy, size));
  }
  call->Finish(rpc::EncodeBulk(response, std::move(payload)));
}

v1::WeightsHeadResponse WeightServer::HeadOf(const std::string& model, const ModelVersion& have) const {
  v1::WeightsHeadResponse response;
  absl::Time published_at;
  const std::shared_ptr<const Model> head = store_.Head(model, &published_at);
  if (head == nullptr) return response;
  *response.mutable_info() = ToProto(head->info, /*tensors=*/false);
  response.set_newer(head->info.version > have);
  response.set_seconds_since_publish(absl::ToDoubleSeconds(options_.store.clock->Now() - published_at));
  return response;
}

// Owned by the watch and by the timer; whichever comes first answers.
struct WeightServer::Waiting {
  std::shared_ptr<rpc::ServerCall> call;
  std::atomic<bool> over{false};
  std::atomic<uint64_t> watch{0};

  // Returns the call to the first who asks, then nullptr.
  std::shared_ptr<rpc::ServerCall> Take() { return over.exchange(true) ? nullptr : std::move(call); }
};

void WeightServer::Head(const std::shared_ptr<rpc::ServerCall>& call) {
  v1::WeightsHeadRequest request;
  absl::Status status = rpc::internal::ParseRequest(*call, &request);
  if (status.ok()) status = call->CheckTable(request.model());
  if (!status.ok()) return call->Finish(std::move(status));
  const std::string model = request.model();
  const ModelVersion have = {.epoch = request.have_epoch(), .number = request.have_version()};
  const auto answer = [this, model, have](rpc::ServerCall& to) {
    to.Finish(rpc::internal::SerializeResponse(HeadOf(model, have)));
  };
  if (!request.wait()) return answer(*call);
  if (call->request().size() > kMaxHeadRequestBytes) {
    return call->Finish(absl::InvalidArgumentError(
        absl::StrCat(options_.name, ": a request of Head that waits has ", call->request().size(),
                     " bytes; it must have at most ", kMaxHeadRequestBytes)));
  }

  auto waiting = std::make_shared<Waiting>();
  waiting->call = call;
  const uint64_t timer = timers_->NewTicket();
  waiting->watch = store_.Watch(
      model, have, [this, waiting, timer, answer](absl::StatusOr<std::shared_ptr<const Model>> newer) {
        const std::shared_ptr<rpc::ServerCall> taken = waiting->Take();
        if (taken == nullptr) return;
        timers_->Resume(timer);
        if (absl::IsCancelled(newer.status())) {
          // Clients repeat their calls after Unavailable, at a server that starts in place of this one.
          return taken->Finish(absl::UnavailableError(absl::StrCat(options_.name, " stops")));
        }
        if (!newer.ok()) return taken->Finish(Annotate(newer.status(), options_.name));
        answer(*taken);
      });
  if (waiting->watch == 0) return;  // it has been answered
  // The answer leaves a moment before the caller gives up.
  const absl::Time now = options_.store.clock->Now();
  const absl::Duration left = std::min(call->deadline() - now, options_.max_wait);
  absl::Time end = now + left - std::clamp(left / 10, absl::Milliseconds(5), absl::Seconds(1));
  if (request.wait_ms() > 0) {
    constexpr uint64_t kMostMilliseconds = uint64_t{1} << 40;
    end = std::min(end, now + absl::Milliseconds(std::min(request.wait_ms(), kMostMilliseconds)));
  }
  const auto give_up = [this, waiting, answer] {
    const std::shared_ptr<rpc::ServerCall> taken = waiting->Take();
    if (taken == nullptr) return;
    store_.CancelWatch(waiting->watch);
    answer(*taken);
  };
  timers_->Defer(timer, end, [give_up](rpc::DeferredCalls::Reason) { give_up(); });
  if (waiting->over) timers_->Resume(timer);  // it was answered before the timer was set
  // The hook must not own the call, which `waiting` does until it is answered.
  call->OnCancel([this, timer, weak = std::weak_ptr<Waiting>(waiting)] {
    const std::shared_ptr<Waiting> cancelled = weak.lock();
    if (cancelled == nullptr) return;
    const std::shared_ptr<rpc::ServerCall> taken = cancelled->Take();
    if (taken == nullptr) return;
    store_.CancelWatch(cancelled->watch);
    timers_->Resume(timer);
    taken->Finish(absl::CancelledError("the client is gone"));
  });
}

v1::ListWeightsResponse WeightServer::State() const {
  v1::ListWeightsResponse response;
  const absl::Time now = options_.store.clock->Now();
  response.set_uptime_s(absl::ToDoubleSeconds(now - started_));
  const Uploads::State uploads = uploads_.state();
  response.set_uploads(uploads.count);
  response.set_upload_bytes(uploads.bytes);
  response.set_dropped_uploads(uploads.dropped);
  for (const ModelState& state : store_.List()) {
    v1::WeightsModelState& message = *response.add_models();
    message.set_model(state.model);
    message.set_epoch(state.epoch);
    message.set_publisher(state.publisher);
    message.mutable_kept()->Add(state.kept.begin(), state.kept.end());
    message.set_publishes(state.publishes);
    message.set_refused(state.refused);
    message.set_pulls(state.pulls);
    message.set_waiting(state.waiting);
    if (state.head == nullptr) continue;
    *message.mutable_head() = ToProto(state.head->info);
    message.set_bytes(state.head->count * sizeof(float));
    message.set_seconds_since_publish(absl::ToDoubleSeconds(now - state.published_at));
  }
  return response;
}

void WeightServer::Stop() {
  store_.Stop();
  timers_->Stop();
}

}  // namespace tandem::weights
