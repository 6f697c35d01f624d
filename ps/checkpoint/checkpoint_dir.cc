// SPDX-License-Identifier: Apache-2.0
#include "ps/checkpoint/checkpoint_dir.h"

#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/checksummed_file.h"
#include "base/logging.h"
#include "base/status.h"
#include "google/protobuf/text_format.h"
#include "ps/checkpoint/format.h"
#include "ps/checkpoint/overwrite.h"
#include "ps/checkpoint/replace_directory.h"

namespace tandem::ps {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kStep = "step-";
constexpr absl::string_view kUnfinished = "unfinished-";
constexpr absl::string_view kDamaged = "damaged-";
constexpr absl::string_view kManifest = "MANIFEST";
constexpr absl::string_view kManifestCrc = "# crc32: ";
constexpr absl::string_view kDense = "DENSE";
constexpr uint64_t kMaxManifest = uint64_t{64} << 20;  // real ones are far smaller
constexpr absl::string_view kDenseMagic = "TANDEMD1";

absl::Status Failed(const std::error_code& error, absl::string_view what) {
  return absl::ErrnoToStatus(error.value(), what);
}

std::string Join(absl::string_view directory, absl::string_view name) {
  return absl::StrCat(directory, "/", name);
}

// Parses the step from a committed directory's name. Returns false for any other name.
bool ParseName(absl::string_view name, uint64_t* step) {
  return absl::ConsumePrefix(&name, kStep) && name.size() >= 12 &&
         std::all_of(name.begin(), name.end(), absl::ascii_isdigit) && absl::SimpleAtoi(name, step);
}

absl::StatusOr<std::vector<std::string>> EntriesOf(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return Failed(error, absl::StrCat("listing ", directory));
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return error ? Failed(error, absl::StrCat("removing ", path)) : absl::OkStatus();
}

std::string NameOf(const std::string& path) { return fs::path(path).filename().string(); }

absl::Status Rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("renaming ", from, " to ", to));
}

// Returns the manifest's entry of a file in `directory`. `written` describes the file if its writer has told
// size and CRC, else it is nullptr.
absl::StatusOr<v1::CheckpointFile> DescribeFile(const std::string& directory, const std::string& name,
                                                const v1::SavedFile* written) {
  v1::CheckpointFile file;
  file.set_name(name);
  if (written == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(const auto opened, ReadableFile::OpenBelow(directory, name));
    TANDEM_ASSIGN_OR_RETURN(const uint32_t crc, FileCrc32(*opened));
    file.set_bytes(opened->size());
    file.set_crc32(crc);
    return file;
  }
  std::error_code error;
  const uint64_t bytes = fs::file_size(Join(directory, name), error);
  if (error) return Failed(error, absl::StrCat("the size of ", Join(directory, name)));
  if (bytes != written->bytes()) {
    return absl::DataLossError(absl::StrCat(Join(directory, name), " has ", bytes,
                                            " bytes here; its server wrote ", written->bytes(),
                                            ". Do all processes see the same storage?"));
  }
  file.set_bytes(bytes);
  file.set_crc32(written->crc32());
  file.set_clock(written->clock());
  file.set_footer_crc32(written->footer_crc32());
  file.set_base(written->base());
  return file;
}

absl::Status WriteManifest(const std::string& directory, const v1::CheckpointManifest& manifest) {
  std::string text;
  if (!google::protobuf::TextFormat::PrintToString(manifest, &text)) {
    return absl::InternalError(absl::StrCat("the manifest of ", directory, " cannot be printed"));
  }
  absl::StrAppend(&text, kManifestCrc, absl::StrFormat("%08x", Crc32(text)), "\n");
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(Join(directory, kManifest), text));
  return SyncDirectory(directory);
}

// Reads the manifest of the checkpoint in `directory` from its file.
absl::StatusOr<v1::CheckpointManifest> ReadManifestFile(
    const std::string& directory, const absl::StatusOr<std::unique_ptr<ReadableFile>>& file) {
  const std::string path = Join(directory, kManifest);
  if (absl::IsNotFound(file.status())) {
    return absl::NotFoundError(absl::StrCat(directory, " is not a checkpoint: it has no ", kManifest,
                                            " (an unfinished one has none)"));
  }
  TANDEM_RETURN_IF_ERROR(file.status());
  absl::StatusOr<std::string> text = (*file)->ReadAll(kMaxManifest);
  if (!text.ok()) return absl::DataLossError(text.status().message());
  const size_t crc_at = absl::string_view(*text).rfind(kManifestCrc);
  const std::string crc_line = absl::StrFormat(
      "%s%08x\n", kManifestCrc, Crc32(absl::string_view(*text).substr(0, std::min(crc_at, text->size()))));
  v1::CheckpointManifest manifest;
  if (crc_at == std::string::npos || text->substr(crc_at) != crc_line ||
      !google::protobuf::TextFormat::ParseFromString(*text, &manifest)) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: its text and its CRC do not agree"));
  }
  if (manifest.format_version() > kDeltaFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is of format version ",
                                                      manifest.format_version(),
                                                      ", this program reads up to ", kDeltaFormatVersion));
  }
  if (!manifest.base().empty() && !IsCheckpointName(manifest.base())) {
    return absl::DataLossError(absl::StrCat(path, " builds on '", absl::CHexEscape(manifest.base()),
                                            "', which is no name of a checkpoint, such as ",
                                            CheckpointName(1000)));
  }
  std::set<absl::string_view> names;
  for (const v1::CheckpointFile& file : manifest.files()) {
    // Another name could lead out of the directory.
    if (IsPlainFileName(file.name()) && file.name() != kManifest && names.insert(file.name()).second)
      continue;
    return absl::DataLossError(
        absl::StrCat(path, " lists a file '", absl::CHexEscape(file.name()),
                     "', which cannot be one of a checkpoint: expected the name of a file within ", directory,
                     ", listed once. The checkpoint may be from somebody who means harm"));
  }
  return manifest;
}

// Returns Aborted unless the parts of all servers are there for each table of which there is one. `names`,
// sorted, are the files of `directory`.
absl::Status CheckTablesWhole(const std::string& directory, const std::vector<std::string>& names) {
  constexpr absl::string_view kOf = "-of-";
  for (absl::string_view name : names) {
    if (!absl::ConsumeSuffix(&name, kTableFileSuffix)) continue;
    const size_t of = name.rfind(kOf), dot = name.rfind('.', of);
    uint32_t servers = 0;
    if (of == name.npos || dot == name.npos || !absl::SimpleAtoi(name.substr(of + kOf.size()), &servers)) {
      continue;
    }
    const absl::string_view table = name.substr(0, dot);
    for (uint32_t s = 0; s < servers; ++s) {
      if (std::binary_search(names.begin(), names.end(), TableFileName(table, s, servers))) continue;
      return absl::AbortedError(absl::StrCat(directory, ": table '", table, "' lacks the part of server ", s,
                                             " of ", servers,
                                             ": it was created or dropped while the checkpoint began; save "
                                             "another one"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string CheckpointName(uint64_t step) { return absl::StrFormat("%s%012d", kStep, step); }

bool IsCheckpointName(absl::string_view name) {
  uint64_t step;
  return ParseName(name, &step);
}

uint64_t StepOfName(absl::string_view name) {
  uint64_t step = 0;
  return ParseName(name, &step) ? step : 0;
}

std::string UnfinishedPath(const std::string& root, uint64_t step) {
  return Join(root, absl::StrCat(kUnfinished, CheckpointName(step)));
}

absl::StatusOr<std::string> BeginCheckpoint(const std::string& root, uint64_t step) {
  std::error_code error;
  fs::create_directories(root, error);
  if (error) return Failed(error, absl::StrCat("making ", root));
  TANDEM_RETURN_IF_ERROR(RepairCheckpoints(root));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> names, EntriesOf(root));
  for (const std::string& name : names) {
    if (absl::StartsWith(name, kUnfinished)) TANDEM_RETURN_IF_ERROR(RemoveTree(Join(root, name)));
  }
  const std::string path = UnfinishedPath(root, step);
  fs::create_directory(path, error);
  if (error) return Failed(error, absl::StrCat("making ", path));
  return path;
}

absl::StatusOr<std::string> CommitCheckpoint(const std::string& unfinished, v1::CheckpointManifest manifest,
                                             absl::Span<const v1::SavedFile> written) {
  const fs::path from(unfinished);
  absl::string_view name;
  const std::string from_name = from.filename().string();
  name = from_name;
  uint64_t step = 0;
  if (!absl::ConsumePrefix(&name, kUnfinished) || !ParseName(name, &step)) {
    return absl::InvalidArgumentError(absl::StrCat(unfinished, " was not made by BeginCheckpoint"));
  }
  manifest.clear_base();
  manifest.clear_files();
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> names, EntriesOf(unfinished));
  TANDEM_RETURN_IF_ERROR(CheckTablesWhole(unfinished, names));
  std::map<std::string, const v1::SavedFile*> described;
  for (const v1::SavedFile& file : written) {
    // Servers of an older version name their files without describing them.
    described[file.name()] = file.bytes() > 0 ? &file : nullptr;
    if (!std::binary_search(names.begin(), names.end(), file.name())) {
      return absl::DataLossError(
          absl::StrCat(Join(unfinished, file.name()),
                       " is missing, though its server has written it. Do all processes "
                       "see the same storage?"));
    }
  }
  for (const std::string& file_name : names) {
    if (file_name == kManifest) continue;
    const auto known = described.find(file_name);
    v1::CheckpointFile* const file = manifest.add_files();
    TANDEM_ASSIGN_OR_RETURN(
        *file, DescribeFile(unfinished, file_name, known == described.end() ? nullptr : known->second));
    if (file->base().empty()) continue;
    if (file->base() == name || (!manifest.base().empty() && file->base() != manifest.base())) {
      return absl::InvalidArgumentError(
          absl::StrCat(Join(unfinished, file_name), " builds on ", file->base(), ", ",
                       file->base() == name ? "which this checkpoint replaces"
                                            : absl::StrCat("another file on ", manifest.base())));
    }
    manifest.set_base(file->base());
  }
  manifest.set_format_version(manifest.base().empty() ? kCheckpointFormatVersion : kDeltaFormatVersion);
  TANDEM_RETURN_IF_ERROR(WriteManifest(unfinished, manifest));
  const std::string root = from.parent_path().string();
  const std::string path = Join(root, name);
  TANDEM_ASSIGN_OR_RETURN(const std::string replaced, ReplaceDirectory(unfinished, path));
  // The checkpoint is committed. An error from here on must not make the caller believe that it is not.
  absl::Status cleaned = SyncDirectory(root);
  if (!replaced.empty()) cleaned.Update(RemoveTree(replaced));
  if (!cleaned.ok()) LogWarning(absl::StrCat(path, " is committed, but: ", cleaned.message()));
  return path;
}

absl::Status ReplaceByComplete(const std::string& directory, const std::string& replacement,
                               const v1::CheckpointManifest& before,
                               absl::Span<const v1::SavedFile> written) {
  v1::CheckpointManifest manifest = before;
  manifest.set_format_version(kCheckpointFormatVersion);
  manifest.clear_base();
  for (v1::CheckpointFile& file : *manifest.mutable_files()) {
    const auto is_this = [&](const v1::SavedFile& one) { return one.name() == file.name(); };
    const auto found = std::find_if(written.begin(), written.end(), is_this);
    if (found != written.end()) {
      TANDEM_ASSIGN_OR_RETURN(file, DescribeFile(replacement, file.name(), &*found));
    }
  }
  TANDEM_RETURN_IF_ERROR(WriteManifest(replacement, manifest));
  const absl::StatusOr<v1::CheckpointManifest> now = ReadManifest(directory);
  std::string then_text, now_text;
  if (!now.ok() || !google::protobuf::TextFormat::PrintToString(before, &then_text) ||
      !google::protobuf::TextFormat::PrintToString(*now, &now_text) || now_text != then_text) {
    return absl::AbortedError(absl::StrCat(directory, " has changed meanwhile: ",
                                           now.ok() ? "its MANIFEST is another" : now.status().message()));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string replaced, ReplaceDirectory(replacement, directory));
  absl::Status cleaned = SyncDirectory(fs::path(directory).parent_path().string());
  if (!replaced.empty()) cleaned.Update(RemoveTree(replaced));
  if (!cleaned.ok()) LogWarning(absl::StrCat(directory, " is complete now, but: ", cleaned.message()));
  return absl::OkStatus();
}

absl::Status UpdateManifest(const std::string& directory, v1::CheckpointManifest manifest) {
  TANDEM_ASSIGN_OR_RETURN(v1::CheckpointManifest old, ReadManifest(directory));
  manifest.set_format_version(old.format_version());
  manifest.set_base(old.base());
  manifest.mutable_files()->Swap(old.mutable_files());
  return WriteManifest(directory, manifest);
}

absl::Status RepairCheckpoints(const std::string& root) {
  TANDEM_RETURN_IF_ERROR(FinishReplacements(root));
  return FinishOverwrite(root).status();
}

absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(const std::string& root) {
  std::vector<CheckpointEntry> entries;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> paths, CheckpointPaths(root));
  for (const std::string& path : paths) {
    CheckpointEntry entry{.path = path};
    absl::StatusOr<v1::CheckpointManifest> manifest = ReadManifest(path);
    if (!manifest.ok() || !ParseName(fs::path(path).filename().string(), &entry.step)) continue;
    entry.manifest = *std::move(manifest);
    entries.push_back(std::move(entry));
  }
  TANDEM_RETURN_IF_ERROR(HideOverwritten(root, &entries));
  return entries;
}

absl::StatusOr<std::vector<std::string>> CheckpointPaths(const std::string& root) {
  std::vector<std::string> paths;
  std::error_code error;
  if (!fs::exists(root, error)) {
    if (error) return Failed(error, absl::StrCat("looking for checkpoints in ", root));
    return paths;
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> names, EntriesOf(root));
  std::multimap<uint64_t, std::string> by_step;  // a step of 13 digits sorts before one of 12 by name
  for (const std::string& name : names) {
    uint64_t step = 0;
    if (ParseName(name, &step)) by_step.emplace(step, Join(root, name));
  }
  for (auto& [step, path] : by_step) paths.push_back(std::move(path));
  return paths;
}

absl::StatusOr<std::string> SetAside(const std::string& directory) {
  const fs::path path(directory);
  std::string aside;
  std::error_code error;
  for (int i = 1; i == 1 || fs::exists(aside, error); ++i) {
    aside = Join(path.parent_path().string(),
                 absl::StrCat(kDamaged, path.filename().string(), i == 1 ? "" : absl::StrCat("-", i)));
  }
  TANDEM_RETURN_IF_ERROR(Rename(directory, aside));
  return aside;
}

absl::Status RemoveCheckpoint(const std::string& directory) {
  // It is renamed first, so that an interrupted removal leaves no incomplete checkpoint in the list.
  const fs::path path(directory);
  const std::string aside =
      Join(path.parent_path().string(), absl::StrCat(kUnfinished, path.filename().string(), "-pruned"));
  TANDEM_RETURN_IF_ERROR(Rename(directory, aside));
  return RemoveTree(aside);
}

absl::StatusOr<std::string> LatestCheckpoint(const std::string& root) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, ListCheckpoints(root));
  if (entries.empty()) return absl::NotFoundError(absl::StrCat("no checkpoint under ", root));
  return entries.back().path;
}

absl::StatusOr<std::string> BestCheckpoint(const std::string& directory) {
  std::error_code error;
  if (fs::exists(Join(directory, kManifest), error)) return directory;
  if (!fs::is_directory(directory, error)) {
    return absl::NotFoundError(absl::StrCat("there is no directory '", directory, "'"));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, ListCheckpoints(directory));
  if (entries.empty()) {
    return absl::NotFoundError(
        absl::StrCat("'", directory, "' holds no checkpoint (a directory with a ", kManifest, ")"));
  }
  const v1::CheckpointManifest& newest = entries.back().manifest;
  for (const CheckpointEntry& entry : entries) {
    if (newest.has_best_step() && entry.step == newest.best_step()) return entry.path;
  }
  return entries.back().path;
}

absl::StatusOr<v1::CheckpointManifest> ReadManifest(const std::string& directory) {
  return ReadManifestFile(directory, ReadableFile::OpenBelow(directory, std::string(kManifest)));
}

absl::StatusOr<v1::CheckpointManifest> ReadManifestBelow(const std::string& root, const std::string& name) {
  return ReadManifestFile(Join(root, name), ReadableFile::OpenBelow(root, Join(name, kManifest)));
}

absl::Status VerifyCheckpoint(const std::string& directory) {
  TANDEM_ASSIGN_OR_RETURN(const v1::CheckpointManifest manifest, ReadManifest(directory));
  for (const v1::CheckpointFile& file : manifest.files()) {
    TANDEM_RETURN_IF_ERROR(VerifyCheckpointFile(directory, file));
  }
  return absl::OkStatus();
}

absl::Status VerifyCheckpointFile(const std::string& directory, const v1::CheckpointFile& file) {
  const std::string path = Join(directory, file.name());
  TANDEM_ASSIGN_OR_RETURN(const auto opened, ReadableFile::OpenBelow(directory, file.name()));
  if (opened->size() != file.bytes()) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", opened->size(), " bytes, the manifest says ", file.bytes()));
  }
  TANDEM_ASSIGN_OR_RETURN(const uint32_t crc, FileCrc32(*opened));
  if (crc != file.crc32()) {
    return absl::DataLossError(
        absl::StrFormat("%s is damaged: its CRC is %08x, the manifest says %08x", path, crc, file.crc32()));
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const std::string& directory, const v1::CheckpointManifest& manifest) {
  for (const v1::CheckpointFile& file : manifest.files()) {
    const std::string path = Join(directory, file.name());
    std::error_code error;
    const uint64_t bytes = fs::file_size(path, error);
    if (error == std::errc::no_such_file_or_directory) {
      return absl::DataLossError(absl::StrCat(path, ": No such file, though the manifest lists it"));
    }
    if (error) return Failed(error, absl::StrCat("the size of ", path));
    if (bytes < file.bytes()) {
      return absl::DataLossError(absl::StrCat(path, " is damaged at byte ", bytes, ": the manifest says ",
                                              file.bytes(), " bytes, so it was cut off"));
    }
    if (bytes > file.bytes()) {
      return absl::DataLossError(
          absl::StrCat(path, " has ", bytes, " bytes, the manifest says ", file.bytes()));
    }
  }
  return absl::OkStatus();
}

absl::Status PruneCheckpoints(const std::string& root, int keep, const std::string& protect,
                              const absl::optional<std::string>& run_id) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<CheckpointEntry> entries, ListCheckpoints(root));
  std::map<std::string, std::string> bases;  // by the name of the checkpoint that builds on them
  for (const CheckpointEntry& entry : entries) bases[NameOf(entry.path)] = entry.manifest.base();
  if (run_id.has_value()) {
    entries.erase(
        std::remove_if(entries.begin(), entries.end(),
                       [&](const CheckpointEntry& entry) { return entry.manifest.run_id() != *run_id; }),
        entries.end());
  }
  std::error_code error;
  std::set<std::string> removed;
  for (size_t i = 0; i + std::max(keep, 0) < entries.size(); ++i) {
    if (!protect.empty() && fs::equivalent(entries[i].path, protect, error)) continue;
    removed.insert(NameOf(entries[i].path));
  }
  // A checkpoint also stays if another one that stays builds on it.
  std::vector<std::string> staying;
  for (const auto& [name, base] : bases) {
    if (!removed.contains(name)) staying.push_back(base);
  }
  while (!staying.empty()) {
    const std::string name = std::move(staying.back());
    staying.pop_back();
    if (removed.erase(name) > 0) staying.push_back(bases[name]);
  }
  for (const CheckpointEntry& entry : entries) {
    if (removed.contains(NameOf(entry.path))) TANDEM_RETURN_IF_ERROR(RemoveCheckpoint(entry.path));
  }
  return absl::OkStatus();
}

absl::Status WriteDenseState(const std::string& directory, const v1::DenseState& state) {
  std::string bytes(kDenseMagic);
  const uint32_t size = static_cast<uint32_t>(state.ByteSizeLong());
  bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
  if (!state.AppendToString(&bytes)) {
    return absl::InvalidArgumentError("the dense parameters do not fit a protobuf message (2 GiB)");
  }
  const uint32_t crc = Crc32(bytes);
  bytes.append(reinterpret_cast<const char*>(&crc), sizeof(crc));
  return WriteFileAtomically(Join(directory, kDense), bytes);
}

absl::StatusOr<v1::DenseState> ReadDenseState(const std::string& directory) {
  const std::string path = Join(directory, kDense);
  TANDEM_ASSIGN_OR_RETURN(const auto file, ReadableFile::OpenBelow(directory, std::string(kDense)));
  TANDEM_ASSIGN_OR_RETURN(const std::string bytes, file->ReadAll());
  const size_t fixed = kDenseMagic.size() + sizeof(uint32_t);
  uint32_t size = 0;
  uint32_t crc = 0;
  const bool framed = bytes.size() >= fixed + sizeof(crc) && absl::StartsWith(bytes, kDenseMagic);
  if (framed) {
    std::memcpy(&size, bytes.data() + kDenseMagic.size(), sizeof(size));
    std::memcpy(&crc, bytes.data() + bytes.size() - sizeof(crc), sizeof(crc));
  }
  v1::DenseState state;
  if (!framed || bytes.size() != fixed + size + sizeof(crc) ||
      Crc32(absl::string_view(bytes).substr(0, fixed + size)) != crc ||
      !state.ParseFromArray(bytes.data() + fixed, static_cast<int>(size))) {
    return absl::DataLossError(absl::StrCat(path, " is damaged (", bytes.size(), " bytes)"));
  }
  return state;
}

}  // namespace tandem::ps
