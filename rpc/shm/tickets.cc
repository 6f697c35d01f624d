// SPDX-License-Identifier: Apache-2.0
#include "rpc/shm/tickets.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/ipc/unix_socket.h"

namespace tandem::rpc::shm {

void Tickets::Purge(absl::Time now) {
  const bool many = tickets_.size() >= kMostOpen;
  absl::erase_if(tickets_, [&](const auto& one) {
    const Ticket& ticket = one.second;
    return now > ticket.expires + kLifetime || (many && (ticket.used || now > ticket.expires));
  });
}

absl::StatusOr<std::string> Tickets::Issue(const Caller& caller, const std::string& peer, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  Purge(now);
  if (tickets_.size() >= kMostOpen) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the server has ", kMostOpen, " open tickets for shared memory, which is its limit"));
  }
  size_t open = 0;
  for (const auto& [text, ticket] : tickets_) {
    if (ticket.peer == peer && !ticket.used && now <= ticket.expires) ++open;
  }
  if (open >= kMostOfPeer && !absl::StartsWith(peer, "unix:")) {
    return absl::ResourceExhaustedError(absl::StrCat("the connection has ", kMostOfPeer,
                                                     " open tickets for shared memory, which is its limit"));
  }
  std::string text = ipc::RandomToken();
  tickets_.emplace(text, Ticket{.caller = caller, .peer = peer, .expires = now + kLifetime});
  return text;
}

absl::StatusOr<Caller> Tickets::Redeem(const std::string& ticket, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) {
    return absl::PermissionDeniedError("the server knows no such ticket for shared memory");
  }
  if (found->second.used) {
    return absl::PermissionDeniedError("the ticket for shared memory was used before, and is valid once");
  }
  if (now > found->second.expires) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the ticket for shared memory has expired: it is valid for ", absl::FormatDuration(kLifetime)));
  }
  found->second.used = true;
  return std::exchange(found->second.caller, Caller());
}

}  // namespace tandem::rpc::shm
