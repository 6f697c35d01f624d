// SPDX-License-Identifier: Apache-2.0
#include "cluster/membership/limits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tandem::cluster {
namespace {

constexpr size_t kMaxMemberNameBytes = 256;
constexpr size_t kMaxReasonBytes = 16 << 10;

// Returns at most `bytes` bytes of `text`, without splitting a UTF-8 character.
absl::string_view Prefix(absl::string_view text, size_t bytes) {
  size_t end = std::min(bytes, text.size());
  while (end > 0 && end < text.size() && (text[end] & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

std::string InTenths(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(duration, absl::Milliseconds(100)));
}

}  // namespace

std::string BoundedReason(absl::string_view text) {
  return text.size() <= kMaxReasonBytes ? std::string(text)
                                        : absl::StrCat(Prefix(text, kMaxReasonBytes), "...");
}

void BoundReport(MemberReport* report) {
  for (std::string* text : {&report->state, &report->host, &report->diagnostics, &report->address}) {
    if (text->size() > kMaxMemberNameBytes) *text = std::string(Prefix(*text, kMaxMemberNameBytes));
  }
}

std::string EndReason(absl::string_view member, absl::string_view reason) {
  return absl::StrCat(BoundedReason(member), member.empty() ? "" : ": ", BoundedReason(reason));
}

std::string SilenceReason(absl::string_view member, absl::Duration silence, absl::Duration lease) {
  return absl::StrCat(BoundedReason(member), " has been silent for ", InTenths(silence), " (lease ",
                      absl::FormatDuration(lease), "): killed or hung?");
}

absl::Status CheckMemberName(absl::string_view member) {
  if (!member.empty() && member.size() <= kMaxMemberNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a member's name must have 1 to ", kMaxMemberNameBytes, " bytes, not ", member.size()));
}

absl::Status CheckMemberLease(absl::string_view member, absl::Duration lease) {
  if (lease > absl::ZeroDuration() && lease <= absl::Hours(24)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("member ", BoundedReason(member), " asks for a lease of ",
                                                 absl::FormatDuration(lease), "; it must lie in (0, 24h]"));
}

absl::Status CheckJoined(absl::string_view member, int64_t life) {
  TANDEM_RETURN_IF_ERROR(CheckMemberName(member));
  if (life > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this process of ", BoundedReason(member),
                   " has not joined the job, so it changes nothing: members join by OpenStore, and clients "
                   "of the store have no name"));
}

absl::Status TooManyMembers() {
  return absl::ResourceExhaustedError(absl::StrCat("the job already has ", kMostMembers, " members"));
}

absl::Status WasReplaced(absl::string_view member, int64_t life, const MemberProcess& process,
                         int64_t known_life, absl::Duration ago) {
  return absl::AlreadyExistsError(
      absl::StrCat("this process of ", BoundedReason(member), " (life ", life, ") was replaced by ",
                   process.pid == 0 ? "another one" : process.ToString(), " (life ", known_life, ")",
                   ago > absl::ZeroDuration() ? absl::StrCat(" ", InTenths(ago), " ago") : "",
                   ": it was taken for dead, or two processes were started with the same name"));
}

absl::string_view RoleOfMember(absl::string_view member) { return member.substr(0, member.find('/')); }

bool CameFromEarlier(const MemberReport& report, uint64_t incarnation) {
  return report.registered_with != 0 && report.registered_with != incarnation;
}

bool IsSameProcess(const MemberProcess& known, const MemberProcess& process) {
  return known.pid == process.pid && known.boot_id == process.boot_id &&
         known.pid_namespace == process.pid_namespace &&
         (process.started == 0 || known.started == process.started);
}

}  // namespace tandem::cluster
