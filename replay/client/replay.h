// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_CLIENT_REPLAY_H_
#define TANDEM_REPLAY_CLIENT_REPLAY_H_

// The interface to replay tables, wherever they are: in this process (local_replay.h) or in a server.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "replay/staleness/ticket.h"
#include "replay/staleness/version_clock.h"
#include "replay/table/batch.h"
#include "replay/table/default_deadline.h"
#include "replay/table/table.h"
#include "replay/table/table_options.h"

namespace tandem::replay {

// Delivers the items of one writer. Not thread-safe.
class InsertStream {
 public:
  virtual ~InsertStream() = default;
  // Inserts `items` into a table, in order. Blocks until all are in the table, or `deadline`. Sets `inserted`
  // to the number of items, from the first, that are known to be in the table, or to have been left out
  // because of their tickets. After an error that MayRepeat (may_repeat.h) the caller may call again for the
  // same table, with the items after those; each is inserted exactly once. After another error one of the
  // items after those has been refused, and nothing of it and of some of the others has been inserted.
  // Errors: those of Table::Insert; NotFound, which lists the tables, if there is none of this name.
  virtual absl::Status Insert(const std::string& table, absl::Span<const NewItem> items, absl::Time deadline,
                              size_t* inserted) = 0;
  // Says that no later item refers to chunks with smaller keys, except those that are being inserted again.
  virtual void ReleaseBelow(uint64_t chunk_key) {}
};

// A set of tables. Thread-safe.
class Replay {
 public:
  virtual ~Replay() = default;

  // Creates a table. Idempotent: OK if it was created with the same options, also if its limits have changed
  // since. AlreadyExists if it was created with others, InvalidArgument as of Table::Create.
  virtual absl::Status CreateTable(const TableOptions& options) = 0;
  // Starts the stream of a writer. This object must outlive the stream. `writer` names it, in reports and,
  // with a server, among all writers: of two streams with one name, only the newer one can insert.
  virtual absl::StatusOr<std::unique_ptr<InsertStream>> OpenStream(absl::string_view writer) = 0;
  // Draws a batch. Blocks until the table's limiter permits it, or `deadline`. Errors: those of
  // Table::SampleItems, and NotFound. `sampler` names the caller in reports.
  virtual absl::StatusOr<Batch> Sample(absl::string_view table, const SampleSize& size,
                                       absl::Time deadline = DefaultDeadline(),
                                       absl::string_view sampler = "") = 0;
  // Changes priorities. Returns the number of items changed; the others have left the table. Errors: those of
  // Table::UpdatePriorities, and NotFound.
  virtual absl::StatusOr<uint64_t> UpdatePriorities(absl::string_view table, absl::Span<const uint64_t> keys,
                                                    absl::Span<const double> priorities) = 0;
  // Grants tickets for rollouts, for a table with StalenessKind::kPace. Blocks until they are granted, or
  // `deadline`. Grants fewer than asked for, at least one, if the learner and the caller would otherwise wait
  // for each other: see Table::Admit. A call after one that ended with DeadlineExceeded or Unavailable gets
  // the tickets which that one may have been granted. Errors: those of Table::Admit, and NotFound.
  virtual absl::StatusOr<std::vector<Ticket>> Admit(absl::string_view table, const AdmitRequest& request,
                                                    absl::Time deadline = DefaultDeadline()) = 0;
  // Renews the leases of tickets. Returns how many of them are in use; the others have ended. NotFound: there
  // is no such table.
  virtual absl::StatusOr<uint64_t> Renew(absl::string_view table, absl::Span<const uint64_t> tickets) = 0;
  // Gives back tickets that will not be used, so that others are granted at once. Returns as Renew does.
  virtual absl::StatusOr<uint64_t> ReturnTickets(absl::string_view table,
                                                 absl::Span<const uint64_t> tickets) = 0;
  // Says that the learners have published a version of the policy, after it can be pulled. To be called once
  // for each version; a repetition has no effect. A learner that starts or resumes commits the version that
  // it starts from, with a larger epoch, before it samples. rl::CommittedTable does so for a publisher of
  // weights. Blocks until `deadline` at most. Errors: those of VersionClock::Commit, and NotFound.
  virtual absl::Status Commit(absl::string_view table, const CommittedVersion& version,
                              absl::Time deadline = DefaultDeadline()) = 0;
  // Returns the state of a table, or NotFound. Blocks until `deadline` at most.
  virtual absl::StatusOr<TableInfo> Info(absl::string_view table,
                                         absl::Time deadline = DefaultDeadline()) = 0;
  // Says that no sample which ended without an answer will be made again. The items that a server may have
  // drawn for it are not given to later samples, and are not kept for them.
  virtual void ForgetUnanswered(absl::string_view table) {}
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_CLIENT_REPLAY_H_
