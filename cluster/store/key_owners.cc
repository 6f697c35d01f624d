// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/key_owners.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cluster/store/limits.h"

namespace tandem::cluster {
namespace {

// Returns "ps" and "4" for "ps/4".
std::pair<absl::string_view, absl::string_view> Split(absl::string_view text) {
  return absl::StrSplit(text, absl::MaxSplits('/', 1));
}

bool ServesShard(absl::string_view shard, const rpc::Caller& caller) {
  const auto [role, number] = Split(caller.member);
  uint32_t wanted = 0, server = 0;
  if (role != "ps" || !absl::SimpleAtoi(shard, &wanted) || !absl::SimpleAtoi(number, &server)) return false;
  return (caller.shards > 0 ? server % caller.shards : server) == wanted;
}

}  // namespace

absl::Status CheckKeyOwner(absl::string_view key, const rpc::Caller& caller) {
  std::string owner;
  bool owns = false;
  absl::string_view rest = key;
  if (absl::ConsumePrefix(&rest, "ps/")) {
    absl::ConsumePrefix(&rest, "placement/");
    owner = absl::StrCat("the parameter servers of shard ", QuoteKey(rest));
    owns = ServesShard(rest, caller);
  } else if (absl::ConsumePrefix(&rest, "rl/")) {
    const auto [role, number] = Split(rest);
    owner = number == "count" ? absl::StrCat("the members of role ", QuoteKey(role)) : QuoteKey(rest);
    owns = number == "count" ? Split(caller.member).first == role : caller.member == rest;
  } else if (absl::ConsumePrefix(&rest, "job/opened/") || absl::ConsumePrefix(&rest, "job/closed/")) {
    owner = QuoteKey(rest);
    owns = caller.member == rest;
  } else if (absl::StartsWith(key, "rdzv/") || absl::StartsWith(key, "launchers/")) {
    owner = "launchers";
    owns = caller.member.empty();
  } else {
    return absl::OkStatus();
  }
  if (owns) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("the key ", QuoteKey(key), " of the job's store belongs to ", owner, "; ",
                   caller.member.empty() ? "a client without a member's name" : QuoteKey(caller.member),
                   " may not change it"));
}

}  // namespace tandem::cluster
