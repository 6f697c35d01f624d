// SPDX-License-Identifier: Apache-2.0
#include "ps/client/push_operation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "rpc/earlier_attempts.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::ps {
namespace {

constexpr char kPush[] = "/tandem.v1.ParameterServer/Push";

// A server that responds with one of the other errors has checked the push and applied no part of it.
bool LeavesOpenWhetherApplied(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kUnknown:
      return true;
    default:
      return false;
  }
}

}  // namespace

PushOperation::PushOperation(absl::Span<const std::unique_ptr<rpc::Channel>> channels,
                             std::vector<std::shared_ptr<std::atomic<bool>>> get_positions,
                             const Options& options, PushWindow::Slot slot,
                             std::vector<PushedSegments> segments, PushDone done)
    : channels_(channels),
      get_positions_(std::move(get_positions)),
      options_(options),
      slot_(std::move(slot)),
      segments_(std::move(segments)),
      deadline_(MonotonicNow() + options.timeout),
      server0_first_(channels.size() > 1 && GetsPosition()),
      outstanding_(static_cast<uint32_t>(channels.size())),
      requests_(channels.size()),
      done_(std::move(done)),
      outcomes_(channels.size(), PushOutcome::kNotSent),
      earlier_unknown_(channels.size()) {}

void PushOperation::Add(uint32_t server, EncodedPush request) {
  requests_[server] = std::move(request);
  if (!server0_first_) Send(server);
}

void PushOperation::Start() {
  if (server0_first_) Send(0);
}

void PushOperation::Send(uint32_t server) {
  {
    absl::MutexLock lock(&mutex_);
    earlier_unknown_[server] = outcomes_[server] == PushOutcome::kUnknown;
    outcomes_[server] = PushOutcome::kUnknown;
  }
  EncodedPush& request = requests_[server];
  Bytes wire =
      rpc::EncodeBulk(request.header, options_.retryable ? request.payload : std::move(request.payload));
  // The sequence number makes it safe to send a push again.
  channels_[server]->CallAsync(kPush, std::move(wire),
                               {.timeout = deadline_ - MonotonicNow(), .idempotent = true},
                               [self = shared_from_this(), server](absl::StatusOr<Bytes> answer) {
                                 self->OnResponse(server, std::move(answer));
                               });
}

std::vector<uint32_t> PushOperation::OthersToSend() const {
  absl::MutexLock lock(&mutex_);
  return OthersToSendLocked();
}

std::vector<uint32_t> PushOperation::OthersToSendLocked() const {
  std::vector<uint32_t> servers;
  for (uint32_t s = 1; s < outcomes_.size(); ++s) {
    if (outcomes_[s] != PushOutcome::kApplied) servers.push_back(s);
  }
  return servers;
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

bool PushOperation::GetsPosition() const {
  return std::any_of(get_positions_.begin(), get_positions_.end(),
                     [](const auto& gets) { return gets->load(std::memory_order_relaxed); });
}

absl::Status PushOperation::TakePlaces(const v1::PushResponse& response) {
  for (size_t s = 0; s < get_positions_.size(); ++s) {
    const int slice = static_cast<int>(s);
    const bool given = slice < response.places_size() && response.places(slice).update() > 0;
    // The position of a duplicate may be forgotten.
    if (given || !response.duplicate()) get_positions_[s]->store(given, std::memory_order_relaxed);
  }
  if (response.places_size() == 0 || !server0_first_) return absl::OkStatus();
  for (const uint32_t s : OthersToSend()) {
    v1::PushRequest& header = requests_[s].header;
    if (header.slices_size() != response.places_size()) {
      return absl::DataLossError(absl::StrCat("the answer has places for ", response.places_size(),
                                              " slices, the push has ", header.slices_size()));
    }
    for (int i = 0; i < response.places_size(); ++i) {
      if (response.places(i).update() > 0) *header.mutable_slices(i)->mutable_place() = response.places(i);
    }
  }
  return absl::OkStatus();
}

void PushOperation::OnResponse(uint32_t server, absl::StatusOr<Bytes> answer) {
  absl::Status status = answer.status();
  if (status.ok()) status = Accept(server, *answer);
  {
    absl::MutexLock lock(&mutex_);
    if (answer.ok()) {
      outcomes_[server] = PushOutcome::kApplied;
    } else if (!LeavesOpenWhetherApplied(status)) {
      if (earlier_unknown_[server] || rpc::HadEarlierAttempts(answer.status())) {
        // A server that has forgotten the sequences of an earlier push epoch cannot tell, for instance.
        status = absl::Status(
            status.code(),
            absl::StrCat(
                status.message(),
                "; it is not known whether an earlier attempt of this push was applied: its answer was "
                "lost, and this refusal concerns the repetition only"));
      } else {
        outcomes_[server] = PushOutcome::kRefused;
      }
    }
    if (!status.ok() && first_error_.ok()) {
      first_error_ =
          Annotate(status, absl::StrCat("push to server ", server, " (", channels_[server]->target(), ")"));
    }
  }
  if (status.ok()) requests_[server].payload = Bytes();  // of no more use
  uint32_t ended = 1;
  if (server == 0 && server0_first_) {
    for (const uint32_t other : OthersToSend()) {
      if (status.ok()) {
        Send(other);
      } else {
        ++ended;
      }
    }
  }
  End(ended);
}

void PushOperation::End(uint32_t ended) {
  if (outstanding_.fetch_sub(ended, std::memory_order_acq_rel) != ended) return;
  absl::Status status;
  PushDone done;
  {
    absl::MutexLock lock(&mutex_);
    under_way_ = false;  // from here on RetryAsync may set the next done_
    done = std::move(done_);
    status = first_error_;
    // The error of a single server that has answered says everything.
    if (!status.ok() && (outcomes_.size() > 1 || outcomes_[0] == PushOutcome::kUnknown)) {
      status = absl::Status(status.code(), absl::StrCat(status.message(), "; the push of step ",
                                                        options_.step, ": ", Describe(outcomes_)));
    }
  }
  // Before `done`, which may start the next push. Without a handle nothing is sent any more.
  if (status.ok() || !options_.retryable) slot_.Release();
  std::move(done)(std::move(status));
}

std::vector<PushOutcome> PushOperation::outcomes() const {
  absl::MutexLock lock(&mutex_);
  return outcomes_;
}

void PushOperation::RetryAsync(PushDone done) {
  std::vector<uint32_t> others;
  bool server0 = false, busy = false;
  {
    absl::MutexLock lock(&mutex_);
    busy = under_way_;
    // An attempt under way changes the outcomes, and drops the payloads that servers have acknowledged.
    if (!busy) {
      others = OthersToSendLocked();
      server0 = outcomes_[0] != PushOutcome::kApplied;
      under_way_ = server0 || !others.empty();
      if (under_way_) {
        done_ = std::move(done);
        first_error_ = absl::OkStatus();
      }
    }
  }
  if (busy) {
    std::move(done)(absl::FailedPreconditionError(absl::StrCat(
        "the push of step ", options_.step, " is still under way: retry it after it has failed")));
    return;
  }
  if (others.empty() && !server0) {
    std::move(done)(absl::OkStatus());
    return;
  }
  deadline_ = MonotonicNow() + options_.timeout;
  // Server 0 has told the positions to an earlier attempt if it has acknowledged the push.
  const bool server0_first = server0 && channels_.size() > 1 && (server0_first_ || GetsPosition());
  server0_first_ = server0_first;
  outstanding_.store(static_cast<uint32_t>(others.size()) + (server0 ? 1 : 0), std::memory_order_relaxed);
  const std::shared_ptr<PushOperation> self = shared_from_this();  // the last response may end the attempt
  if (server0) Send(0);
  // The attempt may have ended within Send, and server0_first_ may belong to the next one.
  if (server0_first) return;
  for (const uint32_t server : others) Send(server);
}

}  // namespace tandem::ps
