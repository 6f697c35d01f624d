// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/grpc_status.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace tandem::rpc {
namespace {

// A peer accepts 8 KiB of metadata unless told otherwise; other headers need a little of it.
constexpr size_t kMaxEncodedMessage = 6 * 1024;

// Returns how much of `message` fits if every byte that is not printable ASCII is encoded as %XX. Never
// splits a UTF-8 character.
size_t FittingPrefix(absl::string_view message) {
  size_t encoded = 0;
  size_t fitting = 0;  // end of the last whole character that fits
  for (size_t i = 0; i < message.size(); ++i) {
    const unsigned char c = message[i];
    const bool continues = (c & 0xC0) == 0x80;
    if (!continues) fitting = i;
    encoded += (c >= 0x20 && c <= 0x7E && c != '%') ? 1 : 3;
    if (encoded > kMaxEncodedMessage) return fitting;
  }
  return message.size();
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const absl::string_view message = status.message();
  const size_t fitting = FittingPrefix(message);
  std::string text(message.substr(0, fitting));
  if (fitting < message.size()) absl::StrAppend(&text, "... (cut; ", message.size(), " bytes in all)");
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()), std::move(text));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  // gRPC reports POLLHUP of a connection that is not established yet in this way.
  return absl::Status(
      static_cast<absl::StatusCode>(status.error_code()),
      absl::StrReplaceAll(status.error_message(),
                          {{"Failed to connect to remote host: FD shutdown",
                            "Failed to connect to remote host: hung up, as for: Connection refused"}}));
}

}  // namespace tandem::rpc
