// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/remote_store.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cluster/store/limits.h"
#include "tandem/v1/store.pb.h"

namespace tandem::cluster {
namespace {

uint64_t RandomWord() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

// The server enforces the time-out of a wait and names the missing keys. The call lasts a little longer, so
// that the response arrives.
absl::Duration Slack(absl::Duration timeout) {
  return std::clamp(timeout, absl::Milliseconds(500), absl::Seconds(1));
}

}  // namespace

RemoteStore::RemoteStore(std::shared_ptr<rpc::Channel> channel, absl::Duration call_timeout)
    : channel_(std::move(channel)), call_timeout_(call_timeout), client_{RandomWord(), RandomWord()} {}

std::string RemoteStore::address() const { return channel_->target(); }

std::string RemoteStore::NextRequestId() {
  return absl::StrCat(absl::Hex(client_[0]), absl::Hex(client_[1]), "/", next_request_.fetch_add(1));
}

absl::Status RemoteStore::Call(absl::string_view method, const google::protobuf::MessageLite& request,
                               google::protobuf::MessageLite* response, absl::Duration timeout) {
  const absl::Status status = rpc::CallProto(*channel_, absl::StrCat("/tandem.v1.Store/", method), request,
                                             response, {timeout, true});
  // A missing key is an ordinary response. The call's own deadline is reached only if the server was silent.
  if (status.code() == absl::StatusCode::kDeadlineExceeded) {
    return absl::UnavailableError(absl::StrCat("the store at ", channel_->target(), " did not answer ",
                                               method, " within ", absl::FormatDuration(timeout), ": ",
                                               status.message()));
  }
  return absl::StrContains(status.message(), channel_->target())
             ? status
             : Annotate(status, absl::StrCat("store at ", channel_->target()));
}

absl::Status RemoteStore::Set(absl::string_view key, absl::string_view value) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  TANDEM_RETURN_IF_ERROR(ValidateStoreValue(key, value));
  tandem::v1::StoreSetRequest request;
  request.set_key(std::string(key));
  request.set_value(std::string(value));
  request.set_request_id(NextRequestId());
  tandem::v1::StoreSetResponse response;
  return Call("Set", request, &response, call_timeout_);
}

absl::StatusOr<std::string> RemoteStore::Get(absl::string_view key, absl::Duration timeout) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  timeout = BoundedWait(timeout);
  tandem::v1::StoreGetRequest request;
  request.set_key(std::string(key));
  request.set_timeout_ms(absl::ToInt64Milliseconds(timeout));
  tandem::v1::StoreGetResponse response;
  TANDEM_RETURN_IF_ERROR(Call("Get", request, &response, timeout + Slack(timeout)));
  if (response.missing()) {
    return Annotate(KeysMissing({std::string(key)}, timeout), absl::StrCat("store at ", channel_->target()));
  }
  return std::move(*response.mutable_value());
}

absl::StatusOr<std::string> RemoteStore::GetIfPresent(absl::string_view key, absl::Duration timeout) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  tandem::v1::StoreGetRequest request;
  request.set_key(std::string(key));
  request.set_timeout_ms(0);  // the server answers at once; the call has the whole time-out
  tandem::v1::StoreGetResponse response;
  TANDEM_RETURN_IF_ERROR(
      Call("Get", request, &response, std::max(BoundedWait(timeout), Slack(absl::ZeroDuration()))));
  return response.missing() ? std::string() : std::move(*response.mutable_value());
}

absl::StatusOr<int64_t> RemoteStore::Add(absl::string_view key, int64_t delta) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  tandem::v1::StoreAddRequest request;
  request.set_key(std::string(key));
  request.set_delta(delta);
  request.set_request_id(NextRequestId());
  tandem::v1::StoreAddResponse response;
  TANDEM_RETURN_IF_ERROR(Call("Add", request, &response, call_timeout_));
  return response.value();
}

absl::StatusOr<std::string> RemoteStore::CompareSet(absl::string_view key, absl::string_view expected,
                                                    absl::string_view desired) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  TANDEM_RETURN_IF_ERROR(ValidateStoreValue(key, desired));
  TANDEM_RETURN_IF_ERROR(ValidateStoreValue(key, expected));
  tandem::v1::StoreCompareSetRequest request;
  request.set_key(std::string(key));
  request.set_expected(std::string(expected));
  request.set_desired(std::string(desired));
  request.set_request_id(NextRequestId());
  tandem::v1::StoreCompareSetResponse response;
  TANDEM_RETURN_IF_ERROR(Call("CompareSet", request, &response, call_timeout_));
  return std::move(*response.mutable_value());
}

absl::Status RemoteStore::Wait(absl::Span<const std::string> keys, absl::Duration timeout) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKeys(keys));
  timeout = BoundedWait(timeout);
  tandem::v1::StoreWaitRequest request;
  for (const std::string& key : keys) request.add_keys(key);
  request.set_timeout_ms(absl::ToInt64Milliseconds(timeout));
  tandem::v1::StoreWaitResponse response;
  TANDEM_RETURN_IF_ERROR(Call("Wait", request, &response, timeout + Slack(timeout)));
  if (response.missing().empty()) return absl::OkStatus();
  const std::vector<std::string> missing(response.missing().begin(), response.missing().end());
  return Annotate(KeysMissing(missing, timeout), absl::StrCat("store at ", channel_->target()));
}

absl::StatusOr<bool> RemoteStore::Check(absl::Span<const std::string> keys) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKeys(keys));
  tandem::v1::StoreCheckRequest request;
  for (const std::string& key : keys) request.add_keys(key);
  tandem::v1::StoreCheckResponse response;
  TANDEM_RETURN_IF_ERROR(Call("Check", request, &response, call_timeout_));
  return response.all();
}

absl::StatusOr<int64_t> RemoteStore::Append(absl::string_view key, absl::string_view value) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  TANDEM_RETURN_IF_ERROR(ValidateStoreValue(key, value));
  tandem::v1::StoreAppendRequest request;
  request.set_key(std::string(key));
  request.set_value(std::string(value));
  request.set_request_id(NextRequestId());
  tandem::v1::StoreAppendResponse response;
  TANDEM_RETURN_IF_ERROR(Call("Append", request, &response, call_timeout_));
  return response.length();
}

absl::StatusOr<std::vector<std::string>> RemoteStore::MultiGet(absl::Span<const std::string> keys,
                                                               absl::Duration timeout) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKeys(keys));
  timeout = BoundedWait(timeout);
  tandem::v1::StoreMultiGetRequest request;
  for (const std::string& key : keys) request.add_keys(key);
  request.set_timeout_ms(absl::ToInt64Milliseconds(timeout));
  tandem::v1::StoreMultiGetResponse response;
  TANDEM_RETURN_IF_ERROR(Call("MultiGet", request, &response, timeout + Slack(timeout)));
  if (!response.missing().empty()) {
    const std::vector<std::string> missing(response.missing().begin(), response.missing().end());
    return Annotate(KeysMissing(missing, timeout), absl::StrCat("store at ", channel_->target()));
  }
  if (static_cast<size_t>(response.values_size()) != keys.size()) {
    return absl::InternalError(absl::StrCat("the store at ", channel_->target(), " answered MultiGet of ",
                                            keys.size(), " keys with ", response.values_size(), " values"));
  }
  std::vector<std::string> values;
  for (std::string& value : *response.mutable_values()) values.push_back(std::move(value));
  return values;
}

absl::Status RemoteStore::MultiSet(absl::Span<const std::string> keys, absl::Span<const std::string> values) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreEntries(keys, values));
  tandem::v1::StoreMultiSetRequest request;
  for (const std::string& key : keys) request.add_keys(key);
  for (const std::string& value : values) request.add_values(value);
  request.set_request_id(NextRequestId());
  tandem::v1::StoreMultiSetResponse response;
  return Call("MultiSet", request, &response, call_timeout_);
}

absl::StatusOr<int64_t> RemoteStore::NumKeys() {
  tandem::v1::StoreNumKeysResponse response;
  TANDEM_RETURN_IF_ERROR(Call("NumKeys", tandem::v1::StoreNumKeysRequest(), &response, call_timeout_));
  return response.count();
}

absl::Status RemoteStore::Push(absl::string_view queue, absl::string_view value) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(queue));
  TANDEM_RETURN_IF_ERROR(ValidateStoreValue(queue, value));
  tandem::v1::StorePushRequest request;
  request.set_queue(std::string(queue));
  request.set_value(std::string(value));
  request.set_request_id(NextRequestId());
  tandem::v1::StorePushResponse response;
  return Call("Push", request, &response, call_timeout_);
}

absl::StatusOr<std::string> RemoteStore::Pop(absl::string_view queue, absl::Duration timeout) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(queue));
  timeout = BoundedWait(timeout);
  tandem::v1::StorePopRequest request;
  request.set_queue(std::string(queue));
  request.set_timeout_ms(absl::ToInt64Milliseconds(timeout));
  request.set_request_id(NextRequestId());
  tandem::v1::StorePopResponse response;
  TANDEM_RETURN_IF_ERROR(Call("Pop", request, &response, timeout + Slack(timeout)));
  if (response.empty()) {
    return Annotate(QueueEmpty(queue, timeout), absl::StrCat("store at ", channel_->target()));
  }
  return std::move(*response.mutable_value());
}

absl::StatusOr<int64_t> RemoteStore::Length(absl::string_view queue) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(queue));
  tandem::v1::StoreLengthRequest request;
  request.set_queue(std::string(queue));
  tandem::v1::StoreLengthResponse response;
  TANDEM_RETURN_IF_ERROR(Call("Length", request, &response, call_timeout_));
  return response.length();
}

absl::StatusOr<bool> RemoteStore::Delete(absl::string_view key) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  tandem::v1::StoreDeleteRequest request;
  request.set_key(std::string(key));
  request.set_request_id(NextRequestId());
  tandem::v1::StoreDeleteResponse response;
  TANDEM_RETURN_IF_ERROR(Call("Delete", request, &response, call_timeout_));
  return response.existed();
}

absl::StatusOr<std::vector<std::string>> RemoteStore::List(absl::string_view prefix) {
  tandem::v1::StoreListRequest request;
  request.set_prefix(std::string(prefix));
  tandem::v1::StoreListResponse response;
  TANDEM_RETURN_IF_ERROR(Call("List", request, &response, call_timeout_));
  return std::vector<std::string>(response.keys().begin(), response.keys().end());
}

}  // namespace tandem::cluster
