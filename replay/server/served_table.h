// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_SERVER_SERVED_TABLE_H_
#define TANDEM_REPLAY_SERVER_SERVED_TABLE_H_

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "replay/server/insert_fence.h"
#include "replay/table/table.h"

namespace tandem::replay {

// A table of a server with the inserts that it has taken.
struct ServedTable {
  std::shared_ptr<Table> table;
  InsertFence fence;  // changes under the table's lock
};

// The tables of a server by name. Thread-safe.
class ServedTables {
 public:
  static constexpr size_t kMaxTables = 1024;

  // `clock` must outlive this object and its tables.
  explicit ServedTables(Clock* clock) : clock_(clock) {}

  // Creates a table. OK if it exists with the same options, AlreadyExists if with others, ResourceExhausted
  // if there are kMaxTables, InvalidArgument as of Table::Create.
  absl::Status Create(const TableOptions& options);
  // Adds a table of a checkpoint. AlreadyExists if the name is in use.
  absl::Status Add(std::shared_ptr<ServedTable> table);
  // Returns a table. NotFound, which lists the tables, if there is none of this name.
  absl::StatusOr<std::shared_ptr<ServedTable>> Find(absl::string_view name) const;
  // Returns all tables, ordered by name.
  std::vector<std::shared_ptr<ServedTable>> All() const;
  void Stop();

 private:
  Clock* const clock_;
  mutable absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<ServedTable>, std::less<>> tables_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_SERVER_SERVED_TABLE_H_
