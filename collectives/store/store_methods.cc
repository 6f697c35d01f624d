// SPDX-License-Identifier: Apache-2.0
// The methods of tandem.v1.Store. Deferred calls and remembered responses are in store_service.cc.

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/store/limits.h"
#include "collectives/store/store_service.h"

namespace tandem::collectives {

using namespace tandem::v1;  // NOLINT: the messages of this one service

namespace {

void SetJobState(JobState state, tandem::v1::HeartbeatResponse* response) {
  response->set_ended(state.ended);
  response->set_failed(state.failed);
  response->set_reason(std::move(state.reason));
}

}  // namespace

rpc::Service StoreService::MakeService() {
  return {"tandem.v1.Store",
          {
              {"Set", Bind(&StoreService::Set)},
              {"Get", Bind(&StoreService::Get)},
              {"Add", Bind(&StoreService::Add)},
              {"CompareSet", Bind(&StoreService::CompareSet)},
              {"Wait", Bind(&StoreService::Wait)},
              {"Delete", Bind(&StoreService::Delete)},
              {"List", Bind(&StoreService::List)},
              {"Check", Bind(&StoreService::Check)},
              {"Append", Bind(&StoreService::Append)},
              {"MultiGet", Bind(&StoreService::MultiGet)},
              {"MultiSet", Bind(&StoreService::MultiSet)},
              {"NumKeys", Bind(&StoreService::NumKeys)},
              {"Push", Bind(&StoreService::Push)},
              {"Pop", Bind(&StoreService::Pop)},
              {"Length", Bind(&StoreService::Length)},
              {"Heartbeat", Bind(&StoreService::Heartbeat)},
              {"Members", Bind(&StoreService::Members)},
              {"EndJob", Bind(&StoreService::EndJob)},
          }};
}

template <typename Request, typename Response>
rpc::Handler StoreService::Bind(absl::StatusOr<Response> (StoreService::*method)(const Request&)) {
  return rpc::ProtoHandler<Request, Response>(
      [this, method](const Request& request) { return (this->*method)(request); });
}

template <typename Request, typename Response>
rpc::Handler StoreService::Bind(void (StoreService::*method)(std::shared_ptr<rpc::ServerCall>, Request,
                                                             rpc::Reply<Response>)) {
  return rpc::AsyncProtoHandler<Request, Response>(
      [this, method](std::shared_ptr<rpc::ServerCall> call, Request request, rpc::Reply<Response> reply) {
        (this->*method)(std::move(call), std::move(request), std::move(reply));
      });
}

absl::StatusOr<StoreSetResponse> StoreService::Set(const StoreSetRequest& request) {
  auto body = [&]() -> absl::StatusOr<std::string> {
    TANDEM_RETURN_IF_ERROR(store_->Set(request.key(), request.value()));
    return std::string();
  };
  TANDEM_RETURN_IF_ERROR(Once(request.request_id(), body));
  return StoreSetResponse();
}

void StoreService::Get(std::shared_ptr<rpc::ServerCall> call, StoreGetRequest request,
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
}

absl::StatusOr<StoreAddResponse> StoreService::Add(const StoreAddRequest& request) {
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
}

absl::StatusOr<StoreCompareSetResponse> StoreService::CompareSet(const StoreCompareSetRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(std::string value, Once(request.request_id(), [&] {
                            return store_->CompareSet(request.key(), request.expected(), request.desired());
                          }));
  StoreCompareSetResponse response;
  response.set_value(std::move(value));
  return response;
}

void StoreService::Wait(std::shared_ptr<rpc::ServerCall> call, StoreWaitRequest request,
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
}

absl::StatusOr<StoreDeleteResponse> StoreService::Delete(const StoreDeleteRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(const std::string existed,
                          Once(request.request_id(), [&]() -> absl::StatusOr<std::string> {
                            TANDEM_ASSIGN_OR_RETURN(const bool existed, store_->Delete(request.key()));
                            return existed ? "1" : "0";
                          }));
  StoreDeleteResponse response;
  response.set_existed(existed == "1");
  return response;
}

absl::StatusOr<StoreListResponse> StoreService::List(const StoreListRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> keys, store_->List(request.prefix()));
  StoreListResponse response;
  for (std::string& key : keys) response.add_keys(std::move(key));
  return response;
}

absl::StatusOr<StoreCheckResponse> StoreService::Check(const StoreCheckRequest& request) {
  const std::vector<std::string> keys(request.keys().begin(), request.keys().end());
  TANDEM_ASSIGN_OR_RETURN(const bool all, store_->Check(keys));
  StoreCheckResponse response;
  response.set_all(all);
  return response;
}

absl::StatusOr<StoreAppendResponse> StoreService::Append(const StoreAppendRequest& request) {
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
}

void StoreService::MultiGet(std::shared_ptr<rpc::ServerCall> call, StoreMultiGetRequest request,
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
}

absl::StatusOr<StoreMultiSetResponse> StoreService::MultiSet(const StoreMultiSetRequest& request) {
  const std::vector<std::string> keys(request.keys().begin(), request.keys().end());
  const std::vector<std::string> values(request.values().begin(), request.values().end());
  auto body = [&]() -> absl::StatusOr<std::string> {
    TANDEM_RETURN_IF_ERROR(store_->MultiSet(keys, values));
    return std::string();
  };
  TANDEM_RETURN_IF_ERROR(Once(request.request_id(), body));
  return StoreMultiSetResponse();
}

absl::StatusOr<StoreNumKeysResponse> StoreService::NumKeys(const StoreNumKeysRequest&) {
  TANDEM_ASSIGN_OR_RETURN(const int64_t count, store_->NumKeys());
  StoreNumKeysResponse response;
  response.set_count(count);
  return response;
}

absl::StatusOr<StorePushResponse> StoreService::Push(const StorePushRequest& request) {
  auto body = [&]() -> absl::StatusOr<std::string> {
    TANDEM_RETURN_IF_ERROR(store_->Push(request.queue(), request.value()));
    return std::string();
  };
  TANDEM_RETURN_IF_ERROR(Once(request.request_id(), body));
  return StorePushResponse();
}

absl::StatusOr<StoreLengthResponse> StoreService::Length(const StoreLengthRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(const int64_t items, store_->Length(request.queue()));
  StoreLengthResponse response;
  response.set_length(items);
  return response;
}

absl::StatusOr<HeartbeatResponse> StoreService::Heartbeat(const HeartbeatRequest& request) {
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
}

absl::StatusOr<MembersResponse> StoreService::Members(const MembersRequest&) {
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
}

absl::StatusOr<EndJobResponse> StoreService::EndJob(const EndJobRequest& request) {
  membership_->End(request.member(), request.failed(), request.reason());
  return EndJobResponse();
}

}  // namespace tandem::collectives
