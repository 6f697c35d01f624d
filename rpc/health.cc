// SPDX-License-Identifier: Apache-2.0
#include "rpc/health.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace tandem::rpc {
namespace {

// Field 1 of HealthCheckRequest, a string, and of HealthCheckResponse, an enum.
constexpr uint32_t kServiceTag = 0x0a, kStatusTag = 0x08;
// HealthCheckResponse.ServingStatus.
constexpr uint32_t kServing = 1, kNotServing = 2, kServiceUnknown = 3;

std::string Request(const std::string& service) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.WriteTag(kServiceTag);
  out.WriteVarint32(static_cast<uint32_t>(service.size()));
  out.WriteString(service);
  out.Trim();
  return bytes;
}

}  // namespace

absl::StatusOr<bool> CheckHealth(Channel& channel, const std::string& service, absl::Duration timeout) {
  TANDEM_ASSIGN_OR_RETURN(const Bytes response,
                          channel.Call("/grpc.health.v1.Health/Check", Bytes(Request(service)),
                                       {.timeout = timeout, .idempotent = true}));
  const std::string text = response.Flatten();
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(text.data()),
                                            static_cast<int>(text.size()));
  uint32_t status = 0;
  if (in.ReadTag() == kStatusTag && in.ReadVarint32(&status)) {
    if (status == kServing) return true;
    if (status == kNotServing) return false;
    if (status == kServiceUnknown) {
      return absl::NotFoundError(absl::StrCat(channel.target(), " has no service '", service, "'"));
    }
  }
  return absl::InternalError(
      absl::StrCat("the response of ", channel.target(), " is no HealthCheckResponse with a known status"));
}

}  // namespace tandem::rpc
