#include "rpc/service.h"

#include "absl/strings/str_cat.h"
#include "rpc/codec/bytes_stream.h"

namespace tandem::rpc::internal {

absl::Status ParseRequest(const ServerCall& call, google::protobuf::MessageLite* request) {
  BytesInputStream stream(call.request());
  if (request->ParseFromZeroCopyStream(&stream)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the request of ", call.request().size(), " bytes from ",
                                                 call.peer(), " is no ", request->GetTypeName()));
}

Bytes SerializeResponse(const google::protobuf::MessageLite& response) {
  return Bytes(response.SerializeAsString());
}

}  // namespace tandem::rpc::internal
