// The methods of tandem.v1.Store. Deferred calls and remembered responses are in store_service.cc.

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/store/limits.h"
#include "collectives/store/store_service.h"

namespace tandem::collectives {

namespace {

void SetJobState(JobState state, tandem::v1::HeartbeatResponse* response) {
  response->set_ended(state.ended);
  response->set_failed(state.failed);
  response->set_reason(std::move(state.reason));
}

}  // namespace

rpc::Service StoreService::MakeService() {
  using namespace tandem::v1;  // NOLINT: the messages of this one service
  rpc::Service service{"tandem.v1.Store", {}};

  auto set = [this](const StoreSetRequest& request) -> absl::StatusOr<StoreSetResponse> {
    auto body = [&]() -> absl::StatusOr<std::string> {
      TANDEM_RETURN_IF_ERROR(store_->Set(request.key(), request.value()));
      return std::string();
    };
    TANDEM_RETURN_IF_ERROR(Once(request.request_id(), body));
    return StoreSetResponse();
  };
  auto get = [this](std::shared_ptr<rpc::ServerCall> call, StoreGetRequest request,
                    rpc::Reply<StoreGetResponse> reply) {
    if (absl::Status valid = ValidateStoreKey(request.key()); !valid.ok()) return reply(valid);
    Defer(
        *call, {request.key()}, 1, request.timeout_ms(),
        [reply](std::vector<std::string> values) {
          StoreGetResponse response;
          response.set_value(std::move(values[0]));
          reply(std::move(response));
        },
        [reply](std::vector<std::string>) {
          StoreGetResponse response;
          response.set_missing(true);
          reply(std::move(response));
        },
        reply);
  };
  auto multi_get = [this](std::shared_ptr<rpc::ServerCall> call, StoreMultiGetRequest request,
                          rpc::Reply<StoreMultiGetResponse> reply) {
    std::vector<std::string> keys(request.keys().begin(), request.keys().end());
    if (absl::Status valid = ValidateStoreKeys(keys); !valid.ok()) return reply(valid);
    if (keys.empty()) return reply(StoreMultiGetResponse());
    const size_t wanted = keys.size();
    Defer(
        *call, std::move(keys), wanted, request.timeout_ms(),
        [reply](std::vector<std::string> values) {
          StoreMultiGetResponse response;
          size_t bytes = 0;
          for (std::string& value : values) {
            bytes += value.size();
            response.add_values(std::move(value));
          }
          if (absl::Status valid = ValidateStoreBatch(values.size(), bytes); !valid.ok()) return reply(valid);
          reply(std::move(response));
        },
        [reply](std::vector<std::string> missing) {
          StoreMultiGetResponse response;
          for (std::string& key : missing) response.add_missing(std::move(key));
          reply(std::move(response));
        },
        reply);
  };
  auto multi_set = [this](const StoreMultiSetRequest& request) -> absl::StatusOr<StoreMultiSetResponse> {
    const std::vector<std::string> keys(request.keys().begin(), request.keys().end());
    const std::vector<std::string> values(request.values().begin(), request.values().end());
    auto body = [&]() -> absl::StatusOr<std::string> {
      TANDEM_RETURN_IF_ERROR(store_->MultiSet(keys, values));
      return std::string();
    };
    TANDEM_RETURN_IF_ERROR(Once(request.request_id(), body));
    return StoreMultiSetResponse();
  };
  auto append = [this](const StoreAppendRequest& request) -> absl::StatusOr<StoreAppendResponse> {
    auto body = [&]() -> absl::StatusOr<std::string> {
      TANDEM_ASSIGN_OR_RETURN(const int64_t length, store_->Append(request.key(), request.value()));
      return absl::StrCat(length);
    };
    TANDEM_ASSIGN_OR_RETURN(const std::string length, Once(request.request_id(), body));
    int64_t bytes = 0;
    TANDEM_CHECK(absl::SimpleAtoi(length, &bytes));
    StoreAppendResponse response;
    response.set_length(bytes);
    return response;
  };
  auto check = [this](const StoreCheckRequest& request) -> absl::StatusOr<StoreCheckResponse> {
    const std::vector<std::string> keys(request.keys().begin(), request.keys().end());
    TANDEM_ASSIGN_OR_RETURN(const bool all, store_->Check(keys));
    StoreCheckResponse response;
    response.set_all(all);
    return response;
  };
  auto num_keys = [this](const StoreNumKeysRequest&) -> absl::StatusOr<StoreNumKeysResponse> {
    TANDEM_ASSIGN_OR_RETURN(const int64_t count, store_->NumKeys());
    StoreNumKeysResponse response;
    response.set_count(count);
    return response;
  };
  auto push = [this](const StorePushRequest& request) -> absl::StatusOr<StorePushResponse> {
    auto body = [&]() -> absl::StatusOr<std::string> {
      TANDEM_RETURN_IF_ERROR(store_->Push(request.queue(), request.value()));
      return std::string();
    };
    TANDEM_RETURN_IF_ERROR(Once(request.request_id(), body));
    return StorePushResponse();
  };
  auto pop = [this](std::shared_ptr<rpc::ServerCall> call, StorePopRequest request, PopReply reply) {
    Pop(std::move(call), std::move(request), std::move(reply));
  };
  auto length = [this](const StoreLengthRequest& request) -> absl::StatusOr<StoreLengthResponse> {
    TANDEM_ASSIGN_OR_RETURN(const int64_t items, store_->Length(request.queue()));
    StoreLengthResponse response;
    response.set_length(items);
    return response;
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
    Defer(
        *call, std::move(keys), 0, request.timeout_ms(),
        [reply](std::vector<std::string>) { reply(StoreWaitResponse()); },
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
    MemberReport report{.state = request.state(),
                        .host = request.host(),
                        .pid = request.pid(),
                        .diagnostics = request.diagnostics(),
                        .step = request.step(),
                        .epoch = request.epoch(),
                        .train_epoch = request.train_epoch()};
    TANDEM_ASSIGN_OR_RETURN(JobState state,
                            membership_->Heartbeat(request.member(), absl::Milliseconds(request.lease_ms()),
                                                   request.leaving(), std::move(report)));
    HeartbeatResponse response;
    SetJobState(std::move(state), &response);
    return response;
  };
  auto members = [this](const MembersRequest&) -> absl::StatusOr<MembersResponse> {
    MembersResponse response;
    SetJobState(membership_->State(), response.mutable_job());
    for (MemberStatus& status : membership_->Statuses()) {
      MemberInfo* const member = response.add_members();
      member->set_silent_ms(absl::ToInt64Milliseconds(status.silent));
      HeartbeatRequest* const last = member->mutable_last();
      last->set_member(status.name);
      last->set_lease_ms(absl::ToInt64Milliseconds(status.lease));
      last->set_leaving(status.left);
      last->set_state(std::move(status.report.state));
      last->set_host(std::move(status.report.host));
      last->set_pid(status.report.pid);
      last->set_diagnostics(std::move(status.report.diagnostics));
      last->set_step(status.report.step);
      last->set_epoch(status.report.epoch);
      last->set_train_epoch(status.report.train_epoch);
    }
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
      {"Check", rpc::ProtoHandler<StoreCheckRequest, StoreCheckResponse>(check)},
      {"Append", rpc::ProtoHandler<StoreAppendRequest, StoreAppendResponse>(append)},
      {"MultiGet", rpc::AsyncProtoHandler<StoreMultiGetRequest, StoreMultiGetResponse>(multi_get)},
      {"MultiSet", rpc::ProtoHandler<StoreMultiSetRequest, StoreMultiSetResponse>(multi_set)},
      {"NumKeys", rpc::ProtoHandler<StoreNumKeysRequest, StoreNumKeysResponse>(num_keys)},
      {"Push", rpc::ProtoHandler<StorePushRequest, StorePushResponse>(push)},
      {"Pop", rpc::AsyncProtoHandler<StorePopRequest, StorePopResponse>(pop)},
      {"Length", rpc::ProtoHandler<StoreLengthRequest, StoreLengthResponse>(length)},
      {"Heartbeat", rpc::ProtoHandler<HeartbeatRequest, HeartbeatResponse>(heartbeat)},
      {"Members", rpc::ProtoHandler<MembersRequest, MembersResponse>(members)},
      {"EndJob", rpc::ProtoHandler<EndJobRequest, EndJobResponse>(end_job)},
  };
  return service;
}

}  // namespace tandem::collectives
