// SPDX-License-Identifier: Apache-2.0
#include "ps/server/checkpoint_service.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/checksummed_file.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "ps/checkpoint/chain.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/format.h"

namespace tandem::ps {
namespace {

// The files of one table, one for each server that wrote the checkpoint.
using TableFiles = std::vector<std::unique_ptr<TableFileReader>>;

// Returns an id that tells the saves of a table apart; not 0.
uint64_t NewSaveId() {
  std::random_device random;
  return uint64_t{random()} << 32 | random() | 1;
}

// Returns whether `file` of the checkpoint `base`, beside the one in `directory`, is of that save.
bool IsSave(const std::string& directory, const std::string& base, const std::string& file,
            uint64_t save_id) {
  const absl::StatusOr<std::unique_ptr<TableFileReader>> reader =
      TableFileReader::OpenBelow(RootOfCheckpoint(directory), absl::StrCat(base, "/", file));
  return reader.ok() && (*reader)->header().save_id() == save_id;
}

absl::Status CheckComplete(const std::string& table, const TableFiles& files) {
  const v1::TableFileHeader& first = files.front()->header();
  std::vector<bool> seen(first.num_servers());
  for (const auto& file : files) {
    const v1::TableFileHeader& header = file->header();
    if (header.num_servers() != first.num_servers() || header.num_buckets() != first.num_buckets() ||
        header.row_floats() != first.row_floats() || header.config().dim() != first.config().dim() ||
        header.config().optimizer().kind() != first.config().optimizer().kind() ||
        seen[header.server_index()]) {
      return absl::DataLossError(absl::StrCat(file->path(), " does not belong with ", files.front()->path(),
                                              ": another save wrote it"));
    }
    seen[header.server_index()] = true;
  }
  const auto missing = std::find(seen.begin(), seen.end(), false);
  if (missing != seen.end()) {
    return absl::DataLossError(absl::StrCat("table '", table, "': the file of server ",
                                            missing - seen.begin(), " of ", seen.size(),
                                            " is missing beside ", files.front()->path()));
  }
  return absl::OkStatus();
}

// Checks that the file is the one that the manifest lists. The footer's CRC stands for the CRCs of all
// buckets, which ReadBucket checks.
absl::Status CheckAgainstManifest(const TableFileReader& reader, const v1::CheckpointFile& file) {
  if (reader.bytes() != file.bytes()) {
    return absl::DataLossError(
        absl::StrCat(reader.path(), " has ", reader.bytes(), " bytes, the manifest says ", file.bytes()));
  }
  const bool other_footer = file.footer_crc32() != 0 && file.footer_crc32() != reader.footer_crc32();
  const bool other_clock = file.clock() != 0 && file.clock() != reader.header().version();
  if (!other_footer && !other_clock) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(reader.path(), " is not the file that the manifest lists: it is of clock ",
                   reader.header().version(), ", the manifest says ", file.clock(),
                   other_footer ? "; its contents differ" : "", "; did another save write it?"));
}

// Checks that the fields which decide a row's layout are those of the saved table. The learning rate, the
// update mode, the number of workers and the like may change.
absl::Status CheckCompatible(const v1::TableConfig& saved, const v1::TableConfig& here,
                             const std::string& path) {
  const auto differs = [&](absl::string_view field, const auto& was, const auto& is) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": table '", here.name(), "' was saved with ", field,
                                                   " ", was, ", here it has ", is));
  };
  if (saved.kind() != here.kind()) {
    return differs("kind", v1::TableConfig::Kind_Name(saved.kind()), v1::TableConfig::Kind_Name(here.kind()));
  }
  if (saved.row_type() != here.row_type()) {
    return differs("row_type", v1::TableConfig::RowType_Name(saved.row_type()),
                   v1::TableConfig::RowType_Name(here.row_type()));
  }
  if (saved.dim() != here.dim()) return differs("dim", saved.dim(), here.dim());
  if (saved.elements() != here.elements()) return differs("elements", saved.elements(), here.elements());
  if (saved.optimizer().kind() != here.optimizer().kind()) {
    return differs("optimizer", saved.optimizer().kind(), here.optimizer().kind());
  }
  return absl::OkStatus();
}

// Returns each worker's clock, the largest of all servers'. If the number of workers has changed, every
// worker starts at the largest clock of all.
absl::StatusOr<std::vector<uint64_t>> Clocks(const TableFiles& files, const v1::TableConfig& here) {
  const v1::TableFileHeader& first = files.front()->header();
  std::vector<uint64_t> clocks(first.worker_clock().begin(), first.worker_clock().end());
  for (const auto& file : files) {
    const auto& theirs = file->header().worker_clock();
    if (theirs.size() != static_cast<int>(clocks.size())) {
      return absl::DataLossError(absl::StrCat(file->path(), " counts ", theirs.size(), " workers, ",
                                              files.front()->path(), " ", clocks.size()));
    }
    for (size_t w = 0; w < clocks.size(); ++w) {
      const uint64_t clock = theirs[static_cast<int>(w)];
      if (clock != clocks[w] && file->header().config().update_mode().kind() == v1::UpdateMode::SYNC) {
        return absl::DataLossError(absl::StrCat(file->path(), " has worker ", w, " at step ", clock, ", ",
                                                files.front()->path(), " at step ", clocks[w],
                                                ": the servers saved at different moments"));
      }
      clocks[w] = std::max(clocks[w], clock);
    }
  }
  if (clocks.size() != here.num_workers()) {
    const uint64_t foremost = *std::max_element(clocks.begin(), clocks.end());
    clocks.assign(here.num_workers(), foremost);
  }
  return clocks;
}

}  // namespace

absl::Status CheckpointService::CheckDirectory(const std::string& directory) const {
  std::error_code error;
  if (std::filesystem::is_directory(directory, error)) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("server ", server_, ": ", directory,
                   " is no directory here: checkpoints need storage that every process sees"));
}

std::vector<uint32_t> CheckpointService::OwnBuckets() const {
  std::vector<uint32_t> buckets;
  for (uint32_t b = 0; b < shard_map_.num_buckets(); ++b) {
    if (shard_map_.OwnerOfBucket(b) == server_) buckets.push_back(b);
  }
  return buckets;
}

absl::Status CheckpointService::PrepareTable(ServerTable& table, const std::vector<v1::WorkerFence>& fences,
                                             bool with_id, v1::TableFileHeader* header) {
  table.Flush();
  if (table.config().update_mode().kind() == v1::UpdateMode::GBA) {
    v1::FlushRequest flush;
    flush.set_table(table.name());
    requests_.LogChange(RecordKind::kFlush, flush);
  }
  TANDEM_RETURN_IF_ERROR(table.Describe(header));
  header->set_server_index(server_);
  header->set_num_servers(shard_map_.num_servers());
  header->set_num_buckets(shard_map_.num_buckets());
  header->set_row_floats(table.storage()->row_floats());
  header->mutable_fences()->Add(fences.begin(), fences.end());
  if (with_id) header->set_save_id(NewSaveId());
  return absl::OkStatus();
}

uint64_t CheckpointService::BaseSaveId(const std::string& table, const std::shared_ptr<TableStorage>& storage,
                                       const std::string& name, const std::string& base) const {
  if (base.empty() || base != saved_name_ || base == name) return 0;
  const auto before = saved_tables_.find(table);
  const bool same = before != saved_tables_.end() && before->second.storage.lock() == storage;
  return same ? before->second.save_id : 0;
}

void CheckpointService::AddFile(const v1::TableFileHeader& header, const std::string& file_name,
                                const TableFileSummary& summary, v1::SaveCheckpointResponse* response) {
  response->add_files(file_name);
  response->set_bytes(response->bytes() + summary.bytes);
  v1::SavedFile* written = response->add_written();
  written->set_name(file_name);
  written->set_bytes(summary.bytes);
  written->set_crc32(summary.crc32);
  written->set_clock(header.version());
  written->set_footer_crc32(summary.footer_crc32);
  written->set_base(header.base().checkpoint());
}

absl::StatusOr<v1::SaveCheckpointResponse> CheckpointService::Finish(const absl::Status& status,
                                                                     const std::string& directory,
                                                                     v1::SaveCheckpointResponse response) {
  const absl::Status safe = status.ok() ? SyncDirectory(directory) : status;
  if (!safe.ok()) {
    for (const std::string& file : response.files()) ::unlink(absl::StrCat(directory, "/", file).c_str());
    return Annotate(safe, absl::StrCat("server ", server_, ": saving a checkpoint"));
  }
  absl::MutexLock lock(&statistics_mutex_);
  statistics_.set_checkpoint_saves(statistics_.checkpoint_saves() + 1);
  statistics_.set_checkpoint_bytes(response.bytes());
  statistics_.set_longest_checkpoint_pause_s(longest_pause_.seconds());
  for (const v1::SavedFile& file : response.written()) {
    statistics_.set_checkpoint_files(statistics_.checkpoint_files() + 1);
    if (file.base().empty()) continue;
    statistics_.set_checkpoint_delta_files(statistics_.checkpoint_delta_files() + 1);
  }
  return response;
}

absl::StatusOr<v1::SaveCheckpointResponse> CheckpointService::Save(const std::string& directory,
                                                                   const std::string& name,
                                                                   const std::string& base) {
  TANDEM_RETURN_IF_ERROR(CheckDirectory(directory));
  AwaitBegun();
  const std::vector<uint32_t> buckets = OwnBuckets();
  v1::SaveCheckpointResponse response;
  SavedTables saved;
  const absl::Status status = requests_.BetweenPushes(&longest_pause_, [&]() -> absl::Status {
    const std::vector<v1::WorkerFence> fences = requests_.SaveFences();
    for (const auto& table : tables_.All()) {
      v1::TableFileHeader header;
      TANDEM_RETURN_IF_ERROR(PrepareTable(*table, fences, /*with_id=*/!name.empty(), &header));
      const std::shared_ptr<TableStorage> storage = table->storage();
      if (!name.empty()) saved[table->name()] = {storage, header.save_id()};
      const std::string file_name = TableFileName(table->name(), server_, shard_map_.num_servers());
      const uint64_t base_id = BaseSaveId(table->name(), storage, name, base);
      if (base_id != 0 && IsSave(directory, base, file_name, base_id)) {
        header.mutable_base()->set_checkpoint(base);
        header.mutable_base()->set_save_id(base_id);
      }
      TANDEM_ASSIGN_OR_RETURN(
          const TableFileSummary summary,
          WriteTableFile(absl::StrCat(directory, "/", file_name), header, buckets, *storage, interrupted_));
      AddFile(header, file_name, summary, &response);
    }
    // After an error the last cut stays, so that the next save can still build on it.
    if (name.empty()) return absl::OkStatus();
    for (auto& [table, one] : saved) one.storage.lock()->MarkCut();
    saved_tables_ = std::move(saved);
    saved_name_ = name;
    return absl::OkStatus();
  });
  return Finish(status, directory, std::move(response));
}

void CheckpointService::AwaitBegun() {
  absl::MutexLock lock(&begun_mutex_);
  AwaitBegunLocked();
}

void CheckpointService::AwaitBegunLocked() {
  const auto none_is_written = [this]() ABSL_SHARED_LOCKS_REQUIRED(begun_mutex_) {
    return begun_ == nullptr || begun_->is_over;
  };
  if (begun_ != nullptr && !begun_->is_wanted) begun_->is_dropped = true;
  begun_mutex_.Await(absl::Condition(&none_is_written));  // writing ends when the server stops
}

absl::Status CheckpointService::Begin(const std::string& key, const std::string& name,
                                      const std::string& base) {
  {
    absl::MutexLock lock(&begun_mutex_);
    if (begun_ != nullptr && begun_->is_wanted && !begun_->is_over) {
      return absl::AlreadyExistsError(absl::StrCat("server ", server_, ": the checkpoint ", begun_->key,
                                                   " is not written yet: wait for it first"));
    }
    // The lock is still held. A checkpoint that somebody asks for from here on has been dropped.
    AwaitBegunLocked();
  }
  auto begun = std::make_shared<Begun>();
  begun->key = key;
  begun->name = name;
  begun->base = base;
  const absl::Status status = requests_.BetweenPushes(&longest_pause_, [&]() -> absl::Status {
    const std::vector<v1::WorkerFence> fences = requests_.SaveFences();
    for (const auto& table : tables_.All()) {
      Begun::Table one{.storage = table->storage()};
      TANDEM_RETURN_IF_ERROR(PrepareTable(*table, fences, /*with_id=*/!name.empty(), &one.header));
      one.base_save_id = BaseSaveId(table->name(), one.storage, name, base);
      one.storage->BeginCut();
      if (!name.empty()) begun->saved[table->name()] = {one.storage, one.header.save_id()};
      begun->tables.push_back(std::move(one));
    }
    return absl::OkStatus();
  });
  if (!status.ok()) {
    for (const Begun::Table& table : begun->tables) table.storage->EndCut(/*keep=*/false);
    return Annotate(status, absl::StrCat("server ", server_, ": beginning a checkpoint"));
  }
  absl::MutexLock lock(&begun_mutex_);
  begun_ = std::move(begun);
  return absl::OkStatus();
}

void CheckpointService::Want(const std::string& key) {
  absl::MutexLock lock(&begun_mutex_);
  if (begun_ != nullptr && begun_->key == key && !begun_->is_dropped) begun_->is_wanted = true;
}

absl::Status CheckpointService::AwaitWanted() {
  constexpr absl::Duration kPoll = absl::Milliseconds(100);  // between looks at interrupted_
  const absl::Time deadline = MonotonicNow() + kMostUnwanted;
  const auto decided = [this]() ABSL_SHARED_LOCKS_REQUIRED(begun_mutex_) {
    return begun_->is_wanted || begun_->is_dropped;
  };
  absl::MutexLock lock(&begun_mutex_);
  while (!AwaitFor(&begun_mutex_, absl::Condition(&decided), kPoll)) {
    if (interrupted_) {
      return absl::CancelledError(
          "the checkpoint was abandoned: the server is stopping, or has handed its shard over");
    }
    if (MonotonicNow() < deadline) continue;
    return absl::DeadlineExceededError(absl::StrCat("server ", server_, ": the checkpoint ", begun_->key,
                                                    " is abandoned, since no SaveCheckpoint came for ",
                                                    absl::FormatDuration(kMostUnwanted),
                                                    ": has the worker died that began it?"));
  }
  if (begun_->is_wanted) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("server ", server_, ": the checkpoint ", begun_->key, " gave way to another"));
}

bool CheckpointService::IsWriting() const {
  absl::MutexLock lock(&begun_mutex_);
  return begun_ != nullptr && begun_->is_wanted && !begun_->is_over;
}

absl::StatusOr<BucketChanges> CheckpointService::VisitBegun(Begun& begun, Begun::Table& table,
                                                            uint32_t bucket, TableStorage::RowVisitor visit) {
  std::optional<RequestHandler::PushPause> pause;
  std::optional<LongestTime::Timer> timer;
  const auto look = [&] {
    if (pause.has_value()) return;
    uint64_t copied = 0;
    for (const Begun::Table& one : begun.tables) copied += one.storage->cut_bytes();
    begun.most_copied = std::max(begun.most_copied, copied);
    if (copied <= max_copied_bytes_) return;
    timer.emplace(&longest_pause_);
    pause.emplace(&requests_);
  };
  // A table with `spill` holds the bucket's lock meanwhile, and a push may wait for it.
  const bool may_look_within = !table.header.config().spill();
  uint64_t rows = 0;
  look();
  absl::StatusOr<BucketChanges> changes =
      table.storage->VisitCut(bucket, /*whole=*/!table.header.has_base(),
                              [&](uint64_t id, const float* row, const RowHistory& history) {
                                if (before_row_ != nullptr) before_row_();
                                if (may_look_within && ++rows % kRowsBetweenLooks == 0) look();
                                visit(id, row, history);
                              });
  if (!pause.has_value()) return changes;
  pause.reset();
  timer.reset();
  return changes;
}

absl::StatusOr<v1::SaveCheckpointResponse> CheckpointService::WriteBegun(const std::string& directory) {
  std::shared_ptr<Begun> begun;
  {
    absl::MutexLock lock(&begun_mutex_);
    begun = begun_;
  }
  TANDEM_RETURN_IF_ERROR(CheckDirectory(directory));
  const std::vector<uint32_t> buckets = OwnBuckets();
  v1::SaveCheckpointResponse response;
  const auto write = [&](Begun::Table& table) -> absl::Status {
    v1::TableFileHeader& header = table.header;
    const std::string file_name = TableFileName(header.config().name(), server_, shard_map_.num_servers());
    if (table.base_save_id != 0 && IsSave(directory, begun->base, file_name, table.base_save_id)) {
      header.mutable_base()->set_checkpoint(begun->base);
      header.mutable_base()->set_save_id(table.base_save_id);
    }
    const auto source = [&](uint32_t bucket, TableStorage::RowVisitor visit) {
      return VisitBegun(*begun, table, bucket, visit);
    };
    TANDEM_ASSIGN_OR_RETURN(
        const TableFileSummary summary,
        WriteTableFile(absl::StrCat(directory, "/", file_name), header, buckets, source, interrupted_));
    AddFile(header, file_name, summary, &response);
    return absl::OkStatus();
  };
  absl::Status status;
  for (Begun::Table& table : begun->tables) {
    if (status.ok()) status = write(table);
  }
  return Finish(status, directory, std::move(response));
}

void CheckpointService::EndBegun(absl::StatusOr<v1::SaveCheckpointResponse> result) {
  std::shared_ptr<Begun> begun;
  {
    absl::MutexLock lock(&begun_mutex_);
    begun = begun_;
  }
  const bool remembered = result.ok() && !begun->name.empty();
  for (const Begun::Table& table : begun->tables) table.storage->EndCut(/*keep=*/remembered);
  if (remembered) {
    saved_tables_ = std::move(begun->saved);
    saved_name_ = begun->name;
  }
  if (result.ok()) {
    absl::MutexLock lock(&statistics_mutex_);
    statistics_.set_checkpoint_async_saves(statistics_.checkpoint_async_saves() + 1);
    statistics_.set_checkpoint_copied_bytes(
        std::max(statistics_.checkpoint_copied_bytes(), begun->most_copied));
  }
  begun->tables.clear();  // releases tables that were replaced meanwhile
  absl::MutexLock lock(&begun_mutex_);
  begun->result = std::move(result);
  begun->is_over = true;
}

absl::StatusOr<v1::SaveCheckpointResponse> CheckpointService::FinishBegun(const std::string& key) {
  absl::MutexLock lock(&begun_mutex_);
  if (begun_ == nullptr || begun_->key != key || !begun_->is_over) {
    return absl::NotFoundError(absl::StrCat(
        "server ", server_, ": the checkpoint ", key,
        " is not begun here: the server was started again since, or another checkpoint was begun"));
  }
  return begun_->result;
}

void CheckpointService::AddStatistics(v1::ServerStatistics* statistics) const {
  absl::MutexLock lock(&statistics_mutex_);
  statistics->MergeFrom(statistics_);
}

absl::StatusOr<v1::LoadCheckpointResponse> CheckpointService::Load(const std::string& directory) {
  absl::StatusOr<v1::LoadCheckpointResponse> loaded = LoadTables(directory);
  if (!loaded.ok()) {
    return Annotate(loaded.status(), absl::StrCat("server ", server_, ": loading a checkpoint"));
  }
  return loaded;
}

absl::StatusOr<v1::LoadCheckpointResponse> CheckpointService::LoadTables(const std::string& directory) {
  TANDEM_ASSIGN_OR_RETURN(const v1::CheckpointManifest manifest, ReadManifest(directory));
  std::map<std::string, TableFiles> saved;
  for (const v1::CheckpointFile& file : manifest.files()) {
    if (!absl::EndsWith(file.name(), kTableFileSuffix)) continue;
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<TableFileReader> reader,
                            TableFileReader::Open(absl::StrCat(directory, "/", file.name())));
    TANDEM_RETURN_IF_ERROR(CheckAgainstManifest(*reader, file));
    TableFiles& files = saved[reader->header().config().name()];
    files.push_back(std::move(reader));
  }
  for (const auto& table : tables_.All()) {
    if (saved.count(table->name()) == 0) {
      return absl::NotFoundError(absl::StrCat(
          directory, " holds no table '", table->name(), "'; it has ", saved.empty() ? "none" : "",
          absl::StrJoin(saved, ", ", [](std::string* out, const auto& entry) { out->append(entry.first); })));
    }
  }

  // Everything is read into new storage; the tables change only when all of it has been read without errors.
  struct Loaded {
    std::shared_ptr<ServerTable> table;
    std::shared_ptr<TableStorage> storage;
    uint64_t version = 0;
    std::vector<uint64_t> clocks;
  };
  std::vector<Loaded> loaded;
  std::vector<v1::WorkerFence> fences;
  bool same_servers = true;
  size_t new_tables = 0;
  uint64_t new_bytes = 0, loaded_bytes = 0;
  v1::LoadCheckpointResponse response;
  for (const auto& [name, files] : saved) {
    TANDEM_RETURN_IF_ERROR(CheckComplete(name, files));
    Loaded& to = loaded.emplace_back();
    absl::StatusOr<std::shared_ptr<ServerTable>> table = tables_.Find(name);
    if (!table.ok()) {
      TANDEM_RETURN_IF_ERROR(
          tables_.CheckNewTable(files.front()->header().config(), &new_tables, &new_bytes));
    }
    to.table = table.ok() ? *table : tables_.NewTable(files.front()->header().config(), nullptr);
    const v1::TableConfig config = to.table->config();
    TANDEM_ASSIGN_OR_RETURN(to.storage, tables_.NewStorage(config));
    const uint64_t made = to.storage->rows();
    to.storage->Clear();
    TANDEM_ASSIGN_OR_RETURN(to.clocks, Clocks(files, config));
    // Set before rows are read: the rows that leave memory meanwhile are chosen by their age.
    for (const auto& file : files) to.version = std::max(to.version, file->header().version());
    to.storage->SetClock(to.version);
    for (const auto& file : files) {
      TANDEM_RETURN_IF_ERROR(CheckCompatible(file->header().config(), config, file->path()));
      TANDEM_RETURN_IF_ERROR(LoadRows(*file, config, loaded_bytes, *to.storage));
      const v1::TableFileHeader& header = file->header();
      const bool same = header.num_servers() == shard_map_.num_servers() &&
                        header.num_buckets() == shard_map_.num_buckets();
      same_servers = same_servers && same;
      if (!same || header.server_index() == server_) {
        fences.insert(fences.end(), header.fences().begin(), header.fences().end());
      }
    }
    if (config.kind() == v1::TableConfig::DENSE && to.storage->rows() != made) {
      return absl::DataLossError(absl::StrCat(directory, ": dense table '", name, "' has ",
                                              to.storage->rows(), " of this server's ", made, " rows"));
    }
    loaded_bytes += to.storage->Statistics().bytes;
    response.set_rows(response.rows() + to.storage->rows());
  }
  TANDEM_RETURN_IF_ERROR(requests_.BetweenPushes([&](RequestHandler::Waiters* released) {
    for (Loaded& one : loaded) {
      one.table->Install(std::move(one.storage), one.version, one.clocks, released);
      tables_.Add(one.table);
    }
    requests_.RestoreFences(fences, same_servers);
    return after_load_ ? after_load_() : absl::OkStatus();
  }));
  return response;
}

absl::Status CheckpointService::LoadRows(TableFileReader& file, const v1::TableConfig& config,
                                         uint64_t other_bytes, TableStorage& storage) {
  constexpr int kBucketsBetweenChecks = 16;
  if (file.header().row_floats() != storage.row_floats()) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": rows of ", file.header().row_floats(),
                                                   " floats, the table's optimizer keeps ",
                                                   storage.row_floats()));
  }
  const bool same_buckets = file.header().num_buckets() == shard_map_.num_buckets();
  const v1::AdmissionConfig& saved = file.header().config().admission();
  const bool same_admission =
      saved.kind() == config.admission().kind() && saved.counters() == config.admission().counters();
  TANDEM_ASSIGN_OR_RETURN(TableChain chain, TableChain::Open(&file));
  int buckets = 0;
  for (const uint32_t bucket : chain.buckets()) {
    if (buckets++ % kBucketsBetweenChecks == 0) {
      TANDEM_RETURN_IF_ERROR(tables_.CheckLoadedBytes(other_bytes + storage.Statistics().bytes));
    }
    if (same_buckets && shard_map_.OwnerOfBucket(bucket) != server_) continue;
    absl::Status restored;
    const auto restore = [&](uint64_t id, const float* row, const RowHistory& history) {
      if (!same_buckets && shard_map_.OwnerOf(id) != server_) return;
      if (restored.ok()) restored = storage.Restore(id, row, history);
    };
    TANDEM_ASSIGN_OR_RETURN(const BucketChanges read, chain.ReadBucket(bucket, restore));
    TANDEM_RETURN_IF_ERROR(restored);
    if (stopping_) return absl::CancelledError("the server is stopping");
    // Counters of another admission policy, or of other buckets, mean nothing here: ids are counted anew.
    if (read.filter.empty() || !same_buckets || !same_admission) continue;
    if (!storage.RestoreFilter(bucket, read.filter)) {
      return absl::DataLossError(absl::StrCat(file.path(), ": bucket ", bucket, " has ", read.filter.size(),
                                              " bytes of admission counters, which is not what they need"));
    }
  }
  return tables_.CheckLoadedBytes(other_bytes + storage.Statistics().bytes);
}

}  // namespace tandem::ps
