// SPDX-License-Identifier: Apache-2.0
// A checkpoint of a replay server: what is read is restored, and then used.

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/checksummed_file.h"
#include "base/clock.h"
#include "google/protobuf/text_format.h"
#include "replay/checkpoint/checkpoint.h"
#include "replay/table/table.h"
#include "tests/fuzz/real_files.h"
#include "tests/replay/items.h"

namespace tandem::fuzz {
namespace {

using replay::SavedTable;
using replay::Table;
using replay::TableOptions;

std::string SealManifest(std::string text) {
  text = text.substr(0, text.rfind("# crc32 "));
  return absl::StrCat(text, "# crc32 ", absl::Hex(Crc32(text)), "\n");
}

// Makes the CRC of each chunk right.
std::string SealChunks(std::string bytes) {
  constexpr size_t kHead = 16;
  for (size_t at = 0; at + kHead <= bytes.size();) {
    uint64_t size = 0;
    std::memcpy(&size, bytes.data() + at, sizeof(size));
    if (size > bytes.size() - at - kHead) break;
    const uint32_t crc = Crc32(absl::string_view(bytes).substr(at + kHead, size));
    std::memcpy(bytes.data() + at + 12, &crc, sizeof(crc));
    at += kHead + size;
  }
  return bytes;
}

class ReplayCheckpoint {
 public:
  ReplayCheckpoint() {
    std::vector<std::shared_ptr<Table>> tables = {
        Table::Create(TableOptions::Prioritized("first", 100, 1)).value(),
        Table::Create(TableOptions::Queue("second", 100)).value(),
        Table::Create(TableOptions::PacedQueue("paced", 4, 2)).value()};
    const auto layout = replay::testing::IdLayout();
    for (int64_t c = 0; c < 5; ++c) {
      const auto chunk = replay::testing::IdChunk(layout, 10 * c, 5);
      for (uint32_t i = 0; i < 4; ++i) {
        const replay::NewItem item = replay::testing::ItemOf(layout, chunk, i, 2, static_cast<double>(c + i));
        for (size_t t : {0, 1}) TANDEM_CHECK(tables[t]->Insert({item}).ok());
      }
    }
    std::vector<SavedTable> saved;
    for (const auto& table : tables) saved.emplace_back().snapshot = table->Snapshot();
    TANDEM_CHECK(replay::WriteCheckpoint(files_.File("root"), saved).ok());
    for (const char* name : {"TABLE-0", "TABLE-1", "TABLE-2"})
      files_.Add(kName + name, [](std::string b) { return b; });
    files_.Add(kName + "CHUNKS", SealChunks);
    files_.Add(kName + "MANIFEST", SealManifest);
    manifest_text_ = ReadFile(files_.File(kName + "MANIFEST")).value();
  }
  const RealFiles& files() const { return files_; }

  void Run(Input input) const {
    const bool sealed = !input.empty() && (input[0] & 0x80) != 0;
    files_.Run(input, [&](size_t file) {
      const std::string manifest = files_.File(kName + "MANIFEST");
      if (sealed && file != kManifest) WriteManifestOf(manifest);
      const std::string directory = files_.File(kName.substr(0, kName.size() - 1));
      absl::StatusOr<std::vector<SavedTable>> saved =
          replay::ReadCheckpoint(directory, [](std::unique_ptr<const replay::Chunk> chunk) {
            return std::shared_ptr<const replay::Chunk>(std::move(chunk));
          });
      if (saved.ok()) {
        for (SavedTable& table : *saved) Use(std::move(table));
      }
      if (sealed && file != kManifest) std::ofstream(manifest) << manifest_text_;
    });
  }

 private:
  static constexpr size_t kManifest = 4;
  const std::string kName = "root/replay-000000000001/";

  static void Use(SavedTable saved) {
    const auto restored = Table::Restore(std::move(saved.snapshot));
    if (!restored.ok()) return;
    (void)(*restored)->Info();
    (void)(*restored)->SampleItems({.batch = 1}, "test", MonotonicNow());
    (void)(*restored)->Insert({replay::testing::IdItem(1000)}, "test", MonotonicNow());
  }
  // Writes the manifest of the files as they are.
  void WriteManifestOf(const std::string& path) const {
    replay::v1::ReplayCheckpointManifest manifest;
    TANDEM_CHECK(google::protobuf::TextFormat::ParseFromString(
        manifest_text_.substr(0, manifest_text_.rfind("# crc32 ")), &manifest));
    for (replay::v1::ReplayCheckpointFile& file : *manifest.mutable_files()) {
      const std::string bytes = ReadFile(files_.File(kName + file.name())).value();
      file.set_bytes(bytes.size());
      file.set_crc32(Crc32(bytes));
    }
    std::string text;
    google::protobuf::TextFormat::PrintToString(manifest, &text);
    std::ofstream(path) << SealManifest(text + "# crc32 ");
  }

  RealFiles files_;
  std::string manifest_text_;
};

const ReplayCheckpoint& Real() {
  static const ReplayCheckpoint checkpoint;
  return checkpoint;
}

}  // namespace

void FuzzReplay(Input input) { Real().Run(input); }
std::vector<std::string> ReplaySeeds() { return Real().files().Seeds(); }

}  // namespace tandem::fuzz
