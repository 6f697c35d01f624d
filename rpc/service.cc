// SPDX-License-Identifier: Apache-2.0
#include "rpc/service.h"

#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "rpc/grant_claims.h"
#include "rpc/wire/bytes_stream.h"

namespace tandem::rpc {

const Caller& ServerCall::caller() const {
  static const Caller* const kNobody = new Caller;
  return *kNobody;
}

absl::Status ServerCall::CheckTable(absl::string_view table) const {
  if (grant_ == nullptr || grant_->Covers(table)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(grant_->ToString(), " does not cover '", absl::CHexEscape(table), "'"));
}

void ServerCall::FinishInChunks(std::unique_ptr<ResponseSource> answer) {
  Bytes whole;
  const size_t size = answer->size();
  while (whole.size() < size) whole.Append(answer->Next(size - whole.size()));
  Finish(std::move(whole));
}

absl::string_view RightName(Right right) {
  switch (right) {
    case Right::kObserve:
      return "observe";
    case Right::kRead:
      return "read";
    case Right::kTrain:
      return "train";
    case Right::kAct:
      return "act";
    case Right::kMember:
      return "be a member";
    case Right::kReplica:
      return "be a copy of the shard";
    case Right::kAdmin:
      return "administer";
  }
  return "";
}

namespace internal {

absl::Status ParseRequest(const ServerCall& call, google::protobuf::MessageLite* request) {
  BytesInputStream stream(call.request());
  if (request->ParseFromZeroCopyStream(&stream)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the request of ", call.request().size(), " bytes from ",
                                                 call.peer(), " is no ", request->GetTypeName()));
}

Bytes SerializeResponse(const google::protobuf::MessageLite& response) {
  return Bytes(response.SerializeAsString());
}

}  // namespace internal
}  // namespace tandem::rpc
