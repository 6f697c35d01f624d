// SPDX-License-Identifier: Apache-2.0
// The methods of tandem.v1.Store. Deferred calls are in store_service.cc.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cluster/membership/methods.h"
#include "cluster/store/key_owners.h"
#include "cluster/store/limits.h"
#include "cluster/store/store_service.h"

namespace tandem::cluster {

rpc::Service StoreService::MakeService() {
  rpc::Service service{"tandem.v1.Store",
                       {
                           {"Set", rpc::Right::kMember, BindChange(&StoreService::Set)},
                           {"Get", rpc::Right::kRead, Bind(&StoreService::Get)},
                           {"Add", rpc::Right::kMember, BindChange(&StoreService::Add)},
                           {"CompareSet", rpc::Right::kMember, BindChange(&StoreService::CompareSet)},
                           {"Wait", rpc::Right::kRead, Bind(&StoreService::Wait)},
                           {"Delete", rpc::Right::kMember, BindChange(&StoreService::Delete)},
                           {"List", rpc::Right::kRead, Bind(&StoreService::List)},
                           {"Check", rpc::Right::kRead, Bind(&StoreService::Check)},
                           {"Append", rpc::Right::kMember, BindChange(&StoreService::Append)},
                           {"MultiGet", rpc::Right::kRead, Bind(&StoreService::MultiGet)},
                           {"MultiSet", rpc::Right::kMember, BindChange(&StoreService::MultiSet)},
                           {"NumKeys", rpc::Right::kRead, Bind(&StoreService::NumKeys)},
                           {"Push", rpc::Right::kMember, BindChange(&StoreService::Push)},
                           {"Pop", rpc::Right::kMember, Bind(&StoreService::Pop)},
                           {"Length", rpc::Right::kRead, Bind(&StoreService::Length)},
                           {"Join", rpc::Right::kMember, Bind(&StoreService::Join)},
                           {"EndLife", rpc::Right::kMember, Bind(&StoreService::EndLife)},
                           {"Heartbeat", rpc::Right::kMember,
                            rpc::AsyncProtoHandler<v1::HeartbeatRequest, v1::HeartbeatResponse>(
                                [this](std::shared_ptr<rpc::ServerCall> call, v1::HeartbeatRequest request,
                                       rpc::Reply<v1::HeartbeatResponse> reply) {
                                  Heartbeat(std::move(call), std::move(request), std::move(reply));
                                })},
                           {"Members", rpc::Right::kObserve, Bind(&StoreService::Members)},
                           {"EndJob", rpc::Right::kMember, Bind(&StoreService::EndJob)},
                       }};
  for (rpc::Method& method : service.methods) {
    // A process that joins has no life yet.
    if (rpc::NeedsToken(method.right) && method.name != "Join") {
      method.handler = Guard(std::move(method.handler));
    }
  }
  return service;
}

rpc::Handler StoreService::Guard(rpc::Handler handler) {
  return [this, handler = std::move(handler)](std::shared_ptr<rpc::ServerCall> call) {
    const rpc::Caller& caller = call->caller();
    absl::Status admitted = membership_->AdmitLife(caller.member, caller.life);
    if (!admitted.ok()) return call->Finish(std::move(admitted));
    handler(std::move(call));
  };
}

template <typename Response>
rpc::Reply<Response> StoreService::Synced(rpc::Reply<Response> reply) {
  if (disk_ == nullptr) return reply;
  return [this, reply = std::move(reply)](absl::StatusOr<Response> response) {
    disk_->WhenSynced([reply, response = std::move(response)](const absl::Status& synced) mutable {
      synced.ok() ? reply(std::move(response)) : reply(synced);
    });
  };
}

template <typename Request, typename Response>
rpc::Handler StoreService::BindChange(absl::StatusOr<Response> (StoreService::*method)(const Request&)) {
  return rpc::AsyncProtoHandler<Request, Response>(
      [this, method](const std::shared_ptr<rpc::ServerCall>& call, const Request& request,
                     rpc::Reply<Response> reply) {
        if (absl::Status owns = CheckKeyOwners(request, call->caller()); !owns.ok()) return reply(owns);
        Synced(std::move(reply))((this->*method)(request));
      });
}

template <typename Request, typename Response>
rpc::Handler StoreService::Bind(absl::StatusOr<Response> (StoreService::*method)(const Request&)) {
  if (disk_ == nullptr) {
    return rpc::ProtoHandler<Request, Response>(
        [this, method](const Request& request) { return (this->*method)(request); });
  }
  return rpc::AsyncProtoHandler<Request, Response>(
      [this, method](const std::shared_ptr<rpc::ServerCall>&, const Request& request,
                     rpc::Reply<Response> reply) { Synced(std::move(reply))((this->*method)(request)); });
}

template <typename Request, typename Response>
rpc::Handler StoreService::Bind(void (StoreService::*method)(std::shared_ptr<rpc::ServerCall>, Request,
                                                             rpc::Reply<Response>)) {
  return rpc::AsyncProtoHandler<Request, Response>(
      [this, method](std::shared_ptr<rpc::ServerCall> call, Request request, rpc::Reply<Response> reply) {
        (this->*method)(std::move(call), std::move(request), Synced(std::move(reply)));
      });
}

absl::StatusOr<v1::StoreSetResponse> StoreService::Set(const v1::StoreSetRequest& request) {
  TANDEM_RETURN_IF_ERROR(store_->Set(request.key(), request.value(), request.request_id()));
  return v1::StoreSetResponse();
}

void StoreService::Get(std::shared_ptr<rpc::ServerCall> call, v1::StoreGetRequest request,
                       rpc::Reply<v1::StoreGetResponse> reply) {
  if (absl::Status valid = ValidateStoreKey(request.key()); !valid.ok()) return reply(valid);
  Defer(
      *call, {request.key()}, 1, request.timeout_ms(),
      [reply](std::vector<std::string> values) {
        v1::StoreGetResponse response;
        response.set_value(std::move(values[0]));
        reply(std::move(response));
      },
      [reply](std::vector<std::string>) {
        v1::StoreGetResponse response;
        response.set_missing(true);
        reply(std::move(response));
      },
      reply);
}

absl::StatusOr<v1::StoreAddResponse> StoreService::Add(const v1::StoreAddRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(const int64_t value,
                          store_->Add(request.key(), request.delta(), request.request_id()));
  v1::StoreAddResponse response;
  response.set_value(value);
  return response;
}

absl::StatusOr<v1::StoreCompareSetResponse> StoreService::CompareSet(
    const v1::StoreCompareSetRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(std::string value, store_->CompareSet(request.key(), request.expected(),
                                                                request.desired(), request.request_id()));
  v1::StoreCompareSetResponse response;
  response.set_value(std::move(value));
  return response;
}

void StoreService::Wait(std::shared_ptr<rpc::ServerCall> call, v1::StoreWaitRequest request,
                        rpc::Reply<v1::StoreWaitResponse> reply) {
  std::vector<std::string> keys(request.keys().begin(), request.keys().end());
  if (absl::Status valid = ValidateStoreKeys(keys); !valid.ok()) return reply(valid);
  if (keys.empty()) return reply(v1::StoreWaitResponse());
  Defer(
      *call, std::move(keys), 0, request.timeout_ms(),
      [reply](std::vector<std::string>) { reply(v1::StoreWaitResponse()); },
      [reply](std::vector<std::string> missing) {
        v1::StoreWaitResponse response;
        for (std::string& key : missing) response.add_missing(std::move(key));
        reply(std::move(response));
      },
      reply);
}

absl::StatusOr<v1::StoreDeleteResponse> StoreService::Delete(const v1::StoreDeleteRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(const bool existed, store_->Delete(request.key(), request.request_id()));
  v1::StoreDeleteResponse response;
  response.set_existed(existed);
  return response;
}

absl::StatusOr<v1::StoreListResponse> StoreService::List(const v1::StoreListRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> keys, store_->List(request.prefix()));
  v1::StoreListResponse response;
  for (std::string& key : keys) response.add_keys(std::move(key));
  return response;
}

absl::StatusOr<v1::StoreCheckResponse> StoreService::Check(const v1::StoreCheckRequest& request) {
  const std::vector<std::string> keys(request.keys().begin(), request.keys().end());
  TANDEM_ASSIGN_OR_RETURN(const bool all, store_->Check(keys));
  v1::StoreCheckResponse response;
  response.set_all(all);
  return response;
}

absl::StatusOr<v1::StoreAppendResponse> StoreService::Append(const v1::StoreAppendRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(const int64_t bytes,
                          store_->Append(request.key(), request.value(), request.request_id()));
  v1::StoreAppendResponse response;
  response.set_length(bytes);
  return response;
}

void StoreService::MultiGet(std::shared_ptr<rpc::ServerCall> call, v1::StoreMultiGetRequest request,
                            rpc::Reply<v1::StoreMultiGetResponse> reply) {
  std::vector<std::string> keys(request.keys().begin(), request.keys().end());
  if (absl::Status valid = ValidateStoreKeys(keys); !valid.ok()) return reply(valid);
  if (keys.empty()) return reply(v1::StoreMultiGetResponse());
  const size_t wanted = keys.size();
  Defer(
      *call, std::move(keys), wanted, request.timeout_ms(),
      [reply](std::vector<std::string> values) {
        v1::StoreMultiGetResponse response;
        size_t bytes = 0;
        for (std::string& value : values) {
          bytes += value.size();
          response.add_values(std::move(value));
        }
        if (absl::Status valid = ValidateStoreBatch(values.size(), bytes); !valid.ok()) return reply(valid);
        reply(std::move(response));
      },
      [reply](std::vector<std::string> missing) {
        v1::StoreMultiGetResponse response;
        for (std::string& key : missing) response.add_missing(std::move(key));
        reply(std::move(response));
      },
      reply);
}

absl::StatusOr<v1::StoreMultiSetResponse> StoreService::MultiSet(const v1::StoreMultiSetRequest& request) {
  const std::vector<std::string> keys(request.keys().begin(), request.keys().end());
  const std::vector<std::string> values(request.values().begin(), request.values().end());
  TANDEM_RETURN_IF_ERROR(store_->MultiSet(keys, values, request.request_id()));
  return v1::StoreMultiSetResponse();
}

absl::StatusOr<v1::StoreNumKeysResponse> StoreService::NumKeys(const v1::StoreNumKeysRequest&) {
  TANDEM_ASSIGN_OR_RETURN(const int64_t count, store_->NumKeys());
  v1::StoreNumKeysResponse response;
  response.set_count(count);
  return response;
}

absl::StatusOr<v1::StorePushResponse> StoreService::Push(const v1::StorePushRequest& request) {
  TANDEM_RETURN_IF_ERROR(store_->Push(request.queue(), request.value(), request.request_id()));
  return v1::StorePushResponse();
}

absl::StatusOr<v1::StoreLengthResponse> StoreService::Length(const v1::StoreLengthRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(const int64_t items, store_->Length(request.queue()));
  v1::StoreLengthResponse response;
  response.set_length(items);
  return response;
}

absl::StatusOr<v1::JoinResponse> StoreService::Join(const v1::JoinRequest& request) {
  return JoinMember(membership_, request);
}

absl::StatusOr<v1::EndLifeResponse> StoreService::EndLife(const v1::EndLifeRequest& request) {
  return EndMemberLife(membership_, request);
}

void StoreService::Heartbeat(std::shared_ptr<rpc::ServerCall> call, v1::HeartbeatRequest request,
                             rpc::Reply<v1::HeartbeatResponse> reply) {
  absl::StatusOr<v1::HeartbeatResponse> state = HearMember(membership_, request, call->caller());
  // A heartbeat that tells nothing new, and is told nothing new, need not wait for a slow disk.
  if (state.ok() && (state->ended() || request.leaving())) reply = Synced(std::move(reply));
  reply(std::move(state));
}

absl::StatusOr<v1::MembersResponse> StoreService::Members(const v1::MembersRequest&) {
  return ListMembers(membership_);
}

absl::StatusOr<v1::EndJobResponse> StoreService::EndJob(const v1::EndJobRequest& request) {
  return cluster::EndJob(membership_, request);
}

}  // namespace tandem::cluster
