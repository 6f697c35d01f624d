// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_STALENESS_PACE_H_
#define TANDEM_REPLAY_STALENESS_PACE_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "replay/staleness/staleness_options.h"
#include "replay/staleness/ticket.h"
#include "replay/staleness/version_clock.h"

namespace tandem::replay {

// Admits rollouts to a table at the pace at which its learners consume items. Items are then fresh when they
// are used. Knows tickets and the positions of items, not the items. Not thread-safe.
//
// A ticket is granted while this holds:
//
//   accepted + running < consumed at the head + (max_lag + 1) x batch x every
//
// `accepted` counts the items that were inserted, without those that were removed unsampled. `running` counts
// the tickets in use. Items are sampled in the order of their tickets.
//
// An item whose ticket was granted at commit c is used at most max_lag commits later if its position is below
// Deadline(c). There are batch x every positions for each commit. The formula grants a ticket only if its
// item can still meet this deadline behind all items before it. A rollout that then takes long may miss it:
// SlowRollouts says what follows.
class Pace {
 public:
  // Counts since the table was created.
  struct Counts {
    uint64_t admitted = 0;  // tickets granted
    uint64_t expired = 0;   // tickets whose lease or max_rollout ended
    uint64_t returned = 0;  // tickets given back unused
    uint64_t refused = 0;   // items without a valid ticket, or with steps of too old a version
  };
  // An item that waits to be sampled.
  struct Resident {
    uint32_t slot = 0;
    uint64_t commit = 0;  // the number of commits when its ticket was granted
  };
  // The oldest ticket in use, for reports.
  struct Oldest {
    std::string actor;
    absl::Time granted;
    int64_t min_version = 0;
  };

  // `versions` must outlive this object. Ids of tickets are above `first_ticket`.
  Pace(const StalenessOptions& options, const VersionClock* versions, uint64_t first_ticket)
      : options_(options), versions_(*versions), last_ticket_(first_ticket) {}

  // Returns how many tickets may be granted now.
  uint64_t Admissible() const;
  // Returns the tickets that this request has been granted before, or none.
  std::vector<Ticket> Granted(const AdmitRequest& request) const;
  // Grants request.count tickets, which must not be more than Admissible.
  std::vector<Ticket> Admit(const AdmitRequest& request, absl::Time now);
  // Ends the tickets of earlier incarnations of the actor. FailedPrecondition: a later one has asked.
  // Aborted: the actor has got tickets for a later request, so nobody waits for this one.
  absl::Status Replace(const AdmitRequest& request);
  // Renews leases. Returns how many of the tickets are still in use.
  size_t Renew(absl::Span<const uint64_t> tickets, absl::Time now);
  // Ends tickets unused. Returns how many were in use.
  size_t Return(absl::Span<const uint64_t> tickets);
  // Ends the tickets whose time is over, and with kWait and kDrop those whose item would be too old in any
  // case. Returns whether there were any.
  bool Expire(absl::Time now);

  // Returns whether an item whose oldest step has `min_version` may be inserted for a ticket. An error counts
  // the item as refused. NotFound: the ticket is not in use. InvalidArgument: no ticket, or steps of
  // a version before the ticket's, which ends the ticket.
  absl::Status Check(uint64_t ticket, int64_t min_version);
  // Uses up a ticket that Check has permitted, for an item in `slot`.
  void Place(uint64_t ticket, uint32_t slot);
  // Returns how many samples may be taken now.
  uint64_t SamplesAllowed() const;
  // Returns the slots of the next `n` samples, fewer if there are fewer items that will not be too old.
  std::vector<uint32_t> NextSlots(size_t n) const;
  // Returns the slot of the item that is sampled next, and counts that as sampled. Requires an item.
  uint32_t TakeNext();
  // Returns the slot of an item that must not be sampled any more because it is too old, or nullopt. The
  // caller removes it.
  std::optional<uint32_t> TooOld() const;
  // Says that an item has left for another reason than a sample. No effect if TakeNext has returned it.
  void Left(uint64_t ticket);
  // Forgets all tickets and items.
  void Clear();

  // The position that an item whose ticket was granted at commit `commit` must be sampled before.
  int64_t Deadline(uint64_t commit) const;

  uint64_t sampled() const { return sampled_; }
  // Raises the number of sampled items, which positions count.
  void set_sampled(uint64_t sampled) { sampled_ = sampled; }
  uint64_t running() const { return tickets_.size(); }
  uint64_t resident() const { return residents_.size(); }
  uint64_t last_ticket() const { return last_ticket_; }
  const Counts& counts() const { return counts_; }
  std::optional<Oldest> oldest() const;
  // Returns the number of commits when the ticket of a present item was granted.
  uint64_t CommitOf(uint64_t ticket) const { return residents_.at(ticket).commit; }
  // Returns why `count` tickets are not granted, or why a batch of `batch` waits for a rollout, as it follows
  // the table's name. Empty if it is not so.
  std::string WhyNotAdmitted(uint32_t count, absl::Time now) const;
  std::string WhyNoSample(uint64_t batch, absl::Time now) const;

  // Puts an item of a checkpoint back.
  void Restore(uint64_t ticket, const Resident& resident);
  // Lets ids of tickets begin above `ticket`.
  void SkipTickets(uint64_t ticket) { last_ticket_ = std::max(last_ticket_, ticket); }

 private:
  struct Running {
    std::string actor;
    uint64_t commit = 0;
    int64_t min_version = 0;
    absl::Time granted, end;  // end: of the lease
  };
  struct Actor {
    uint64_t incarnation = 0, sequence = 0;
    std::vector<Ticket> last;  // granted to the last request
    uint64_t running = 0;      // the number of its tickets in use
  };
  // The tickets granted at one commit that have not been sampled.
  struct Group {
    uint64_t running = 0, resident = 0;
  };

  // Removes a ticket in use from all lists.
  void Remove(std::map<uint64_t, Running>::iterator ticket);
  void SetEnd(uint64_t id, Running* ticket, absl::Time end);
  // Forgets the group if nothing is left of it.
  void DropIfEmpty(std::map<uint64_t, Group>::iterator group);
  // Returns how many items can be sampled, oldest first, before they are too old, whatever rollouts run.
  uint64_t FreshResidents() const;
  std::string OldestText(absl::Time now) const;

  const StalenessOptions options_;
  const VersionClock& versions_;
  uint64_t last_ticket_;
  uint64_t sampled_ = 0;
  std::map<uint64_t, Running> tickets_;             // in use, in the order of admission
  std::set<std::pair<absl::Time, uint64_t>> ends_;  // of these
  std::map<uint64_t, Resident> residents_;          // by ticket, thus in the order of admission
  std::map<uint64_t, Group> groups_;                // by commit
  std::map<std::string, Actor> actors_;
  Counts counts_;
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_STALENESS_PACE_H_
