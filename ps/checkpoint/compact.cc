// SPDX-License-Identifier: Apache-2.0
// Makes an incremental checkpoint complete.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/checksummed_file.h"
#include "base/status.h"
#include "ps/checkpoint/chain.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/format.h"

namespace tandem::ps {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kCompacting = "compacting-";

// Writes the complete form of the table file `from` to `to`, and describes it.
absl::StatusOr<v1::SavedFile> CompactFile(const std::string& from, const std::string& to) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<TableFileReader> reader, TableFileReader::Open(from));
  TANDEM_ASSIGN_OR_RETURN(TableChain chain, TableChain::Open(reader.get()));
  v1::TableFileHeader header = reader->header();
  header.clear_base();
  const std::vector<uint32_t> buckets = chain.buckets();
  const std::atomic<bool> cancel{false};
  const auto source = [&](uint32_t bucket, TableStorage::RowVisitor visit) {
    return chain.ReadBucket(bucket, visit);
  };
  TANDEM_ASSIGN_OR_RETURN(const TableFileSummary summary,
                          WriteTableFile(to, header, buckets, BucketSource(source), cancel));
  v1::SavedFile written;
  written.set_name(fs::path(to).filename().string());
  written.set_bytes(summary.bytes);
  written.set_crc32(summary.crc32);
  written.set_clock(header.version());
  written.set_footer_crc32(summary.footer_crc32);
  return written;
}

// Puts the file `name` of `directory` at `to`, too: as a hard link, or durably as a copy where the file
// system has no links.
absl::Status LinkOrCopy(const std::string& directory, const std::string& name, const std::string& to) {
  std::error_code error;
  fs::create_hard_link(absl::StrCat(directory, "/", name), to, error);
  if (!error) return absl::OkStatus();
  // Table files may be larger than the memory.
  constexpr uint64_t kPart = uint64_t{1} << 20;
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, ReadableFile::OpenBelow(directory, name));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> copy, OpenPosixFile(to));
  std::string part;
  for (uint64_t offset = 0; offset < file->size(); offset += part.size()) {
    part.resize(std::min(kPart, file->size() - offset));
    TANDEM_RETURN_IF_ERROR(file->Read(offset, part.size(), part.data()));
    TANDEM_RETURN_IF_ERROR(copy->Append(part));
  }
  return copy->Sync();
}

}  // namespace

absl::StatusOr<bool> CompactCheckpoint(const std::string& directory) {
  fs::path path = fs::path(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string name = path.filename().string();
  TANDEM_ASSIGN_OR_RETURN(const v1::CheckpointManifest manifest, ReadManifest(path.string()));
  if (manifest.base().empty()) return false;
  if (!IsCheckpointName(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory, " has not the name of a checkpoint, such as ", CheckpointName(1000)));
  }
  TANDEM_RETURN_IF_ERROR(ChainOf(path.string()).status());
  const std::string aside = (path.parent_path() / absl::StrCat(kCompacting, name)).string();
  std::error_code error;
  fs::remove_all(aside, error);
  if (!error) fs::create_directory(aside, error);
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("making ", aside));
  const auto remove = absl::MakeCleanup([&] { fs::remove_all(aside, error); });
  std::vector<v1::SavedFile> written;
  for (const v1::CheckpointFile& file : manifest.files()) {
    const std::string from = (path / file.name()).string();
    const std::string to = absl::StrCat(aside, "/", file.name());
    // A link would be followed by those who write or read there later, and files are written as *.tmp first.
    if (absl::EndsWith(file.name(), ".tmp") ||
        fs::symlink_status(from, error).type() != fs::file_type::regular) {
      return absl::DataLossError(absl::StrCat(from, " is no regular file of a checkpoint"));
    }
    if (file.base().empty()) {
      TANDEM_RETURN_IF_ERROR(LinkOrCopy(path.string(), file.name(), to));
      continue;
    }
    TANDEM_ASSIGN_OR_RETURN(v1::SavedFile one, CompactFile(from, to));
    written.push_back(std::move(one));
  }
  TANDEM_RETURN_IF_ERROR(ReplaceByComplete(path.string(), aside, manifest, written));
  return true;
}

}  // namespace tandem::ps
