// SPDX-License-Identifier: Apache-2.0
#include "rpc/earlier_attempts.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace tandem::rpc {
namespace {
constexpr char kEarlierAttempts[] = "tandem.rpc/earlier_attempts";
}  // namespace

bool HadEarlierAttempts(const absl::Status& status) {
  return status.GetPayload(kEarlierAttempts).has_value();
}

void SetEarlierAttempts(int attempts, absl::Status* status) {
  status->SetPayload(kEarlierAttempts, absl::Cord(absl::StrCat(attempts)));
}

}  // namespace tandem::rpc
