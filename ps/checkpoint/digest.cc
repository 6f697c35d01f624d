// SPDX-License-Identifier: Apache-2.0
#include "ps/checkpoint/digest.h"

#include <map>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/random.h"
#include "base/read_file.h"
#include "base/status.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/format.h"

namespace tandem::ps {
namespace {

absl::Status AddFile(const std::string& path, std::map<std::string, TableDigest>* tables) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<TableFileReader> reader, TableFileReader::Open(path));
  TableDigest& table = (*tables)[reader->header().config().name()];
  const size_t row_bytes = reader->header().row_floats() * sizeof(float);
  for (const v1::BucketIndex& bucket : reader->footer().buckets()) {
    const auto add = [&](uint64_t id, const float* row, const RowHistory&) {
      // The id seeds the hash, so that swapping the rows of two ids changes the sum.
      table.digest += HashBytes({reinterpret_cast<const char*>(row), row_bytes}, Mix64(id));
      ++table.rows;
    };
    TANDEM_RETURN_IF_ERROR(reader->ReadBucket(bucket, add, /*filter=*/nullptr));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CheckpointDigest> DigestCheckpoint(const std::string& directory) {
  TANDEM_ASSIGN_OR_RETURN(const v1::CheckpointManifest manifest, ReadManifest(directory));
  std::map<std::string, TableDigest> tables;
  for (const v1::CheckpointFile& file : manifest.files()) {
    if (!absl::EndsWith(file.name(), kTableFileSuffix)) continue;
    TANDEM_RETURN_IF_ERROR(AddFile(absl::StrCat(directory, "/", file.name()), &tables));
  }
  TANDEM_RETURN_IF_ERROR(ReadDenseState(directory).status());  // checks that the file is complete
  TANDEM_ASSIGN_OR_RETURN(const std::string dense, ReadFile(absl::StrCat(directory, "/DENSE")));
  CheckpointDigest digest{.dense = HashBytes(dense)};
  for (auto& [name, table] : tables) {
    table.table = name;
    digest.tables.push_back(std::move(table));
  }
  return digest;
}

}  // namespace tandem::ps
