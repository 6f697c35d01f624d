// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/job_token.h"

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

}  // namespace tandem::cluster
