// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_REPLICATED_REPLICATED_TABLES_H_
#define TANDEM_PS_REPLICATED_REPLICATED_TABLES_H_

// The replicated rows of a job's tables, and the protocol by which all workers change the set together.
// Between two changes the set is fixed. A change happens at a step boundary, while no pull and no push is
// under way:
//
//   1. The workers exchange the ids that they want. This is also the barrier after which no worker pushes.
//   2. Rank 0 asks the servers for the rows that are updated often, decides, and sends its decision to all.
//   3. Rank 0 writes the rows that leave to the servers; every worker reads the rows that join.
//   4. The workers exchange the result. After an error every worker returns it.
//
// A row that joins keeps its copy on the servers until it is overwritten, when the row leaves or is written
// back (WriteBack). If a worker dies in the middle of a change, no row is lost.
//
// A run starts synchronously (BeginStart): until its first change every row is on the servers, and late
// gradients of the rows that will be replicated would leave traces in the model and in the optimizer's state.
// Nothing is late then, so that no server can measure which rows would be stale. The first change chooses by
// the workers' counts of the ids in their batches and by the delay that is expected afterwards.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "ps/replicated/hot_set.h"
#include "ps/replicated/replicated_rows.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

// Where the rows of a table or feature live.
enum class Placement {
  kAuto,        // rows that are updated often within the delay of a push are replicated, the rest is sharded
  kSharded,     // on the servers
  kReplicated,  // in every worker, within the budget
};

// The calls to the servers that replication needs. ClientRowHome (client_row_home.h) makes them with a
// client. Used by one thread; each call blocks until its own deadline.
class RowHome {
 public:
  virtual ~RowHome() = default;
  // Returns at most `limit` rows of the table whose staleness is at least `min_staleness`, the stalest first.
  virtual absl::StatusOr<std::vector<HotRow>> FindHot(const std::string& table, double min_staleness,
                                                      uint64_t limit) = 0;
  // Returns the mean staleness of the table's recent pushes, in updates of the table: the one from which
  // FindHot computes the staleness of rows.
  virtual absl::StatusOr<double> Delay(const std::string& table) = 0;
  // Returns the rows, in the order of `ids`. An absent row reads as it would be created, and is not created.
  virtual absl::StatusOr<MovedRows> Read(const std::string& table, absl::Span<const uint64_t> ids) = 0;
  // Replaces the rows' values and state; `rows` is by table.
  virtual absl::Status Write(const std::map<std::string, MovedRows>& rows) = 0;
  // Applies what the table has accumulated (ps::Client::Flush).
  virtual absl::Status Flush(const std::string& table) = 0;
  // Sets the table's update mode on all servers (ps::Client::SetUpdateMode).
  virtual absl::Status SetMode(const std::string& table, const v1::UpdateMode& mode) = 0;
};

struct ReplicatedTableOptions {
  v1::TableConfig config;
  // False: the table has no replicated rows, and table() returns nullptr.
  bool replicated = true;
  // True: rows join because of their measured staleness. Ids that a worker has wanted join in either case.
  bool by_staleness = true;
  L2Scope l2_scope = L2Scope::kTouched;
  // True: BeginStart sets the table to mode SYNC, whether it has replicated rows or not.
  bool starts_synchronously = true;
};

struct ReplicationOptions {
  HotSetOptions hot_set;
  int rank = 0;
  int world_size = 1;
  // Sends `bytes` to all workers and returns the bytes of each, by rank. Blocks for a bounded time. May be
  // null if there is one worker.
  std::function<absl::StatusOr<std::vector<std::string>>(absl::string_view bytes)> all_gather;
  // Steps until the first change; the interval doubles after each change, up to `max_interval`.
  uint64_t first_interval = 20;
  uint64_t max_interval = 384;
  // Steps by which gradients will be late after a synchronous start.
  double expected_delay = 8;
};

// A change of the set of replicated rows, over all tables.
struct SetChange {
  uint64_t joined = 0;
  uint64_t left = 0;
  uint64_t rows = 0;  // after the change
};

struct ReplicationStatistics {
  uint64_t rows = 0;
  uint64_t bytes = 0;  // memory of one worker
  uint64_t joined = 0;
  uint64_t left = 0;
};

// Used by one thread, except table(), starting(), IsWanted, CountBatch and the Remember calls, which a lookup
// thread may make concurrently with anything but BeginStart, EndStart, Change and Restore. Every worker makes
// the same calls of these four at the same step.
class ReplicatedTables {
 public:
  // `home` outlives the result. InvalidArgument: a table does not allow replication (ReplicatedRows::Create).
  static absl::StatusOr<std::unique_ptr<ReplicatedTables>> Create(std::vector<ReplicatedTableOptions> tables,
                                                                  ReplicationOptions options, RowHome* home);

  size_t size() const { return tables_.size(); }
  // Returns the replicated rows of table `t`, or nullptr if it is not replicated.
  ReplicatedRows* table(size_t t) const { return tables_[t].rows.get(); }

  // Makes ids join at the next change, within the budget, and stay. To be called for every wanted id whose
  // row is not replicated or not known as wanted (IsWanted): rows that Restore has brought are not, and
  // Restore may have removed rows that were wanted before.
  void RememberWanted(size_t t, absl::Span<const uint64_t> ids);
  // Returns whether the replicated row in `slot` of table `t` is known as wanted.
  bool IsWanted(size_t t, uint32_t slot) const {
    return std::atomic_ref(tables_[t].wanted_slots[slot]).load(std::memory_order_relaxed) != 0;
  }
  // Keeps ids out of the table's replicated rows. Rank 0 decides, so only its calls have an effect.
  void RememberUnwanted(size_t t, absl::Span<const uint64_t> ids);

  // Makes the start synchronous: sets the tables that start so to mode SYNC on the servers, until the next
  // change or EndStart. To be called before the first step of a run, after a checkpoint was
  // loaded. Blocks for rank 0, which asks the servers.
  absl::Status BeginStart();
  // Ends a synchronous start without a choice, because the run ends: the tables have their modes again. No
  // effect otherwise. Requires what Change requires.
  absl::Status EndStart();
  // Returns whether the run is in its synchronous start.
  bool starting() const { return starting_; }
  // Counts the distinct ids of a batch of this worker that are not replicated and may be, so that the first
  // change can choose among them. No effect after the start.
  void CountBatch(size_t t, absl::Span<const uint64_t> ids);

  // Returns the step at whose beginning Change is due: `step` or a later one. Without tables that may have
  // replicated rows only the end of a start is due.
  uint64_t NextChange(uint64_t step);
  // Changes the set, and ends a synchronous start. No pull and no push of this worker may be under way, and
  // its caches may hold no deferred gradients (Client::PushDeferred). Blocks for other workers and servers,
  // each wait with its own deadline. After an error the replicas must not be used any more.
  absl::StatusOr<SetChange> Change(uint64_t step);

  // Updates all tables with the exchanged gradients of `step`.
  absl::Status Apply(uint64_t step, float learning_rate_factor);

  // Writes all replicated rows to the servers. Called by one worker, between steps; pulls and pushes of other
  // rows may be under way.
  absl::Status WriteBack();
  // Makes exactly the rows `ids` ([table], missing tables: none) replicated, and reads all of them from the
  // servers.
  absl::Status Restore(const std::vector<std::vector<uint64_t>>& ids);
  // Returns the replicated ids of each table.
  std::vector<std::vector<uint64_t>> ids() const;

  ReplicationStatistics statistics(size_t t) const;
  // Returns the number of rows that the budget refused at the last change. Rank 0 only.
  uint64_t refused() const { return refused_; }

 private:
  struct Table {
    ReplicatedTableOptions options;
    std::unique_ptr<ReplicatedRows> rows;
    absl::flat_hash_set<uint64_t> wanted;             // all that ever were
    absl::flat_hash_set<uint64_t> unwanted;           // likewise
    absl::flat_hash_map<uint64_t, uint64_t> counted;  // by id: batches of the start that contain it
    std::vector<uint64_t> newly_wanted;         // what the next change sends to the other workers, distinct
    absl::flat_hash_set<uint64_t> queued;       // the same ids
    mutable std::vector<uint8_t> wanted_slots;  // by slot of `rows`: whether `wanted` contains the id
    uint64_t joined = 0;
    uint64_t left = 0;
  };
  ReplicatedTables(std::vector<Table> tables, ReplicationOptions options, RowHome* home);

  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view bytes);
  // The ids that the workers have sent to each other before a change, by table.
  struct Gathered {
    std::vector<std::vector<uint64_t>> wanted;
    std::vector<absl::flat_hash_map<uint64_t, uint64_t>> counted;  // sums over workers
  };
  // Exchanges the ids. `step` is that of the change.
  absl::StatusOr<Gathered> Gather(uint64_t step);
  absl::StatusOr<std::vector<HotSetChange>> Decide(uint64_t step, const Gathered& gathered);
  // Returns the mean delay of a table's gradients, in updates of the table: in a synchronous start the one
  // that is expected after it.
  absl::StatusOr<double> DelayOf(const Table& table);
  // Returns the updates of a table in the synchronous start that ends before `step`, as many as its own mode
  // would have made.
  double UpdatesInStart(const Table& table, uint64_t step) const;
  // Rank 0: sets the tables that start synchronously to SYNC, or to their own modes.
  absl::Status SetModes(bool sync);
  absl::Status Move(const std::vector<HotSetChange>& changes);
  static void MarkWantedSlots(Table* table);
  // Returns the first error of any worker.
  absl::Status Agree(const absl::Status& mine, absl::string_view what);

  mutable absl::Mutex mutex_;  // guards what the Remember calls change
  std::vector<Table> tables_;
  const ReplicationOptions options_;
  RowHome* const home_;
  bool starting_ = false;
  uint64_t start_step_ = 0;  // the first step of the run, as soon as a change is scheduled
  bool scheduled_ = false;
  uint64_t next_change_ = 0;
  uint64_t interval_;
  uint64_t refused_ = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_REPLICATED_REPLICATED_TABLES_H_
