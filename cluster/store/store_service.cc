// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/store_service.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "cluster/store/key_owners.h"
#include "cluster/store/limits.h"

namespace tandem::cluster {
namespace {

// The calls that may wait for the item of one pop: the first one and its repeats, whose connections broke.
constexpr size_t kMaxRepeats = 64;

// Returns when a call that may wait `timeout_ms` must end.
absl::Time EndOf(const rpc::ServerCall& call, int64_t timeout_ms) {
  constexpr absl::Duration kYear = absl::Hours(24 * 365);
  const absl::Duration timeout =
      absl::Milliseconds(std::clamp<int64_t>(timeout_ms, 0, absl::ToInt64Milliseconds(kYear)));
  return std::min(MonotonicNow() + timeout, call.deadline());
}

// Not Unavailable: a client would repeat the call.
absl::Status Stopping() { return absl::AbortedError("the job's store is shutting down"); }

}  // namespace

StoreService::StoreService(MemoryStore* store, Membership* membership, StoreDisk* disk)
    : store_(store), membership_(membership), disk_(disk), timer_([this] { RunTimer(); }) {}

StoreService::~StoreService() {
  StopWaits();
  timer_.join();
}

void StoreService::StopWaits() {
  std::vector<DeferredCall> orphans;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    for (auto& [token, deferred] : deferred_) orphans.push_back(std::move(deferred));
    deferred_.clear();
    deferred_bytes_ = 0;
    deadlines_.clear();
  }
  for (DeferredCall& deferred : orphans) {
    if (deferred.wait != 0) store_->CancelWait(deferred.wait);
    deferred.expire(/*stopped=*/true);
  }
}

bool StoreService::Take(uint64_t token, DeferredCall* deferred) {
  absl::MutexLock lock(&mutex_);
  auto it = deferred_.find(token);
  if (it == deferred_.end()) return false;
  *deferred = std::move(it->second);
  deferred_.erase(it);
  deferred_bytes_ -= deferred->bytes;
  auto [begin, end] = deadlines_.equal_range(deferred->deadline);
  for (auto entry = begin; entry != end; ++entry) {
    if (entry->second == token) {
      deadlines_.erase(entry);
      break;
    }
  }
  return true;
}

absl::StatusOr<uint64_t> StoreService::DeferUntil(absl::Time deadline, size_t bytes,
                                                  std::function<void(bool stopped)> expire) {
  absl::MutexLock lock(&mutex_);
  if (stopped_) return Stopping();
  TANDEM_RETURN_IF_ERROR(ValidateStoreWaits(deferred_.size() + 1, deferred_bytes_ + bytes, store_->limits()));
  const uint64_t token = next_token_++;
  timer_changed_ = timer_changed_ || deadlines_.empty() || deadline < deadlines_.begin()->first;
  deadlines_.emplace(deadline, token);
  deferred_.emplace(token, DeferredCall{deadline, bytes, 0, std::move(expire)});
  deferred_bytes_ += bytes;
  return token;
}

void StoreService::Defer(const rpc::ServerCall& call, std::vector<std::string> keys, size_t wanted,
                         int64_t timeout_ms, std::function<void(std::vector<std::string>)> ready,
                         std::function<void(std::vector<std::string>)> expire,
                         std::function<void(absl::Status)> refuse) {
  size_t bytes = 0;
  for (const std::string& key : keys) bytes += key.size();
  const absl::StatusOr<uint64_t> token =
      DeferUntil(EndOf(call, timeout_ms), bytes, [this, keys, wanted, ready, expire, refuse](bool stopped) {
        std::vector<std::string> missing;
        auto values = store_->TryValues(keys, wanted, &missing);
        if (values) {
          ready(*std::move(values));  // the last key was set at the last moment
        } else if (stopped) {
          refuse(Stopping());
        } else {
          expire(std::move(missing));
        }
      });
  if (!token.ok()) {
    std::vector<std::string> missing;
    auto values =
        absl::IsResourceExhausted(token.status()) ? store_->TryValues(keys, wanted, &missing) : absl::nullopt;
    if (values) {
      ready(*std::move(values));  // it need not wait
    } else {
      refuse(token.status());
    }
    return;
  }
  const uint64_t wait = store_->StartWait(std::move(keys), wanted,
                                          [this, token = *token, ready](std::vector<std::string> values) {
                                            DeferredCall deferred;
                                            if (Take(token, &deferred)) ready(std::move(values));
                                          });
  if (wait == 0) return;
  {
    absl::MutexLock lock(&mutex_);
    auto it = deferred_.find(*token);
    if (it != deferred_.end()) {
      it->second.wait = wait;
      return;
    }
  }
  store_->CancelWait(wait);  // the time was up before the wait had its number
}

void StoreService::Pop(std::shared_ptr<rpc::ServerCall> call, tandem::v1::StorePopRequest request,
                       PopReply reply) {
  if (absl::Status valid = ValidateStoreKey(request.queue()); !valid.ok()) return reply(valid);
  if (absl::Status owns = CheckKeyOwner(request.queue(), call->caller()); !owns.ok()) return reply(owns);
  const std::string& request_id = request.request_id();
  uint64_t id = 0;
  absl::Status refused;  // this call
  absl::Status asked;    // the pop with all its calls: the item cannot be taken
  DeferredPop failed;
  DeferredPop dropped;  // destroyed without the lock
  absl::optional<std::string> item;
  {
    absl::MutexLock lock(&pop_mutex_);
    absl::StatusOr<absl::optional<std::string>> known = store_->AnswerTo(request_id);
    if (!known.ok()) {
      refused = known.status();
    } else if (known->has_value()) {
      item = *std::move(known);
      pops_[id = next_pop_++].replies.push_back(reply);
    } else if (auto same = pop_by_request_.find(request_id);
               !request_id.empty() && same != pop_by_request_.end()) {
      id = same->second;
      DeferredPop& pop = pops_.find(id)->second;
      if (pop.calls.size() >= kMaxRepeats) DropCancelled(&pop, &dropped);
      if (pop.calls.size() >= kMaxRepeats) {
        refused = absl::ResourceExhaustedError(
            absl::StrCat("a pop of queue ", QuoteKey(pop.queue), " has ", kMaxRepeats,
                         " calls that wait for its item, which is the limit"));
      } else {
        pop.calls.push_back(std::move(call));
        pop.replies.push_back(reply);
        // Items were not chosen for this pop while its first call was known to be gone, so it asks again. If
        // an item has been chosen for it meanwhile, that item goes to all its replies.
        if (store_->CancelPop(pop.wait)) asked = AskForItem(id, &item);
      }
    } else {
      id = next_pop_++;
      const absl::StatusOr<uint64_t> token =
          DeferUntil(EndOf(*call, request.timeout_ms()), request.queue().size(),
                     [this, id](bool stopped) { ExpirePop(id, stopped); });
      refused = token.status();
      if (absl::IsResourceExhausted(refused)) {
        known = store_->TryPop(request.queue(), request_id);
        if (known.ok()) item = *std::move(known);
      }
      if (item) {  // it need not wait
        refused = absl::OkStatus();
        DeferredPop& pop = pops_[id];
        pop.request_id = request_id;
        pop.replies.push_back(reply);
        if (!request_id.empty()) pop_by_request_[request_id] = id;  // a repeat gets the same item
      } else if (refused.ok()) {
        DeferredPop& pop = pops_[id];
        pop.queue = request.queue();
        pop.request_id = request_id;
        pop.token = *token;
        pop.calls.push_back(std::move(call));
        pop.replies.push_back(reply);
        if (!request_id.empty()) pop_by_request_[request_id] = id;
        asked = AskForItem(id, &item);
      }
    }
    if (!asked.ok()) {
      failed = std::move(pops_.find(id)->second);
      pops_.erase(id);
      if (!failed.request_id.empty()) pop_by_request_.erase(failed.request_id);
    }
  }
  if (!asked.ok()) {
    DeferredCall deferred;
    (void)Take(failed.token, &deferred);
    for (const PopReply& waiting : failed.replies) waiting(asked);
  } else if (!refused.ok()) {
    reply(refused);
  } else if (item) {
    FinishPop(id, *std::move(item));
  }
}

void StoreService::DropCancelled(DeferredPop* pop, DeferredPop* dropped) {
  for (size_t i = pop->calls.size(); i-- > 0;) {
    if (!pop->calls[i]->IsCancelled()) continue;
    dropped->calls.push_back(std::move(pop->calls[i]));
    dropped->replies.push_back(std::move(pop->replies[i]));
    pop->calls.erase(pop->calls.begin() + static_cast<ptrdiff_t>(i));
    pop->replies.erase(pop->replies.begin() + static_cast<ptrdiff_t>(i));
  }
}

absl::Status StoreService::AskForItem(uint64_t id, absl::optional<std::string>* item) {
  DeferredPop& pop = pops_.find(id)->second;
  auto present = [calls = pop.calls] {
    return std::any_of(calls.begin(), calls.end(), [](const auto& call) { return !call->IsCancelled(); });
  };
  TANDEM_ASSIGN_OR_RETURN(
      *item, store_->StartPop(pop.queue,
                              {.present = std::move(present),
                               .ready = [this, id](std::string item) { FinishPop(id, std::move(item)); },
                               .request_id = pop.request_id},
                              &pop.wait));
  return absl::OkStatus();
}

void StoreService::FinishPop(uint64_t id, std::string item) {
  DeferredPop pop;
  {
    absl::MutexLock lock(&pop_mutex_);
    auto it = pops_.find(id);
    pop = std::move(it->second);
    pops_.erase(it);
    if (!pop.request_id.empty()) pop_by_request_.erase(pop.request_id);
  }
  DeferredCall deferred;
  (void)Take(pop.token, &deferred);
  for (const PopReply& reply : pop.replies) {
    tandem::v1::StorePopResponse response;
    response.set_value(item);
    reply(std::move(response));
  }
}

void StoreService::ExpirePop(uint64_t id, bool stopped) {
  DeferredPop pop;
  {
    absl::MutexLock lock(&pop_mutex_);
    auto it = pops_.find(id);
    // The pop has its response, or an item has been chosen for it and FinishPop is about to run.
    if (it == pops_.end() || !store_->CancelPop(it->second.wait)) return;
    pop = std::move(it->second);
    pops_.erase(it);
    pop_by_request_.erase(pop.request_id);
  }
  for (const PopReply& reply : pop.replies) {
    if (stopped) {
      reply(Stopping());
      continue;
    }
    tandem::v1::StorePopResponse response;
    response.set_empty(true);
    reply(std::move(response));
  }
}

void StoreService::RunTimer() {
  absl::MutexLock lock(&mutex_);
  while (!stopped_) {
    const absl::Time next = deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
    auto woken = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || timer_changed_; };
    AwaitUntil(&mutex_, absl::Condition(&woken), next);
    timer_changed_ = false;
    std::vector<uint64_t> due;
    const absl::Time now = MonotonicNow();
    for (const auto& [deadline, token] : deadlines_) {
      if (deadline > now) break;
      due.push_back(token);
    }
    mutex_.Unlock();
    for (uint64_t token : due) {
      DeferredCall deferred;
      if (!Take(token, &deferred)) continue;
      if (deferred.wait != 0) store_->CancelWait(deferred.wait);
      deferred.expire(/*stopped=*/false);
    }
    mutex_.Lock();
  }
}

}  // namespace tandem::cluster
