// SPDX-License-Identifier: Apache-2.0
#include "ps/client/push_operation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::ps {
namespace {
constexpr char kPush[] = "/tandem.v1.ParameterServer/Push";
}  // namespace

PushOperation::PushOperation(absl::Span<const std::unique_ptr<rpc::Channel>> channels,
                             std::atomic<bool>* server0_sends_places, absl::Duration timeout,
                             std::vector<PushedSegments> segments, PushDone done)
    : channels_(channels),
      server0_sends_places_(server0_sends_places),
      segments_(std::move(segments)),
      done_(std::move(done)),
      deadline_(MonotonicNow() + timeout),
      server0_first_(channels.size() > 1 && server0_sends_places->load(std::memory_order_relaxed)),
      outstanding_(static_cast<uint32_t>(channels.size())) {}

void PushOperation::Add(uint32_t server, EncodedPush request) {
  if (!server0_first_) {
    Send(server, std::move(request));
  } else if (server == 0) {
    first_ = std::move(request);
  } else {
    waiting_.push_back(std::move(request));
  }
}

void PushOperation::Start() {
  if (server0_first_) Send(0, std::move(first_));
}

void PushOperation::Send(uint32_t server, EncodedPush request) {
  // The sequence number makes it safe to send a push again.
  channels_[server]->CallAsync(kPush, rpc::EncodeBulk(request.header, std::move(request.payload)),
                               {.timeout = deadline_ - MonotonicNow(), .idempotent = true},
                               [self = shared_from_this(), server](absl::StatusOr<Bytes> answer) {
                                 self->OnResponse(server, std::move(answer));
                               });
}

absl::Status PushOperation::Accept(uint32_t server, const Bytes& answer) {
  if (server > 0 && segments_.empty()) return absl::OkStatus();
  v1::PushResponse response;
  if (!response.ParseFromString(answer.Flatten())) return absl::DataLossError("the answer does not parse");
  const size_t slices = std::min<size_t>(segments_.size(), response.row_staleness_size());
  for (size_t s = 0; s < slices; ++s) {
    const PushedSegments& pushed = segments_[s];
    if (pushed.count == 0) continue;
    pushed.totals->Add(pushed.first, pushed.count, response.row_staleness(static_cast<int>(s)));
  }
  return server == 0 ? TakePlaces(response) : absl::OkStatus();
}

absl::Status PushOperation::TakePlaces(const v1::PushResponse& response) {
  server0_sends_places_->store(response.places_size() > 0, std::memory_order_relaxed);
  if (response.places_size() == 0) return absl::OkStatus();
  for (EncodedPush& request : waiting_) {
    if (request.header.slices_size() != response.places_size()) {
      return absl::DataLossError(absl::StrCat("the answer has places for ", response.places_size(),
                                              " slices, the push has ", request.header.slices_size()));
    }
    for (int i = 0; i < response.places_size(); ++i) {
      if (response.places(i).update() > 0) {
        *request.header.mutable_slices(i)->mutable_place() = response.places(i);
      }
    }
  }
  return absl::OkStatus();
}

void PushOperation::OnResponse(uint32_t server, absl::StatusOr<Bytes> answer) {
  absl::Status status = answer.status();
  if (status.ok()) status = Accept(server, *answer);
  uint32_t ended = 1;
  if (server == 0 && !waiting_.empty()) {
    std::vector<EncodedPush> next = std::exchange(waiting_, {});
    if (!status.ok()) ended += static_cast<uint32_t>(next.size());
    for (uint32_t i = 0; status.ok() && i < next.size(); ++i) Send(i + 1, std::move(next[i]));
  }
  if (!status.ok()) {
    absl::MutexLock lock(&mutex_);
    if (first_error_.ok()) {
      first_error_ =
          Annotate(status, absl::StrCat("push to server ", server, " (", channels_[server]->target(), ")"));
    }
  }
  if (outstanding_.fetch_sub(ended, std::memory_order_acq_rel) != ended) return;
  {
    absl::MutexLock lock(&mutex_);
    status = first_error_;
  }
  std::move(done_)(std::move(status));
}

}  // namespace tandem::ps
