// SPDX-License-Identifier: Apache-2.0
#include "ps/checkpoint/digest.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/checksummed_file.h"
#include "base/random.h"
#include "base/status.h"
#include "ps/checkpoint/chain.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/format.h"

namespace tandem::ps {
namespace {

// The names of torch.distributed.checkpoint: "__0_0.distcp".
bool IsTorchFile(absl::string_view name) {
  return absl::StartsWith(name, "__") && absl::EndsWith(name, ".distcp");
}

// Returns a hash of the file's contents, which it reads in parts. DataLoss: it has another size than `file`
// says.
absl::StatusOr<uint64_t> HashFile(const std::string& directory, const v1::CheckpointFile& file) {
  constexpr uint64_t kPart = uint64_t{1} << 20;
  TANDEM_ASSIGN_OR_RETURN(const auto opened, ReadableFile::OpenBelow(directory, file.name()));
  if (opened->size() != file.bytes()) {
    return absl::DataLossError(absl::StrCat(opened->path(), " has ", opened->size(),
                                            " bytes, and the manifest says ", file.bytes()));
  }
  std::string part;
  uint64_t hash = 0;
  for (uint64_t at = 0; at < opened->size(); at += part.size()) {
    part.resize(std::min(kPart, opened->size() - at));
    TANDEM_RETURN_IF_ERROR(opened->Read(at, part.size(), part.data()));
    hash = HashBytes(part, hash);
  }
  return hash;
}

absl::Status AddFile(const std::string& path, std::map<std::string, TableDigest>* tables) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<TableFileReader> reader, TableFileReader::Open(path));
  TableDigest& table = (*tables)[reader->header().config().name()];
  const size_t row_bytes = reader->header().row_floats() * sizeof(float);
  TANDEM_ASSIGN_OR_RETURN(TableChain chain, TableChain::Open(reader.get()));
  for (const uint32_t bucket : chain.buckets()) {
    const auto add = [&](uint64_t id, const float* row, const RowHistory&) {
      // The id seeds the hash, so that swapping the rows of two ids changes the sum.
      table.digest += HashBytes({reinterpret_cast<const char*>(row), row_bytes}, Mix64(id));
      ++table.rows;
    };
    TANDEM_RETURN_IF_ERROR(chain.ReadBucket(bucket, add).status());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CheckpointDigest> DigestCheckpoint(const std::string& directory) {
  TANDEM_ASSIGN_OR_RETURN(const v1::CheckpointManifest manifest, ReadManifest(directory));
  std::map<std::string, TableDigest> tables;
  std::vector<TorchFileDigest> torch;
  for (const v1::CheckpointFile& file : manifest.files()) {
    const std::string path = absl::StrCat(directory, "/", file.name());
    if (absl::EndsWith(file.name(), kTableFileSuffix)) {
      TANDEM_RETURN_IF_ERROR(AddFile(path, &tables));
    } else if (IsTorchFile(file.name())) {
      TANDEM_ASSIGN_OR_RETURN(const uint64_t hash, HashFile(directory, file));
      torch.push_back({.name = file.name(), .bytes = file.bytes(), .digest = hash});
    }
  }
  std::sort(torch.begin(), torch.end(),
            [](const TorchFileDigest& a, const TorchFileDigest& b) { return a.name < b.name; });
  TANDEM_RETURN_IF_ERROR(ReadDenseState(directory).status());  // checks that the file is complete
  TANDEM_ASSIGN_OR_RETURN(const auto dense_file, ReadableFile::OpenBelow(directory, "DENSE"));
  TANDEM_ASSIGN_OR_RETURN(const std::string dense, dense_file->ReadAll());
  CheckpointDigest digest{.dense = HashBytes(dense), .torch = std::move(torch)};
  for (auto& [name, table] : tables) {
    table.table = name;
    digest.tables.push_back(std::move(table));
  }
  return digest;
}

}  // namespace tandem::ps
