// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/forwarding_store.h"

#include "base/status.h"

namespace tandem::cluster {

absl::StatusOr<absl::string_view> ForwardingStore::BaseKey(absl::string_view key, std::string*) {
  return key;
}

absl::StatusOr<absl::Span<const std::string>> ForwardingStore::BaseKeys(absl::Span<const std::string> keys,
                                                                        std::vector<std::string>*) {
  return keys;
}

absl::Status ForwardingStore::Forward(absl::FunctionRef<absl::Status()> call) { return call(); }

absl::Status ForwardingStore::ForwardWait(absl::Duration timeout,
                                          absl::FunctionRef<absl::Status(absl::Duration)> call) {
  return Forward([&] { return call(timeout); });
}

template <typename Result, typename Call>
absl::StatusOr<Result> ForwardingStore::ForwardFor(Call call) {
  absl::StatusOr<Result> result = Result();
  TANDEM_RETURN_IF_ERROR(Forward([&] { return (result = call()).status(); }));
  return result;
}

template <typename Result, typename Call>
absl::StatusOr<Result> ForwardingStore::ForwardWaitFor(absl::Duration timeout, Call call) {
  absl::StatusOr<Result> result = Result();
  TANDEM_RETURN_IF_ERROR(
      ForwardWait(timeout, [&](absl::Duration part) { return (result = call(part)).status(); }));
  return result;
}

absl::Status ForwardingStore::Set(absl::string_view key, absl::string_view value) {
  std::string buffer;
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view name, BaseKey(key, &buffer));
  return Forward([&] { return base_->Set(name, value); });
}

absl::StatusOr<std::string> ForwardingStore::Get(absl::string_view key, absl::Duration timeout) {
  std::string buffer;
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view name, BaseKey(key, &buffer));
  return ForwardWaitFor<std::string>(timeout, [&](absl::Duration part) { return base_->Get(name, part); });
}

absl::StatusOr<std::string> ForwardingStore::GetIfPresent(absl::string_view key, absl::Duration timeout) {
  std::string buffer;
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view name, BaseKey(key, &buffer));
  return ForwardFor<std::string>([&] { return base_->GetIfPresent(name, timeout); });
}

absl::StatusOr<int64_t> ForwardingStore::Add(absl::string_view key, int64_t delta) {
  std::string buffer;
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view name, BaseKey(key, &buffer));
  return ForwardFor<int64_t>([&] { return base_->Add(name, delta); });
}

absl::StatusOr<std::string> ForwardingStore::CompareSet(absl::string_view key, absl::string_view expected,
                                                        absl::string_view desired) {
  std::string buffer;
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view name, BaseKey(key, &buffer));
  return ForwardFor<std::string>([&] { return base_->CompareSet(name, expected, desired); });
}

absl::Status ForwardingStore::Wait(absl::Span<const std::string> keys, absl::Duration timeout) {
  std::vector<std::string> buffer;
  TANDEM_ASSIGN_OR_RETURN(const absl::Span<const std::string> names, BaseKeys(keys, &buffer));
  return ForwardWait(timeout, [&](absl::Duration part) { return base_->Wait(names, part); });
}

absl::StatusOr<bool> ForwardingStore::Check(absl::Span<const std::string> keys) {
  std::vector<std::string> buffer;
  TANDEM_ASSIGN_OR_RETURN(const absl::Span<const std::string> names, BaseKeys(keys, &buffer));
  return ForwardFor<bool>([&] { return base_->Check(names); });
}

absl::StatusOr<int64_t> ForwardingStore::Append(absl::string_view key, absl::string_view value) {
  std::string buffer;
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view name, BaseKey(key, &buffer));
  return ForwardFor<int64_t>([&] { return base_->Append(name, value); });
}

absl::StatusOr<std::vector<std::string>> ForwardingStore::MultiGet(absl::Span<const std::string> keys,
                                                                   absl::Duration timeout) {
  std::vector<std::string> buffer;
  TANDEM_ASSIGN_OR_RETURN(const absl::Span<const std::string> names, BaseKeys(keys, &buffer));
  return ForwardWaitFor<std::vector<std::string>>(
      timeout, [&](absl::Duration part) { return base_->MultiGet(names, part); });
}

absl::Status ForwardingStore::MultiSet(absl::Span<const std::string> keys,
                                       absl::Span<const std::string> values) {
  std::vector<std::string> buffer;
  TANDEM_ASSIGN_OR_RETURN(const absl::Span<const std::string> names, BaseKeys(keys, &buffer));
  return Forward([&] { return base_->MultiSet(names, values); });
}

absl::StatusOr<bool> ForwardingStore::Delete(absl::string_view key) {
  std::string buffer;
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view name, BaseKey(key, &buffer));
  return ForwardFor<bool>([&] { return base_->Delete(name); });
}

absl::Status ForwardingStore::Beat(absl::string_view key, absl::Duration lease) {
  if (!base_->BeatsExpire(lease)) return Add(key, 1).status();
  std::string buffer;
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view name, BaseKey(key, &buffer));
  return Forward([&] { return base_->Beat(name, lease); });
}

absl::StatusOr<std::vector<std::string>> ForwardingStore::List(absl::string_view prefix) {
  return ForwardFor<std::vector<std::string>>([&] { return base_->List(prefix); });
}

absl::StatusOr<int64_t> ForwardingStore::NumKeys() {
  return ForwardFor<int64_t>([&] { return base_->NumKeys(); });
}

absl::Status ForwardingStore::Push(absl::string_view queue, absl::string_view value) {
  std::string buffer;
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view name, BaseKey(queue, &buffer));
  return Forward([&] { return base_->Push(name, value); });
}

absl::StatusOr<std::string> ForwardingStore::Pop(absl::string_view queue, absl::Duration timeout) {
  std::string buffer;
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view name, BaseKey(queue, &buffer));
  return ForwardWaitFor<std::string>(timeout, [&](absl::Duration part) { return base_->Pop(name, part); });
}

absl::StatusOr<int64_t> ForwardingStore::Length(absl::string_view queue) {
  std::string buffer;
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view name, BaseKey(queue, &buffer));
  return ForwardFor<int64_t>([&] { return base_->Length(name); });
}

}  // namespace tandem::cluster
