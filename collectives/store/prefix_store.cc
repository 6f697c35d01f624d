#include "collectives/store/prefix_store.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/store/limits.h"

namespace tandem::collectives {

PrefixStore::PrefixStore(Store* base, absl::string_view prefix)
    : base_(base), prefix_(absl::StrCat(prefix, "/")) {}

absl::StatusOr<std::string> PrefixStore::Full(absl::string_view key) const {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  return absl::StrCat(prefix_, key);
}

absl::StatusOr<std::vector<std::string>> PrefixStore::Full(absl::Span<const std::string> keys) const {
  std::vector<std::string> full;
  full.reserve(keys.size());
  for (const std::string& key : keys) {
    TANDEM_ASSIGN_OR_RETURN(std::string one, Full(key));
    full.push_back(std::move(one));
  }
  return full;
}

absl::Status PrefixStore::Set(absl::string_view key, absl::string_view value) {
  TANDEM_ASSIGN_OR_RETURN(const std::string full, Full(key));
  return base_->Set(full, value);
}

absl::StatusOr<std::string> PrefixStore::Get(absl::string_view key, absl::Duration timeout) {
  TANDEM_ASSIGN_OR_RETURN(const std::string full, Full(key));
  return base_->Get(full, timeout);
}

absl::StatusOr<int64_t> PrefixStore::Add(absl::string_view key, int64_t delta) {
  TANDEM_ASSIGN_OR_RETURN(const std::string full, Full(key));
  return base_->Add(full, delta);
}

absl::StatusOr<std::string> PrefixStore::CompareSet(absl::string_view key, absl::string_view expected,
                                                    absl::string_view desired) {
  TANDEM_ASSIGN_OR_RETURN(const std::string full, Full(key));
  return base_->CompareSet(full, expected, desired);
}

absl::Status PrefixStore::Wait(absl::Span<const std::string> keys, absl::Duration timeout) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> full, Full(keys));
  return base_->Wait(full, timeout);
}

absl::StatusOr<bool> PrefixStore::Check(absl::Span<const std::string> keys) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> full, Full(keys));
  return base_->Check(full);
}

absl::StatusOr<int64_t> PrefixStore::Append(absl::string_view key, absl::string_view value) {
  TANDEM_ASSIGN_OR_RETURN(const std::string full, Full(key));
  return base_->Append(full, value);
}

absl::StatusOr<std::vector<std::string>> PrefixStore::MultiGet(absl::Span<const std::string> keys,
                                                               absl::Duration timeout) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> full, Full(keys));
  return base_->MultiGet(full, timeout);
}

absl::Status PrefixStore::MultiSet(absl::Span<const std::string> keys, absl::Span<const std::string> values) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> full, Full(keys));
  return base_->MultiSet(full, values);
}

absl::StatusOr<bool> PrefixStore::Delete(absl::string_view key) {
  TANDEM_ASSIGN_OR_RETURN(const std::string full, Full(key));
  return base_->Delete(full);
}

absl::StatusOr<std::vector<std::string>> PrefixStore::List(absl::string_view prefix) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> keys, base_->List(absl::StrCat(prefix_, prefix)));
  for (std::string& key : keys) key.erase(0, prefix_.size());
  return keys;
}

absl::StatusOr<int64_t> PrefixStore::NumKeys() {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> keys, base_->List(prefix_));
  return static_cast<int64_t>(keys.size());
}

absl::Status PrefixStore::Push(absl::string_view queue, absl::string_view value) {
  TANDEM_ASSIGN_OR_RETURN(const std::string full, Full(queue));
  return base_->Push(full, value);
}

absl::StatusOr<std::string> PrefixStore::Pop(absl::string_view queue, absl::Duration timeout) {
  TANDEM_ASSIGN_OR_RETURN(const std::string full, Full(queue));
  return base_->Pop(full, timeout);
}

absl::StatusOr<int64_t> PrefixStore::Length(absl::string_view queue) {
  TANDEM_ASSIGN_OR_RETURN(const std::string full, Full(queue));
  return base_->Length(full);
}

}  // namespace tandem::collectives
