// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_CLIENT_TICKET_HOLDER_H_
#define TANDEM_REPLAY_CLIENT_TICKET_HOLDER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "replay/client/replay.h"
#include "replay/staleness/ticket.h"

namespace tandem::replay {

// The tickets that an actor or a writer holds for rollouts of one table. Knows when their leases are to be
// renewed. Not thread-safe.
class TicketHolder {
 public:
  explicit TicketHolder(std::string table) : table_(std::move(table)) {}

  const std::string& table() const { return table_; }
  bool empty() const { return held_.empty(); }
  size_t size() const { return held_.size(); }
  // Returns the ids of all tickets.
  std::vector<uint64_t> Ids() const {
    std::vector<uint64_t> ids;
    for (const Held& held : held_) ids.push_back(held.ticket.id);
    return ids;
  }
  // Holds a ticket that was granted, or renewed, at `now`.
  void Add(const Ticket& ticket, absl::Time now) { held_.push_back({.ticket = ticket, .renewed = now}); }
  void Clear() { held_.clear(); }
  void Remove(uint64_t id) {
    std::erase_if(held_, [&](const Held& held) { return held.ticket.id == id; });
  }
  // Returns the id of the first ticket that this has not returned before, or 0.
  uint64_t Use() {
    for (Held& held : held_) {
      if (!std::exchange(held.used, true)) return held.ticket.id;
    }
    return 0;
  }

  // Returns true if a lease has run for a third.
  bool due(absl::Time now) const {
    return std::any_of(held_.begin(), held_.end(),
                       [&](const Held& held) { return now - held.renewed >= held.ticket.lease / 3; });
  }
  // Renews all tickets. Returns how many are in use; the others have ended. A server that does not answer is
  // asked again soon. Errors are those of Replay::Renew, after which the tickets may still be in use.
  absl::StatusOr<uint64_t> Renew(Replay* replay, absl::Time now) {
    const absl::StatusOr<uint64_t> in_use = replay->Renew(table_, Ids());
    for (Held& held : held_) held.renewed = in_use.ok() ? now : now - held.ticket.lease / 4;
    return in_use;
  }
  // Asks which tickets have ended, and forgets those that no item uses. Returns how many that were. Errors
  // are those of Replay::Renew; the tickets are held then.
  absl::StatusOr<size_t> DropEnded(Replay* replay) {
    size_t ended = 0;
    for (size_t i = held_.size(); i-- > 0;) {
      if (held_[i].used) continue;
      const uint64_t id = held_[i].ticket.id;
      const absl::StatusOr<uint64_t> in_use = replay->Renew(table_, absl::MakeConstSpan(&id, 1));
      if (!in_use.ok()) return in_use.status();
      if (*in_use > 0) continue;
      held_.erase(held_.begin() + static_cast<ptrdiff_t>(i));
      ++ended;
    }
    return ended;
  }

 private:
  struct Held {
    Ticket ticket;
    absl::Time renewed;
    bool used = false;  // by an item that waits for delivery
  };
  const std::string table_;
  std::vector<Held> held_;
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_CLIENT_TICKET_HOLDER_H_
