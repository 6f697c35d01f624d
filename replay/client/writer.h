// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_CLIENT_WRITER_H_
#define TANDEM_REPLAY_CLIENT_WRITER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/numeric/tensor.h"
#include "replay/chunks/chunk.h"
#include "replay/chunks/signature.h"
#include "replay/chunks/trajectory.h"
#include "replay/client/replay.h"
#include "replay/client/ticket_holder.h"

namespace tandem::replay {

// The columns that a writer adds to those of its user: u8, 1 for the first step of an episode, and i64, the
// version of the policy that acted.
inline constexpr char kIsFirstColumn[] = "is_first";
inline constexpr char kPolicyVersionColumn[] = "policy_version";

// Describes a step besides its values.
struct StepInfo {
  bool is_first = false;  // the first step of an episode; a writer's first step always is
  int64_t policy_version = 0;
};

// Consecutive steps of a writer. A plain value, from Writer::Last or Writer::Stack.
struct Window {
  uint64_t first = 0;         // the number of its first step; steps count from 0
  uint32_t steps = 0;         // 0: no window
  uint32_t repeat_first = 0;  // how often the first step is repeated in front
};

// A column of an item.
struct ItemColumn {
  absl::string_view name;    // in the item
  absl::string_view source;  // the writer's column, or kIsFirstColumn, or kPolicyVersionColumn
  Window window;
};

struct WriterOptions {
  std::string name;  // in reports; with a server it must be unique
  // Steps of a chunk. An item is delivered once the chunk of its last step is complete. Items that overlap
  // share chunks; sampled items keep whole chunks in memory.
  uint32_t chunk_steps = 8;
  // How many of the last steps windows may refer to.
  uint32_t history_steps = 128;
  // Largest number of items that wait for delivery, because their chunk is not complete or their table takes
  // no inserts.
  uint32_t max_pending_items = 4096;
  // Append and CreateItem deliver nothing and renew no tickets, so they never block. The caller calls Deliver
  // while delivery_due() returns true.
  bool deliver_on_request = false;
};

// Writes the steps of one environment, and makes items of them. Not thread-safe.
class Writer {
 public:
  // `replay` must outlive the writer. Errors: InvalidArgument for columns that Signature refuses or that have
  // a reserved name, and for options out of range; those of Replay::OpenStream.
  static absl::StatusOr<std::unique_ptr<Writer>> Create(Replay* replay, std::vector<Column> columns,
                                                        WriterOptions options = {});

  // Appends a step: one value for each column, in their order, which is copied. If this completes a chunk,
  // then delivers the items that wait for it, which blocks while their tables take no inserts, at most until
  // `deadline`, or for kDefaultWait. If an item was made of the step before, one is expected of this step as
  // well, and delivers them; or the next call of Append does. Errors:
  //
  // - InvalidArgument: number, type or size of the values differ from the columns. No step has been appended.
  // - otherwise those of InsertStream::Insert: the step has been appended, and items remain to be delivered
  // by
  //   the next call. Items that the table refuses (InvalidArgument, ResourceExhausted, NotFound) are dropped.
  absl::Status Append(absl::Span<const ConstTensorView> values, const StepInfo& info = {},
                      std::optional<absl::Time> deadline = std::nullopt);

  // Returns the last `steps` steps, leaving out the `skip` newest ones. A window without steps if the current
  // episode has fewer, or fewer are in reach of history_steps. With `across_episodes` the window may begin in
  // an earlier episode, as unrolls do whose columns say where episodes end.
  Window Last(uint32_t steps, uint32_t skip = 0, bool across_episodes = false) const;
  // Returns such a window in the episode of its last step. If the episode has fewer steps, its first one is
  // repeated in front, as frame stacks do.
  Window Stack(uint32_t steps, uint32_t skip = 0) const;
  // Returns the number of steps of the current episode.
  uint64_t episode_steps() const { return next_step_ - episode_begin_; }

  // Makes an item of `columns`, or of all the user's columns over one window. Without a priority it gets the
  // largest one so far given to an item of the table. The item is delivered as soon as its last chunk is
  // complete, which may be in this call: then it blocks as Append does. Errors:
  //
  // - InvalidArgument: a column that does not exist or occurs twice, a window without steps or out of reach,
  // or
  //   a priority that is negative or not finite. There is no item.
  // - ResourceExhausted: max_pending_items wait for delivery. There is no item.
  // - otherwise as of Append
  absl::Status CreateItem(absl::string_view table, std::optional<double> priority,
                          absl::Span<const ItemColumn> columns,
                          std::optional<absl::Time> deadline = std::nullopt);
  absl::Status CreateItem(absl::string_view table, std::optional<double> priority, const Window& window,
                          std::optional<absl::Time> deadline = std::nullopt);

  // Makes the next item for `table`, which must have StalenessKind::kPace, use this ticket. Tickets are used
  // in the order of the calls. Append renews them until the items are in the table, as long as it is called
  // more often than their leases end. When it renews one that has ended and that no item uses yet, it forgets
  // the ticket and returns NotFound: the step has been appended, but the rollout is in vain. An item whose
  // ticket has ended is refused (NotFound) and dropped.
  void Hold(absl::string_view table, const Ticket& ticket);

  // Completes the current chunk with the steps that it has and delivers all items. Blocks at most until
  // `deadline`. To be called at the end of an episode or before the writer is destroyed, which drops items.
  absl::Status Flush(absl::Time deadline = DefaultDeadline());

  // Delivers the items whose chunks are complete, and renews the tickets whose leases have run for a third.
  // Blocks while their tables take no inserts, at most until `deadline`. Errors are those of Append.
  absl::Status Deliver(absl::Time deadline = DefaultDeadline());
  // Returns whether Deliver has something to do that Append and CreateItem have left to it, or that an
  // earlier delivery could not do.
  bool delivery_due() const;

  // Returns the tickets of rollouts whose items are not in their tables, by table. An actor that fails gives
  // them back (Replay::ReturnTickets), so that others need not wait for the end of their leases.
  const std::deque<TicketHolder>& held_tickets() const { return tickets_; }

  // Returns the number of items that have not been delivered.
  size_t pending_items() const { return pending_; }
  // Returns the number of items that were refused: by their table, for lack of memory, or because there is no
  // such table or a newer writer of this name. They are lost; the errors said why. Items of tickets are
  // counted by their table.
  uint64_t dropped_items() const { return dropped_; }

 private:
  // An item whose chunks may not be complete yet.
  struct PendingItem {
    std::optional<double> priority;
    std::shared_ptr<const ItemLayout> layout;
    std::vector<Window> windows;  // of each column
    uint64_t first = 0, end = 0;  // the steps of all windows
    int64_t min_version = 0, max_version = 0;
    uint64_t ticket = 0;
  };
  // The items of one table, in the order of their creation. `ready` have complete chunks.
  struct TableQueue {
    std::string table;
    std::deque<PendingItem> pending;
    std::vector<NewItem> ready;
  };
  struct StoredChunk {
    uint64_t first = 0;
    std::shared_ptr<const Chunk> chunk;
  };

  Writer(Replay* replay, std::unique_ptr<InsertStream> stream, std::shared_ptr<const Signature> signature,
         size_t columns, WriterOptions options);

  uint64_t oldest_step() const;
  absl::StatusOr<std::shared_ptr<const ItemLayout>> Layout(absl::Span<const ItemColumn> columns);
  absl::Status Add(absl::string_view table, PendingItem item, std::optional<absl::Time> deadline);
  // Turns the steps of the current chunk into a chunk, if there are any.
  void CutChunk();
  void DropOldChunks();
  // Builds the content of an item, whose chunks must be complete.
  std::shared_ptr<const Trajectory> Build(const PendingItem& item) const;
  // Delivers now, or, with deliver_on_request, later.
  absl::Status DeliverOrDefer(std::optional<absl::Time> deadline);
  absl::Status DeliverTo(TableQueue* queue, absl::Time deadline);
  // Forgets the first `items` of the queue, which are in the table or refused.
  void RemoveReady(TableQueue* queue, size_t items);
  // Renews the tickets of tables with a lease that has run for a third.
  absl::Status RenewTickets();

  Replay* const replay_;
  const std::unique_ptr<InsertStream> stream_;
  const std::shared_ptr<const Signature> signature_;  // the user's columns, then the two of the writer
  const size_t columns_;                              // the number of the user's columns
  const WriterOptions options_;
  std::shared_ptr<const ItemLayout> all_columns_;
  std::vector<std::shared_ptr<const ItemLayout>> layouts_;  // those that have been used

  uint64_t next_step_ = 0;      // the number of the next step
  uint64_t episode_begin_ = 0;  // the number of the episode's first step
  uint64_t next_chunk_ = 1;
  // The current chunk: chunk_steps values of the first column, and so on.
  std::unique_ptr<char[]> current_;
  uint32_t current_steps_ = 0;
  std::deque<StoredChunk> chunks_;       // complete, oldest first
  std::deque<int64_t> versions_;         // of the steps in reach, oldest first
  std::deque<uint64_t> episode_begins_;  // in reach, oldest first; the first may be older
  std::vector<TableQueue> queues_;
  size_t pending_ = 0;
  bool item_follows_ = false;  // an item ends with the newest step
  bool delivery_due_ = false;  // items wait for the call after the one that completed their chunk
  bool deferred_ = false;      // with deliver_on_request: Deliver is to be called
  uint64_t dropped_ = 0;
  std::deque<TicketHolder> tickets_;  // of each table; those whose items are not in it yet
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_CLIENT_WRITER_H_
