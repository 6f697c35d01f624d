// SPDX-License-Identifier: Apache-2.0
#include "ps/checkpoint/chain.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "ps/storage/admission_filter.h"

namespace tandem::ps {
namespace {

namespace fs = std::filesystem;

// Checks that `base` is the file on which `file` builds.
absl::Status CheckLink(const TableFileReader& file, const TableFileReader& base) {
  const v1::TableFileHeader& a = file.header();
  const v1::TableFileHeader& b = base.header();
  if (a.base().save_id() != b.save_id()) {
    return absl::DataLossError(absl::StrCat(file.path(), " builds on another save than ", base.path(),
                                            ": the checkpoint ", a.base().checkpoint(),
                                            " was replaced since"));
  }
  if (a.config().name() != b.config().name() || a.config().dim() != b.config().dim() ||
      a.config().row_type() != b.config().row_type() || a.row_floats() != b.row_floats() ||
      a.num_buckets() != b.num_buckets() || a.num_servers() != b.num_servers() ||
      a.server_index() != b.server_index()) {
    return absl::DataLossError(
        absl::StrCat(file.path(), " does not belong with ", base.path(), ", on which it builds"));
  }
  return absl::OkStatus();
}

// The rows of one bucket that newer files of a chain have changed.
class Overlay {
 public:
  explicit Overlay(size_t row_floats) : row_floats_(row_floats) {}

  // Adds what one file says. Files are added from the newest to the oldest.
  void AddRow(uint64_t id, const float* row, const RowHistory& history) {
    entries_.push_back({id, history, /*removed=*/false, rows_.size()});
    rows_.insert(rows_.end(), row, row + row_floats_);
  }
  void AddRemoved(absl::Span<const uint64_t> ids) {
    for (const uint64_t id : ids) entries_.push_back({id, {}, /*removed=*/true, 0});
  }
  // Leaves one entry for each id, that of the newest file. A row counts before a removal of the same file.
  void Sort() {
    const auto by_id = [](const Entry& a, const Entry& b) { return a.id < b.id; };
    std::stable_sort(entries_.begin(), entries_.end(), by_id);
    const auto same_id = [](const Entry& a, const Entry& b) { return a.id == b.id; };
    entries_.erase(std::unique(entries_.begin(), entries_.end(), same_id), entries_.end());
  }
  // Visits the changed rows whose ids are below `limit` and that have not been visited.
  void VisitBelow(uint64_t limit, TableStorage::RowVisitor visit) {
    while (next_ < entries_.size() && entries_[next_].id < limit) VisitNext(visit);
  }
  void VisitRest(TableStorage::RowVisitor visit) {
    while (next_ < entries_.size()) VisitNext(visit);
  }
  // Returns whether `id` was changed. Requires VisitBelow(id) before; visits the row if it still exists.
  bool VisitIfChanged(uint64_t id, TableStorage::RowVisitor visit) {
    if (next_ == entries_.size() || entries_[next_].id != id) return false;
    VisitNext(visit);
    return true;
  }

 private:
  struct Entry {
    uint64_t id;
    RowHistory history;
    bool removed;
    size_t at;  // in rows_
  };
  void VisitNext(TableStorage::RowVisitor visit) {
    const Entry& entry = entries_[next_++];
    if (!entry.removed) visit(entry.id, rows_.data() + entry.at, entry.history);
  }

  const size_t row_floats_;
  std::vector<Entry> entries_;
  std::vector<float> rows_;
  size_t next_ = 0;
};

}  // namespace

std::string RootOfCheckpoint(const std::string& directory) {
  fs::path path(directory);
  if (!path.has_filename()) path = path.parent_path();  // "dir/step-1/"
  std::error_code error;
  const bool plain = path.has_filename() && path.filename() != "." && path.filename() != "..";
  // A symbolic link has other neighbours than its target: servers open checkpoints as /proc/self/fd/N.
  if (!plain || fs::is_symlink(path, error)) return (path / "..").string();
  return path.has_parent_path() ? path.parent_path().string() : ".";
}

absl::Status TableChain::Add(TableFileReader* reader, std::unique_ptr<TableFileReader> owned) {
  File& file = files_.emplace_back(File{reader, std::move(owned), {}});
  for (const v1::BucketIndex& bucket : reader->footer().buckets()) {
    file.buckets[bucket.bucket()] = &bucket;
  }
  for (const auto& [bucket, index] : files_.front().buckets) {
    if (!file.buckets.contains(bucket)) {
      return absl::DataLossError(absl::StrCat(files_.front().reader->path(), " has a bucket ", bucket,
                                              " that is not in ", reader->path(), ", on which it builds"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TableChain> TableChain::Open(TableFileReader* newest) {
  TableChain chain;
  TANDEM_RETURN_IF_ERROR(chain.Add(newest, nullptr));
  while (true) {
    const TableFileReader& file = *chain.files_.back().reader;
    if (!file.builds_on_another()) return chain;
    const fs::path path(file.path());
    const std::string& name = file.header().base().checkpoint();
    if (chain.files_.size() == kMaxChain || !IsCheckpointName(name)) {
      return absl::DataLossError(
          absl::StrCat(file.path(), " builds on '", name, "', which is no checkpoint, or on too many"));
    }
    const std::string root = RootOfCheckpoint(path.parent_path().string());
    const std::string base = absl::StrCat(name, "/", path.filename().string());
    absl::StatusOr<std::unique_ptr<TableFileReader>> reader = TableFileReader::OpenBelow(root, base);
    if (absl::IsNotFound(reader.status())) {
      return absl::DataLossError(absl::StrCat(file.path(), " holds only what has changed since ", name,
                                              ", but ", root, "/", base, " is missing"));
    }
    TANDEM_RETURN_IF_ERROR(Annotate(reader.status(), absl::StrCat("the base of ", file.path())));
    TANDEM_RETURN_IF_ERROR(CheckLink(file, **reader));
    TableFileReader* const opened = reader->get();
    TANDEM_RETURN_IF_ERROR(chain.Add(opened, *std::move(reader)));
  }
}

std::vector<uint32_t> TableChain::buckets() const {
  std::vector<uint32_t> buckets;
  for (const v1::BucketIndex& bucket : files_.front().reader->footer().buckets()) {
    buckets.push_back(bucket.bucket());
  }
  return buckets;
}

absl::StatusOr<BucketChanges> TableChain::ReadBucket(uint32_t bucket, TableStorage::RowVisitor visit) {
  // The newest file whose part of the bucket is whole, and the changes since.
  size_t whole = 0;
  while (files_[whole].reader->builds_on_another() && !files_[whole].buckets.at(bucket)->whole()) ++whole;
  Overlay overlay(files_.front().reader->header().row_floats());
  std::vector<BucketChanges> patches;  // of the counters, the newest first
  for (size_t i = 0; i < whole; ++i) {
    const auto add = [&](uint64_t id, const float* row, const RowHistory& history) {
      overlay.AddRow(id, row, history);
    };
    TANDEM_ASSIGN_OR_RETURN(BucketChanges changes,
                            files_[i].reader->ReadChanges(*files_[i].buckets.at(bucket), add));
    overlay.AddRemoved(changes.removed);
    changes.removed = {};
    patches.push_back(std::move(changes));
  }
  overlay.Sort();
  const auto merge = [&](uint64_t id, const float* row, const RowHistory& history) {
    overlay.VisitBelow(id, visit);
    if (!overlay.VisitIfChanged(id, visit)) visit(id, row, history);
  };
  TANDEM_ASSIGN_OR_RETURN(BucketChanges result,
                          files_[whole].reader->ReadChanges(*files_[whole].buckets.at(bucket), merge));
  overlay.VisitRest(visit);
  for (size_t i = patches.size(); i-- > 0;) {
    if (!PatchFilter(patches[i].filter, patches[i].filter_bytes, &result.filter)) {
      return absl::DataLossError(absl::StrCat(files_[i].reader->path(), ": the admission counters of bucket ",
                                              bucket, " do not fit those of its base"));
    }
  }
  result.whole = true;
  result.removed = {};
  result.filter_bytes = result.filter.size();
  return result;
}

absl::StatusOr<std::vector<CheckpointEntry>> ChainOf(const std::string& directory) {
  std::vector<CheckpointEntry> chain;
  TANDEM_ASSIGN_OR_RETURN(v1::CheckpointManifest manifest, ReadManifest(directory));
  chain.push_back({directory, manifest.step(), std::move(manifest)});
  while (!chain.back().manifest.base().empty()) {
    const CheckpointEntry& last = chain.back();
    const std::string& name = last.manifest.base();
    const std::string root = RootOfCheckpoint(last.path);
    if (chain.size() == kMaxChain || !IsCheckpointName(name)) {
      return absl::DataLossError(
          absl::StrCat(last.path, " builds on '", name, "', which is no checkpoint, or on too many"));
    }
    absl::StatusOr<v1::CheckpointManifest> base = ReadManifestBelow(root, name);
    if (!base.ok()) {
      return absl::DataLossError(absl::StrCat(last.path, " holds only what has changed since ", name,
                                              ", which cannot be read: ", base.status().message()));
    }
    const uint64_t step = base->step();
    chain.push_back({absl::StrCat(root, "/", name), step, *std::move(base)});
  }
  return chain;
}

absl::Status VerifyLinks(const std::string& directory) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> chain, ChainOf(directory));
  if (chain.size() == 1) return absl::OkStatus();
  for (const v1::CheckpointFile& file : chain.front().manifest.files()) {
    if (!absl::EndsWith(file.name(), kTableFileSuffix)) continue;
    TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<TableFileReader> reader,
                            TableFileReader::Open(absl::StrCat(directory, "/", file.name())));
    TANDEM_RETURN_IF_ERROR(TableChain::Open(reader.get()).status());
  }
  return absl::OkStatus();
}

}  // namespace tandem::ps
