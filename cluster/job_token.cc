// SPDX-License-Identifier: Apache-2.0
#include "cluster/job_token.h"

#include <cstdlib>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "rpc/caller.h"

namespace tandem::cluster {
namespace {

constexpr size_t kLeastTokenBytes = 16;

}  // namespace

std::string NewJobToken() {
  std::random_device random;  // the kernel's generator
  std::string token;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&token, absl::Hex(random(), absl::kZeroPad8));
  return token;
}

absl::Status CheckJobToken(absl::string_view token) {
  bool printable = true;
  for (const char c : token) printable = printable && absl::ascii_isgraph(static_cast<unsigned char>(c));
  if (printable && token.size() >= kLeastTokenBytes && token.size() <= rpc::kMaxTokenBytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      kJobTokenVariable, " has ", token.size(), " bytes", printable ? "" : ", some not printable",
      "; expected ", kLeastTokenBytes, " to ", rpc::kMaxTokenBytes,
      " printable characters without blanks, such as the output of: openssl rand -hex 16"));
}

absl::StatusOr<std::string> JobTokenFromEnv() {
  const char* const value = std::getenv(kJobTokenVariable);
  if (value == nullptr || *value == '\0') return std::string();
  TANDEM_RETURN_IF_ERROR(CheckJobToken(value));
  return std::string(value);
}

absl::Status AgreeOnJobToken(Store* store, std::string* token) {
  const bool given = !token->empty();
  const std::string wanted = given ? kTokenElsewhere : NewJobToken();
  TANDEM_ASSIGN_OR_RETURN(std::string agreed, store->CompareSet(kJobTokenKey, "", wanted));
  if (!given) {
    *token = agreed == kTokenElsewhere ? "" : std::move(agreed);
    return absl::OkStatus();
  }
  if (agreed == kTokenElsewhere || agreed == *token) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this process has ", kJobTokenVariable,
                   ", and the job's other members were started without it: start all of them with the same "
                   "value, or all without"));
}

absl::StatusOr<std::string> AgreeOnJobTokenAgain(Store* store, const std::string& token) {
  if (token.empty()) return std::string();
  const bool given = JobTokenFromEnv().value_or("") == token;
  TANDEM_ASSIGN_OR_RETURN(std::string agreed,
                          store->CompareSet(kJobTokenKey, "", given ? kTokenElsewhere : token));
  if (given || agreed == kTokenElsewhere || agreed == token) return std::string();
  return agreed;
}

}  // namespace tandem::cluster
