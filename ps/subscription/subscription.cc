// SPDX-License-Identifier: Apache-2.0
#include "ps/subscription/subscription.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "ps/wire/value_codec.h"

namespace tandem::ps {
namespace {

// How long a server may keep a call while nothing changes.
constexpr absl::Duration kLongPoll = absl::Seconds(10);

absl::Status CheckChange(const v1::ChangedRows& change) {
  if (v1::ValueFormat_IsValid(change.values()) && change.dim() > 0 &&
      change.rows().size() == change.ids_size() * RowBytes(change.values(), change.dim())) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("table '", change.table(), "', bucket ", change.bucket(), ": ",
                                          change.ids_size(), " rows of ", change.dim(), " numbers in ",
                                          change.rows().size(), " bytes"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Subscription>> Subscription::Open(
    std::vector<std::unique_ptr<rpc::Channel>> channels, const SubscriptionOptions& options) {
  if (channels.empty()) return absl::InvalidArgumentError("a subscription needs at least one server");
  v1::SubscriptionPosition position;
  if (!options.position.empty() && (!position.ParseFromString(options.position) ||
                                    position.servers_size() != static_cast<int>(channels.size()))) {
    return absl::InvalidArgumentError(absl::StrCat("the position of ", options.position.size(),
                                                   " bytes is not one of a subscription to ", channels.size(),
                                                   " servers; begin without a position to get everything"));
  }
  auto subscription = std::unique_ptr<Subscription>(new Subscription(options));
  absl::MutexLock lock(&subscription->mutex_);
  subscription->servers_.resize(channels.size());
  for (size_t s = 0; s < channels.size(); ++s) {
    Server& server = subscription->servers_[s];
    server.channel = std::move(channels[s]);
    server.next_call = absl::InfinitePast();
    if (!options.position.empty()) server.position = position.servers(static_cast<int>(s));
  }
  return subscription;
}

Subscription::~Subscription() {
  Cancel();
  std::vector<Server> servers;
  {
    absl::MutexLock lock(&mutex_);
    const auto is_idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return std::none_of(servers_.begin(), servers_.end(), [](const Server& one) { return one.under_way; });
    };
    mutex_.Await(absl::Condition(&is_idle));  // cancelled calls end at once
    servers = std::move(servers_);
  }
}

void Subscription::Cancel() {
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
  }
  cancel_.request_stop();
}

void Subscription::Call(size_t server) {
  Server& to = servers_[server];
  v1::GetChangesRequest request;
  *request.mutable_tables() = {options_.tables.begin(), options_.tables.end()};
  request.set_position(to.position);
  request.set_max_bytes(options_.max_bytes);
  // The first question asks for what there is, also if that is nothing.
  if (to.complete) request.set_wait_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(kLongPoll)));
  to.under_way = true;
  to.next_call = MonotonicNow() + options_.interval;
  rpc::Channel* const channel = to.channel.get();
  Bytes bytes(request.SerializeAsString());
  mutex_.Unlock();  // `done` may run in the call
  channel->CallAsync(
      "/tandem.v1.Subscriptions/GetChanges", std::move(bytes),
      {.timeout = kLongPoll + options_.timeout, .idempotent = true, .cancel = cancel_.get_token()},
      [this, server](absl::StatusOr<Bytes> answer) {
        absl::MutexLock lock(&mutex_);
        servers_[server].answer = std::move(answer);
        servers_[server].answered = true;
        servers_[server].under_way = false;
      });
  mutex_.Lock();
}

absl::StatusOr<ChangeBatch> Subscription::Next(absl::Duration wait) {
  const absl::Time deadline = MonotonicNow() + wait;
  while (true) {
    size_t taken = 0;
    absl::StatusOr<Bytes> answer;
    {
      absl::MutexLock lock(&mutex_);
      absl::Time wake = deadline;
      const bool all_complete =
          std::all_of(servers_.begin(), servers_.end(), [](const Server& one) { return one.complete; });
      for (size_t s = 0; s < servers_.size(); ++s) {
        if (servers_[s].under_way || servers_[s].answered || cancelled_) continue;
        // The next passes begin together, so that there are moments at which all are complete.
        if (servers_[s].complete && !all_complete) continue;
        // Within a pass there is no pause.
        if (!servers_[s].complete || MonotonicNow() >= servers_[s].next_call) {
          Call(s);
        } else {
          wake = std::min(wake, servers_[s].next_call);
        }
      }
      const auto has_answer = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return cancelled_ ||
               std::any_of(servers_.begin(), servers_.end(), [](const Server& one) { return one.answered; });
      };
      if (!AwaitUntil(&mutex_, absl::Condition(&has_answer), wake)) {
        if (MonotonicNow() < deadline) continue;
        return absl::DeadlineExceededError(
            absl::StrCat("nothing has changed for ", absl::FormatDuration(wait)));
      }
      if (cancelled_) return absl::CancelledError("the subscription was cancelled");
      taken = next_;
      while (!servers_[taken].answered) taken = (taken + 1) % servers_.size();
      next_ = (taken + 1) % servers_.size();
      answer = std::move(servers_[taken].answer);
      servers_[taken].answered = false;
    }
    const bool was_complete = caught_up(taken);
    TANDEM_ASSIGN_OR_RETURN(ChangeBatch batch, Take(taken, answer));
    // Another answer without changes ends a long poll, or a long look at rows that have not changed.
    if (!batch.changes.empty() || (batch.complete && !was_complete)) return batch;
  }
}

absl::StatusOr<ChangeBatch> Subscription::Take(size_t server, const absl::StatusOr<Bytes>& answer) {
  TANDEM_RETURN_IF_ERROR(Annotate(answer.status(), absl::StrCat("server ", server)));
  v1::GetChangesResponse response;
  if (!response.ParseFromString(answer->Flatten())) {
    return absl::DataLossError(absl::StrCat("server ", server, ": the answer to GetChanges does not parse"));
  }
  ChangeBatch batch{.server = static_cast<uint32_t>(server),
                    .complete = response.complete(),
                    .tables = {response.tables().begin(), response.tables().end()},
                    .num_buckets = response.num_buckets()};
  for (v1::ChangedRows& change : *response.mutable_changes()) {
    TANDEM_RETURN_IF_ERROR(Annotate(CheckChange(change), absl::StrCat("server ", server)));
    RowChanges& to = batch.changes.emplace_back(RowChanges{
        .table = change.table(), .bucket = change.bucket(), .whole = change.whole(), .dim = change.dim()});
    to.removed.assign(change.removed().begin(), change.removed().end());
    to.ids.assign(change.ids().begin(), change.ids().end());
    to.rows.resize(to.ids.size() * to.dim);
    DecodeRows(change.values(), change.rows().data(), nullptr, to.ids.size(), to.dim, to.rows.data());
  }
  absl::MutexLock lock(&mutex_);
  servers_[server].position = std::move(*response.mutable_position());
  servers_[server].complete = response.complete();
  return batch;
}

std::string Subscription::position() const {
  v1::SubscriptionPosition position;
  absl::MutexLock lock(&mutex_);
  for (const Server& server : servers_) position.add_servers(server.position);
  return position.SerializeAsString();
}

bool Subscription::caught_up(size_t server) const {
  absl::MutexLock lock(&mutex_);
  return servers_[server].complete;
}

bool Subscription::caught_up() const {
  absl::MutexLock lock(&mutex_);
  return std::all_of(servers_.begin(), servers_.end(), [](const Server& one) { return one.complete; });
}

}  // namespace tandem::ps
