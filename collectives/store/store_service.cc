#include "collectives/store/store_service.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "collectives/store/limits.h"

namespace tandem::collectives {
namespace {

constexpr size_t kMaxRequestIdBytes = 64;

// Not Unavailable: a client would ask again.
absl::Status Stopping() { return absl::AbortedError("the job's store is shutting down"); }

}  // namespace

StoreService::StoreService(MemoryStore* store, Membership* membership)
    : store_(store), membership_(membership), timer_([this] { RunTimer(); }) {}

StoreService::~StoreService() {
  StopWaits();
  timer_.join();
}

void StoreService::StopWaits() {
  std::vector<Parked> orphans;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    for (auto& [token, parked] : parked_) orphans.push_back(std::move(parked));
    parked_.clear();
    deadlines_.clear();
  }
  for (Parked& parked : orphans) {
    if (parked.wait != 0) store_->CancelWait(parked.wait);
    parked.give_up(/*stopped=*/true);
  }
}

bool StoreService::Take(uint64_t token, Parked* parked) {
  absl::MutexLock lock(&mutex_);
  auto it = parked_.find(token);
  if (it == parked_.end()) return false;
  *parked = std::move(it->second);
  parked_.erase(it);
  auto [begin, end] = deadlines_.equal_range(parked->deadline);
  for (auto entry = begin; entry != end; ++entry) {
    if (entry->second == token) {
      deadlines_.erase(entry);
      break;
    }
  }
  return true;
}

void StoreService::Park(const rpc::ServerCall& call, std::vector<std::string> keys, int64_t timeout_ms,
                        std::function<void(std::string)> ready,
                        std::function<void(std::vector<std::string>)> give_up,
                        std::function<void(absl::Status)> refuse) {
  const absl::Duration timeout = absl::Milliseconds(
      std::clamp<int64_t>(timeout_ms, 0, absl::ToInt64Milliseconds(absl::Hours(24 * 365))));
  uint64_t token = 0;
  bool refused = false;
  {
    absl::MutexLock lock(&mutex_);
    refused = stopped_;
    if (!refused) {
      token = next_token_++;
      Parked parked;
      parked.deadline = std::min(absl::Now() + timeout, call.deadline());
      parked.give_up = [this, keys, ready, give_up, refuse](bool stopped) {
        std::vector<std::string> missing = store_->Missing(keys);
        absl::optional<std::string> value = store_->TryGet(keys[0]);
        if (missing.empty() && value) {
          ready(*std::move(value));  // it came in the last moment
        } else if (stopped) {
          refuse(Stopping());
        } else {
          give_up(missing.empty() ? std::vector<std::string>{keys[0]} : std::move(missing));
        }
      };
      timer_changed_ = timer_changed_ || deadlines_.empty() || parked.deadline < deadlines_.begin()->first;
      deadlines_.emplace(parked.deadline, token);
      parked_.emplace(token, std::move(parked));
    }
  }
  if (refused) {
    refuse(Stopping());
    return;
  }
  const uint64_t wait = store_->StartWait(std::move(keys), [this, token, ready](std::string value) {
    Parked parked;
    if (Take(token, &parked)) ready(std::move(value));
  });
  if (wait == 0) return;
  {
    absl::MutexLock lock(&mutex_);
    auto it = parked_.find(token);
    if (it != parked_.end()) {
      it->second.wait = wait;
      return;
    }
  }
  store_->CancelWait(wait);  // the time was up before the wait had its number
}

void StoreService::RunTimer() {
  absl::MutexLock lock(&mutex_);
  while (!stopped_) {
    const absl::Time next = deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
    auto woken = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || timer_changed_; };
    mutex_.AwaitWithDeadline(absl::Condition(&woken), next);
    timer_changed_ = false;
    std::vector<uint64_t> due;
    const absl::Time now = absl::Now();
    for (const auto& [deadline, token] : deadlines_) {
      if (deadline > now) break;
      due.push_back(token);
    }
    mutex_.Unlock();
    for (uint64_t token : due) {
      Parked parked;
      if (!Take(token, &parked)) continue;
      if (parked.wait != 0) store_->CancelWait(parked.wait);
      parked.give_up(/*stopped=*/false);
    }
    mutex_.Lock();
  }
}

absl::StatusOr<std::string> StoreService::Once(const std::string& request_id,
                                               const std::function<absl::StatusOr<std::string>()>& body) {
  if (request_id.empty()) return body();
  if (request_id.size() > kMaxRequestIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a request_id has at most ", kMaxRequestIdBytes, " bytes, not ", request_id.size()));
  }
  // Held over `body`, so that a repeat that overtakes its original waits for it.
  absl::MutexLock lock(&once_mutex_);
  auto known = answers_.find(request_id);
  if (known != answers_.end()) return known->second;
  absl::StatusOr<std::string> answer = body();
  if (!answer.ok()) return answer;  // nothing was changed
  if (answer_order_.size() == kRememberedAnswers) {
    answers_.erase(answer_order_.front());
    answer_order_.pop_front();
  }
  answers_.emplace(request_id, *answer);
  answer_order_.push_back(request_id);
  return answer;
}

rpc::Service StoreService::MakeService() {
  using namespace tandem::v1;  // NOLINT: the fifteen messages of this one service
  rpc::Service service{"tandem.v1.Store", {}};

  auto set = [this](const StoreSetRequest& request) -> absl::StatusOr<StoreSetResponse> {
    TANDEM_RETURN_IF_ERROR(store_->Set(request.key(), request.value()));
    return StoreSetResponse();
  };
  auto get = [this](std::shared_ptr<rpc::ServerCall> call, StoreGetRequest request,
                    rpc::Reply<StoreGetResponse> reply) {
    if (absl::Status valid = ValidateStoreKey(request.key()); !valid.ok()) return reply(valid);
    Park(
        *call, {request.key()}, request.timeout_ms(),
        [reply](std::string value) {
          StoreGetResponse response;
          response.set_value(std::move(value));
          reply(std::move(response));
        },
        [reply](std::vector<std::string>) {
          StoreGetResponse response;
          response.set_missing(true);
          reply(std::move(response));
        },
        reply);
  };
  auto add = [this](const StoreAddRequest& request) -> absl::StatusOr<StoreAddResponse> {
    TANDEM_ASSIGN_OR_RETURN(
        const std::string sum, Once(request.request_id(), [&]() -> absl::StatusOr<std::string> {
          TANDEM_ASSIGN_OR_RETURN(const int64_t sum, store_->Add(request.key(), request.delta()));
          return absl::StrCat(sum);
        }));
    int64_t value = 0;
    TANDEM_CHECK(absl::SimpleAtoi(sum, &value));
    StoreAddResponse response;
    response.set_value(value);
    return response;
  };
  auto compare_set =
      [this](const StoreCompareSetRequest& request) -> absl::StatusOr<StoreCompareSetResponse> {
    TANDEM_ASSIGN_OR_RETURN(std::string value, Once(request.request_id(), [&] {
                              return store_->CompareSet(request.key(), request.expected(), request.desired());
                            }));
    StoreCompareSetResponse response;
    response.set_value(std::move(value));
    return response;
  };
  auto wait = [this](std::shared_ptr<rpc::ServerCall> call, StoreWaitRequest request,
                     rpc::Reply<StoreWaitResponse> reply) {
    std::vector<std::string> keys(request.keys().begin(), request.keys().end());
    if (absl::Status valid = ValidateStoreKeys(keys); !valid.ok()) return reply(valid);
    if (keys.empty()) return reply(StoreWaitResponse());
    Park(
        *call, std::move(keys), request.timeout_ms(), [reply](std::string) { reply(StoreWaitResponse()); },
        [reply](std::vector<std::string> missing) {
          StoreWaitResponse response;
          for (std::string& key : missing) response.add_missing(std::move(key));
          reply(std::move(response));
        },
        reply);
  };
  auto remove = [this](const StoreDeleteRequest& request) -> absl::StatusOr<StoreDeleteResponse> {
    TANDEM_ASSIGN_OR_RETURN(const std::string existed,
                            Once(request.request_id(), [&]() -> absl::StatusOr<std::string> {
                              TANDEM_ASSIGN_OR_RETURN(const bool existed, store_->Delete(request.key()));
                              return existed ? "1" : "0";
                            }));
    StoreDeleteResponse response;
    response.set_existed(existed == "1");
    return response;
  };
  auto list = [this](const StoreListRequest& request) -> absl::StatusOr<StoreListResponse> {
    TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> keys, store_->List(request.prefix()));
    StoreListResponse response;
    for (std::string& key : keys) response.add_keys(std::move(key));
    return response;
  };
  auto heartbeat = [this](const HeartbeatRequest& request) -> absl::StatusOr<HeartbeatResponse> {
    TANDEM_ASSIGN_OR_RETURN(
        JobState state,
        membership_->Heartbeat(request.member(), absl::Milliseconds(request.lease_ms()), request.leaving()));
    HeartbeatResponse response;
    response.set_ended(state.ended);
    response.set_failed(state.failed);
    response.set_reason(std::move(state.reason));
    return response;
  };
  auto end_job = [this](const EndJobRequest& request) -> absl::StatusOr<EndJobResponse> {
    membership_->End(request.member(), request.failed(), request.reason());
    return EndJobResponse();
  };

  service.methods = {
      {"Set", rpc::ProtoHandler<StoreSetRequest, StoreSetResponse>(set)},
      {"Get", rpc::AsyncProtoHandler<StoreGetRequest, StoreGetResponse>(get)},
      {"Add", rpc::ProtoHandler<StoreAddRequest, StoreAddResponse>(add)},
      {"CompareSet", rpc::ProtoHandler<StoreCompareSetRequest, StoreCompareSetResponse>(compare_set)},
      {"Wait", rpc::AsyncProtoHandler<StoreWaitRequest, StoreWaitResponse>(wait)},
      {"Delete", rpc::ProtoHandler<StoreDeleteRequest, StoreDeleteResponse>(remove)},
      {"List", rpc::ProtoHandler<StoreListRequest, StoreListResponse>(list)},
      {"Heartbeat", rpc::ProtoHandler<HeartbeatRequest, HeartbeatResponse>(heartbeat)},
      {"EndJob", rpc::ProtoHandler<EndJobRequest, EndJobResponse>(end_job)},
  };
  return service;
}

}  // namespace tandem::collectives
