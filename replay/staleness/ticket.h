// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_STALENESS_TICKET_H_
#define TANDEM_REPLAY_STALENESS_TICKET_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace tandem::replay {

// The permission to roll out and insert one item into a table with StalenessKind::kPace. A plain value.
struct Ticket {
  uint64_t id = 0;
  // The committed version when the ticket was granted. The actor must act by this or a later version in every
  // step of the item.
  int64_t min_version = 0;
  // The epoch of the learner that had committed it. A version of an earlier epoch is one of an earlier life
  // of the learner, whatever its number. 0: the server does not say.
  uint64_t epoch = 0;
  // The ticket ends unless it is renewed within this time; Writer::Append does so.
  absl::Duration lease;
};

// Asks for tickets. A plain value.
struct AdmitRequest {
  // Names the actor in reports. Tickets of an earlier incarnation of the actor end when a later one asks.
  std::string actor;
  // The number of tickets, all granted at the same time. See Table::Admit for when fewer are granted.
  uint32_t count = 1;
  // Identify the request among those of the actor: a repeated one gets the same tickets. `sequence` 0: each
  // request gets new ones.
  uint64_t incarnation = 0;
  uint64_t sequence = 0;
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_STALENESS_TICKET_H_
