// SPDX-License-Identifier: Apache-2.0
#include "ps/checkpoint/digest.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/random.h"
#include "base/read_file.h"
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

// Returns a hash of the file's contents, which it reads in parts. DataLoss: it has not `bytes` bytes.
absl::StatusOr<uint64_t> HashFile(const std::string& path, uint64_t bytes) {
  constexpr size_t kPart = size_t{1} << 20;
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, " cannot be opened: ", std::strerror(errno)));
  std::string part(kPart, 0);
  uint64_t hash = 0, read = 0;
  do {
    file.read(part.data(), kPart);
    const auto count = static_cast<size_t>(file.gcount());
    hash = HashBytes(absl::string_view(part).substr(0, count), hash);
    read += count;
  } while (file);
  if (read == bytes) return hash;
  return absl::DataLossError(absl::StrCat(path, " has ", read, " bytes, and the manifest says ", bytes));
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
      TANDEM_ASSIGN_OR_RETURN(const uint64_t hash, HashFile(path, file.bytes()));
      torch.push_back({.name = file.name(), .bytes = file.bytes(), .digest = hash});
    }
  }
  std::sort(torch.begin(), torch.end(),
            [](const TorchFileDigest& a, const TorchFileDigest& b) { return a.name < b.name; });
  TANDEM_RETURN_IF_ERROR(ReadDenseState(directory).status());  // checks that the file is complete
  TANDEM_ASSIGN_OR_RETURN(const std::string dense, ReadFile(absl::StrCat(directory, "/DENSE")));
  CheckpointDigest digest{.dense = HashBytes(dense), .torch = std::move(torch)};
  for (auto& [name, table] : tables) {
    table.table = name;
    digest.tables.push_back(std::move(table));
  }
  return digest;
}

}  // namespace tandem::ps
