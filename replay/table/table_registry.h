// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_TABLE_TABLE_REGISTRY_H_
#define TANDEM_REPLAY_TABLE_TABLE_REGISTRY_H_

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/status.h"
#include "replay/table/table.h"

namespace tandem::replay {

// A table of a registry. Registries may keep more with it, in a derived struct.
struct TableEntry {
  std::shared_ptr<Table> table;
};

// Tables by name. `Entry` is TableEntry or derived from it. Thread-safe.
template <typename Entry = TableEntry>
class TableRegistry {
 public:
  static constexpr size_t kMaxTables = 1024;

  // `clock` must outlive this object and its tables. `first_serial` is for Table::Create.
  explicit TableRegistry(Clock* clock, uint64_t first_serial = 0)
      : clock_(clock), first_serial_(first_serial) {}

  // Creates a table. OK if it was created with the same options, AlreadyExists if with others,
  // ResourceExhausted if there are kMaxTables, InvalidArgument as of Table::Create.
  absl::Status Create(const TableOptions& options) {
    auto entry = std::make_shared<Entry>();
    TANDEM_ASSIGN_OR_RETURN(entry->table, Table::Create(options, clock_, first_serial_));
    absl::MutexLock lock(&mutex_);
    if (const auto found = tables_.find(options.name); found != tables_.end()) {
      if (found->second->table->created_options() == options) return absl::OkStatus();
      return absl::AlreadyExistsError(
          absl::StrCat("table '", options.name,
                       "' exists and was created with other options; use these, or another name"));
    }
    if (tables_.size() >= kMaxTables) {
      return absl::ResourceExhaustedError(
          absl::StrCat("table '", options.name, "': there are ", kMaxTables, " tables, which is the limit"));
    }
    tables_.emplace(options.name, std::move(entry));
    return absl::OkStatus();
  }
  // Adds a table that was made elsewhere, such as one of a checkpoint. AlreadyExists if the name is in use.
  absl::Status Add(std::shared_ptr<Entry> entry) {
    absl::MutexLock lock(&mutex_);
    const std::string name = entry->table->name();
    if (tables_.emplace(name, std::move(entry)).second) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat("table '", name, "' exists"));
  }
  // Returns a table. NotFound, which lists the tables, if there is none of this name.
  absl::StatusOr<std::shared_ptr<Entry>> Find(absl::string_view name) const {
    absl::MutexLock lock(&mutex_);
    if (const auto found = tables_.find(name); found != tables_.end()) return found->second;
    return absl::NotFoundError(absl::StrCat(
        "there is no table '", name, "'; there are: ",
        tables_.empty() ? "none" : absl::StrJoin(tables_, ", ", [](std::string* out, const auto& entry) {
          out->append(entry.first);
        })));
  }
  // Returns all tables, ordered by name.
  std::vector<std::shared_ptr<Entry>> All() const {
    std::vector<std::shared_ptr<Entry>> all;
    absl::MutexLock lock(&mutex_);
    for (const auto& [name, entry] : tables_) all.push_back(entry);
    return all;
  }
  // Ends all waiting calls of all tables, and all later ones, with `status`.
  void Stop(const absl::Status& status) {
    for (const std::shared_ptr<Entry>& entry : All()) entry->table->Stop(status);
  }

 private:
  Clock* const clock_;
  const uint64_t first_serial_;
  mutable absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>, std::less<>> tables_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_TABLE_TABLE_REGISTRY_H_
