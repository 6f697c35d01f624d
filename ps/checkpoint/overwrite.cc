// SPDX-License-Identifier: Apache-2.0
#include "ps/checkpoint/overwrite.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/checksummed_file.h"
#include "base/status.h"

namespace tandem::ps {
namespace {

// The file holds the run id and, unless all other checkpoints are replaced, the step up to which they stay.
constexpr char kAnnouncement[] = "OVERWRITE";
std::string AnnouncementOf(const std::string& root) { return absl::StrCat(root, "/", kAnnouncement); }

absl::StatusOr<absl::optional<Overwrite>> ReadAnnouncement(const std::string& root) {
  const std::string path = AnnouncementOf(root);
  const absl::StatusOr<std::unique_ptr<ReadableFile>> file = ReadableFile::OpenBelow(root, kAnnouncement);
  if (absl::IsNotFound(file.status())) return absl::optional<Overwrite>();
  TANDEM_RETURN_IF_ERROR(file.status());
  TANDEM_ASSIGN_OR_RETURN(const std::string text, (*file)->ReadAll(4096));
  const std::vector<std::string> words = absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  Overwrite overwrite;
  uint64_t step = 0;
  if (words.empty() || words.size() > 2 || (words.size() == 2 && !absl::SimpleAtoi(words[1], &step))) {
    return absl::DataLossError(absl::StrCat(
        path,
        " is damaged: it should hold the id of a run; remove it if no run is writing to the directory"));
  }
  overwrite.run_id = words[0];
  if (words.size() == 2) overwrite.kept_step = step;
  return absl::optional<Overwrite>(overwrite);
}

bool Overwrites(const Overwrite& overwrite, const CheckpointEntry& entry) {
  return entry.manifest.run_id() != overwrite.run_id &&
         (!overwrite.kept_step.has_value() || entry.step > *overwrite.kept_step);
}

// Returns the checkpoints under `root`, also those whose MANIFEST cannot be read: they have no run id.
absl::StatusOr<std::vector<CheckpointEntry>> AllCheckpoints(const std::string& root) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> paths, CheckpointPaths(root));
  std::vector<CheckpointEntry> entries;
  for (const std::string& path : paths) {
    CheckpointEntry entry{.path = path, .step = StepOfName(std::filesystem::path(path).filename().string())};
    const absl::StatusOr<v1::CheckpointManifest> manifest = ReadManifest(path);
    if (manifest.ok()) entry.manifest = *manifest;
    entries.push_back(std::move(entry));
  }
  return entries;
}

// Returns whether the new run has a checkpoint of its own.
bool HasBegun(const Overwrite& overwrite, const std::vector<CheckpointEntry>& entries) {
  return std::any_of(entries.begin(), entries.end(), [&](const CheckpointEntry& entry) {
    return entry.manifest.run_id() == overwrite.run_id;
  });
}

}  // namespace

absl::Status BeginOverwrite(const std::string& root, const Overwrite& overwrite) {
  std::error_code error;
  std::filesystem::create_directories(root, error);
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("making ", root));
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(
      AnnouncementOf(root),
      absl::StrCat(overwrite.run_id,
                   overwrite.kept_step.has_value() ? absl::StrCat(" ", *overwrite.kept_step) : "", "\n")));
  return SyncDirectory(root);
}

absl::StatusOr<int> FinishOverwrite(const std::string& root) {
  TANDEM_ASSIGN_OR_RETURN(const absl::optional<Overwrite> overwrite, ReadAnnouncement(root));
  if (!overwrite.has_value()) return 0;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, AllCheckpoints(root));
  if (!HasBegun(*overwrite, entries)) return 0;
  int removed = 0;
  for (const CheckpointEntry& entry : entries) {
    if (Overwrites(*overwrite, entry)) {
      TANDEM_RETURN_IF_ERROR(RemoveCheckpoint(entry.path));
      ++removed;
    } else if (entry.manifest.run_id() != overwrite->run_id && entry.manifest.format_version() > 0) {
      v1::CheckpointManifest adopted = entry.manifest;
      adopted.set_run_id(overwrite->run_id);
      TANDEM_RETURN_IF_ERROR(UpdateManifest(entry.path, adopted));
    }
  }
  TANDEM_RETURN_IF_ERROR(AbandonOverwrite(root));
  return removed;
}

absl::Status AbandonOverwrite(const std::string& root) {
  std::error_code error;
  std::filesystem::remove(AnnouncementOf(root), error);
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("removing ", AnnouncementOf(root)));
  return absl::OkStatus();
}

absl::Status HideOverwritten(const std::string& root, std::vector<CheckpointEntry>* entries) {
  TANDEM_ASSIGN_OR_RETURN(const absl::optional<Overwrite> overwrite, ReadAnnouncement(root));
  if (!overwrite.has_value() || !HasBegun(*overwrite, *entries)) return absl::OkStatus();
  entries->erase(std::remove_if(entries->begin(), entries->end(),
                                [&](const CheckpointEntry& entry) { return Overwrites(*overwrite, entry); }),
                 entries->end());
  return absl::OkStatus();
}

}  // namespace tandem::ps
