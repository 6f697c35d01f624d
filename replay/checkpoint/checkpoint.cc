// SPDX-License-Identifier: Apache-2.0
#include "replay/checkpoint/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "google/protobuf/text_format.h"
#include "replay/wire/messages.h"

namespace tandem::replay {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kFormatVersion = 1;
constexpr char kPrefix[] = "replay-";
constexpr char kUnfinished[] = "unfinished-";
constexpr char kManifest[] = "MANIFEST";
constexpr char kChunks[] = "CHUNKS";
constexpr uint64_t kMaxManifest = uint64_t{64} << 20;  // real ones are far smaller
constexpr size_t kRecordHead = 16;
constexpr size_t kBuffer = size_t{1} << 20;
constexpr uint64_t kSerialGap = uint64_t{1} << 28;

absl::Status SystemError(const std::error_code& error, absl::string_view what) {
  return absl::ErrnoToStatus(error.value(), what);
}

// Returns the number of a checkpoint's directory, or nullopt for another name.
std::optional<uint64_t> NumberOf(const std::string& name) {
  absl::string_view digits = name;
  uint64_t number = 0;
  if (!absl::ConsumePrefix(&digits, kPrefix) || !absl::SimpleAtoi(digits, &number)) return std::nullopt;
  return number;
}

// Returns the names of the directories below `root`; none if it does not exist.
absl::StatusOr<std::vector<std::string>> Directories(const std::string& root) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator it(root, error);
  if (error == std::errc::no_such_file_or_directory) return names;
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return SystemError(error, root);
  return names;
}

// Writes a file of a checkpoint and computes its CRC.
class FileWriter {
 public:
  static absl::StatusOr<FileWriter> Open(const std::string& directory, const std::string& name,
                                         const OpenFile& open) {
    FileWriter writer;
    writer.entry_.set_name(name);
    TANDEM_ASSIGN_OR_RETURN(writer.file_, open(absl::StrCat(directory, "/", name)));
    return writer;
  }
  absl::Status Append(absl::string_view bytes) {
    entry_.set_bytes(entry_.bytes() + bytes.size());
    entry_.set_crc32(Crc32(bytes, entry_.crc32()));
    if (buffer_.size() + bytes.size() > kBuffer) TANDEM_RETURN_IF_ERROR(FlushBuffer());
    if (bytes.size() > kBuffer) return file_->Append(bytes);
    absl::StrAppend(&buffer_, bytes);
    return absl::OkStatus();
  }
  absl::StatusOr<v1::ReplayCheckpointFile> Finish() {
    TANDEM_RETURN_IF_ERROR(FlushBuffer());
    TANDEM_RETURN_IF_ERROR(file_->Sync());
    return entry_;
  }

 private:
  absl::Status FlushBuffer() {
    TANDEM_RETURN_IF_ERROR(file_->Append(buffer_));
    buffer_.clear();
    return absl::OkStatus();
  }
  std::unique_ptr<WritableFile> file_;
  std::string buffer_;
  v1::ReplayCheckpointFile entry_;
};

// Collects what the tables share: their chunks, each once.
class ChunkList {
 public:
  uint64_t IndexOf(const std::shared_ptr<const Chunk>& chunk) {
    const auto [found, added] = indexes_.emplace(chunk.get(), chunks_.size());
    if (added) chunks_.push_back(chunk.get());
    return found->second;
  }
  absl::StatusOr<v1::ReplayCheckpointFile> Write(const std::string& directory, const OpenFile& open) const {
    TANDEM_ASSIGN_OR_RETURN(FileWriter file, FileWriter::Open(directory, kChunks, open));
    for (const Chunk* const chunk : chunks_) {
      const absl::string_view values(chunk->data(), chunk->bytes());
      char head[kRecordHead];
      const uint64_t bytes = values.size();
      const uint32_t steps = chunk->steps(), crc = Crc32(values);
      std::memcpy(head, &bytes, 8);
      std::memcpy(head + 8, &steps, 4);
      std::memcpy(head + 12, &crc, 4);
      TANDEM_RETURN_IF_ERROR(file.Append({head, kRecordHead}));
      TANDEM_RETURN_IF_ERROR(file.Append(values));
    }
    return file.Finish();
  }

 private:
  absl::flat_hash_map<const Chunk*, uint64_t> indexes_;
  std::vector<const Chunk*> chunks_;
};

// Returns the index of `value` in `list`, which maps values to indexes; a new value is passed to `add`.
template <typename Map, typename Add>
uint32_t Index(Map* list, typename Map::key_type value, const Add& add) {
  const auto [found, added] = list->emplace(value, static_cast<uint32_t>(list->size()));
  if (added) add();
  return found->second;
}

v1::ReplayTableCheckpoint Encode(const SavedTable& table, ChunkList* all_chunks) {
  const TableSnapshot& snapshot = table.snapshot;
  v1::ReplayTableCheckpoint message;
  *message.mutable_options() = ToProto(snapshot.options);
  *message.mutable_created() = ToProto(snapshot.created);
  ToProto(snapshot.columns, message.mutable_columns());
  absl::flat_hash_map<const Signature*, uint32_t> signatures;
  absl::flat_hash_map<const ItemLayout*, uint32_t> layouts;
  absl::flat_hash_map<const Chunk*, uint32_t> chunks;
  const auto signature_index = [&](const Signature* signature) {
    return Index(&signatures, signature,
                 [&] { ToProto(signature->columns(), message.add_signatures()->mutable_columns()); });
  };
  for (const ItemStore::Item& item : snapshot.items) {
    const Trajectory& trajectory = *item.trajectory;
    v1::ReplayStoredItem& stored = *message.add_items();
    stored.set_key(item.key);
    stored.set_priority(item.priority);
    stored.set_times_sampled(item.times_sampled);
    stored.set_serial(item.serial);
    stored.set_min_version(trajectory.min_version);
    stored.set_max_version(trajectory.max_version);
    const uint32_t signature = signature_index(trajectory.layout->steps.get());
    stored.set_layout(Index(&layouts, trajectory.layout.get(), [&] {
      v1::ReplayLayout& layout = *message.add_layouts();
      layout.set_signature(signature);
      for (size_t c = 0; c < trajectory.layout->sources.size(); ++c) {
        v1::ReplayItemColumn& column = *layout.add_columns();
        column.set_name(trajectory.layout->items->column(c).name);
        column.set_source(static_cast<uint32_t>(trajectory.layout->sources[c]));
      }
    }));
    std::vector<uint32_t> own;  // the item's chunks, by their order in it
    for (const auto& chunk : trajectory.chunks) {
      stored.add_chunks(Index(&chunks, chunk.get(), [&] {
        v1::ReplayStoredChunk& entry = *message.add_chunks();
        entry.set_file_chunk(all_chunks->IndexOf(chunk));
        entry.set_signature(signature_index(chunk->signature().get()));
      }));
      own.push_back(static_cast<uint32_t>(own.size()));
    }
    SlicesToProto(trajectory, own, stored.mutable_slices(), stored.mutable_slices_end());
  }
  for (int i = 0; i < static_cast<int>(snapshot.item_commits.size()); ++i) {
    message.mutable_items(i)->set_ticket(snapshot.items[static_cast<size_t>(i)].ticket);
    message.mutable_items(i)->set_ticket_commits(snapshot.item_commits[static_cast<size_t>(i)]);
  }
  message.set_limiter_offset(snapshot.limiter_offset);
  message.set_removal_draws(snapshot.order.removal_draws);
  message.mutable_free_slots()->Add(snapshot.order.free.begin(), snapshot.order.free.end());
  message.mutable_sampler_order()->Add(snapshot.order.sampler.begin(), snapshot.order.sampler.end());
  message.mutable_remover_order()->Add(snapshot.order.remover.begin(), snapshot.order.remover.end());
  message.set_commits(snapshot.versions.commits);
  message.set_epoch(snapshot.versions.head.epoch);
  message.set_version(snapshot.versions.head.version);
  message.set_items_consumed(snapshot.versions.head.items_consumed);
  message.set_consumed_position(snapshot.versions.consumed);
  message.set_position(snapshot.position);
  message.set_last_ticket(snapshot.last_ticket);
  message.set_serial(snapshot.serial);
  message.set_draws(snapshot.draws);
  message.set_max_priority(snapshot.max_priority);
  message.set_inserts(snapshot.inserts);
  message.set_samples(snapshot.samples);
  message.set_credited(snapshot.credited);
  for (const v1::ReplayWriterFence& fence : table.fences) *message.add_fences() = fence;
  message.set_lost_items(table.lost_items);
  return message;
}

absl::StatusOr<v1::ReplayCheckpointFile> WriteWhole(const std::string& directory, const std::string& name,
                                                    absl::string_view bytes, const OpenFile& open) {
  TANDEM_ASSIGN_OR_RETURN(FileWriter file, FileWriter::Open(directory, name, open));
  TANDEM_RETURN_IF_ERROR(file.Append(bytes));
  return file.Finish();
}

absl::Status Damaged(const std::string& path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(path, " is damaged: ", what,
                                          "; remove its directory to use an earlier checkpoint, or none"));
}

// Opens a file of a checkpoint. Links that lead out of the directory are not followed.
absl::StatusOr<std::unique_ptr<ReadableFile>> OpenFileOf(const std::string& directory,
                                                         const std::string& name) {
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = ReadableFile::OpenBelow(directory, name);
  if (absl::IsNotFound(file.status()))
    return Damaged(absl::StrCat(directory, "/", name), "it does not exist");
  return file;
}

absl::StatusOr<v1::ReplayCheckpointManifest> ReadManifest(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kManifest);
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, OpenFileOf(directory, kManifest));
  const absl::StatusOr<std::string> text = file->ReadAll(kMaxManifest);
  if (!text.ok()) return Damaged(path, text.status().message());
  const size_t line = text->rfind("# crc32 ");
  uint32_t crc = 0;
  v1::ReplayCheckpointManifest manifest;
  if (line == std::string::npos ||
      !absl::SimpleHexAtoi(absl::StripSuffix(absl::string_view(*text).substr(line + 8), "\n"), &crc) ||
      Crc32(absl::string_view(*text).substr(0, line)) != crc ||
      !google::protobuf::TextFormat::ParseFromString(text->substr(0, line), &manifest)) {
    return Damaged(path, "its CRC-32 does not match");
  }
  if (manifest.format_version() > kFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat(path, " has format ", manifest.format_version(),
                                                      "; this program reads up to ", kFormatVersion,
                                                      ": use a newer one"));
  }
  for (const v1::ReplayCheckpointFile& file : manifest.files()) {
    if (IsPlainFileName(file.name())) continue;
    return Damaged(path, absl::StrCat("it lists '", absl::CHexEscape(file.name()),
                                      "', which is no name of a file in its directory"));
  }
  return manifest;
}

// A chunk's values before its signature is known.
struct RawChunk {
  uint32_t steps = 0;
  std::unique_ptr<char[]> values;
  uint64_t bytes = 0;
  std::shared_ptr<const Chunk> chunk;
};

absl::StatusOr<std::vector<RawChunk>> ReadChunks(const std::string& directory, uint64_t expected_bytes) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, OpenFileOf(directory, kChunks));
  const std::string& path = file->path();
  if (file->size() != expected_bytes) {
    return Damaged(path, absl::StrCat("it has ", file->size(), " bytes instead of ", expected_bytes));
  }
  std::vector<RawChunk> chunks;
  for (uint64_t at = 0; at < file->size();) {
    char head[kRecordHead];
    uint64_t bytes = 0;
    uint32_t steps = 0, crc = 0;
    TANDEM_RETURN_IF_ERROR(file->Read(at, kRecordHead, head));
    std::memcpy(&bytes, head, 8);
    std::memcpy(&steps, head + 8, 4);
    std::memcpy(&crc, head + 12, 4);
    if (bytes > file->size() - at - kRecordHead) return Damaged(path, absl::StrCat("a chunk at byte ", at));
    RawChunk& chunk = chunks.emplace_back();
    chunk.steps = steps;
    chunk.bytes = bytes;
    chunk.values = std::make_unique_for_overwrite<char[]>(bytes);
    TANDEM_RETURN_IF_ERROR(file->Read(at + kRecordHead, bytes, chunk.values.get()));
    if (Crc32({chunk.values.get(), bytes}) != crc) {
      return Damaged(path, absl::StrCat("the CRC-32 of the chunk at byte ", at, " does not match"));
    }
    at += kRecordHead + bytes;
  }
  return chunks;
}

// Decodes a table; errors say what is wrong with it.
absl::StatusOr<SavedTable> Decode(const v1::ReplayTableCheckpoint& message, const ShareChunk& share,
                                  std::vector<std::shared_ptr<const Signature>>* known,
                                  std::vector<RawChunk>* raw) {
  const auto wrong = [](absl::string_view what) { return absl::DataLossError(what); };
  SavedTable table;
  TableSnapshot& snapshot = table.snapshot;
  TANDEM_ASSIGN_OR_RETURN(snapshot.options, FromProto(message.options()));
  TANDEM_ASSIGN_OR_RETURN(snapshot.created,
                          FromProto(message.has_created() ? message.created() : message.options()));
  TANDEM_ASSIGN_OR_RETURN(snapshot.columns, FromProto(message.columns()));
  std::vector<std::shared_ptr<const Signature>> signatures;
  for (const v1::ReplaySignature& stored : message.signatures()) {
    // Tables whose items share chunks must have the same signature object.
    auto same = std::find_if(known->begin(), known->end(), [&](const auto& signature) {
      return Equal(stored.columns(), signature->columns());
    });
    if (same == known->end()) {
      TANDEM_ASSIGN_OR_RETURN(std::vector<Column> columns, FromProto(stored.columns()));
      TANDEM_ASSIGN_OR_RETURN(auto signature, Signature::Make(std::move(columns)));
      same = known->insert(known->end(), std::move(signature));
    }
    signatures.push_back(*same);
  }
  std::vector<std::shared_ptr<const ItemLayout>> layouts;
  for (const v1::ReplayLayout& stored : message.layouts()) {
    std::vector<std::string> names;
    std::vector<size_t> sources;
    for (const v1::ReplayItemColumn& column : stored.columns()) {
      names.push_back(column.name());
      sources.push_back(column.source());
    }
    if (stored.signature() >= signatures.size()) return wrong("a layout without signature");
    TANDEM_ASSIGN_OR_RETURN(layouts.emplace_back(),
                            ItemLayout::Make(signatures[stored.signature()], names, std::move(sources)));
  }
  std::vector<std::shared_ptr<const Chunk>> chunks;
  for (const v1::ReplayStoredChunk& stored : message.chunks()) {
    if (stored.file_chunk() >= raw->size() || stored.signature() >= signatures.size()) {
      return wrong("a chunk that does not exist");
    }
    RawChunk& from = (*raw)[stored.file_chunk()];
    const std::shared_ptr<const Signature>& signature = signatures[stored.signature()];
    if (from.chunk == nullptr) {
      if (from.bytes != uint64_t{from.steps} * signature->step_bytes())
        return wrong("a chunk of another size");
      from.chunk =
          share(std::make_unique<const Chunk>(/*key=*/0, signature, from.steps, std::move(from.values)));
    }
    chunks.push_back(from.chunk);
  }
  const bool paced = snapshot.options.staleness.kind == StalenessKind::kPace;
  for (const v1::ReplayStoredItem& stored : message.items()) {
    auto trajectory = std::make_shared<Trajectory>();
    if (stored.layout() >= layouts.size()) return wrong("an item without layout");
    trajectory->layout = layouts[stored.layout()];
    trajectory->min_version = stored.min_version();
    trajectory->max_version = stored.max_version();
    absl::InlinedVector<uint32_t, 4> used;
    TANDEM_RETURN_IF_ERROR(SlicesFromProto(stored.slices(), stored.slices_end(),
                                           static_cast<size_t>(stored.chunks_size()), trajectory.get(),
                                           &used));
    for (const uint32_t index : used) {
      const uint32_t chunk = stored.chunks(static_cast<int>(index));
      if (chunk >= chunks.size()) return wrong("an item of a chunk that does not exist");
      trajectory->chunks.push_back(chunks[chunk]);
    }
    snapshot.items.push_back({.key = stored.key(),
                              .priority = stored.priority(),
                              .times_sampled = stored.times_sampled(),
                              .serial = stored.serial(),
                              .trajectory = std::move(trajectory),
                              .ticket = stored.ticket()});
    if (paced) snapshot.item_commits.push_back(stored.ticket_commits());
  }
  snapshot.limiter_offset = message.limiter_offset();
  snapshot.order = {.removal_draws = message.removal_draws(),
                    .free = {message.free_slots().begin(), message.free_slots().end()},
                    .sampler = {message.sampler_order().begin(), message.sampler_order().end()},
                    .remover = {message.remover_order().begin(), message.remover_order().end()}};
  snapshot.versions = {.commits = message.commits(),
                       .head = {.epoch = message.epoch(),
                                .version = message.version(),
                                .items_consumed = message.items_consumed()},
                       .consumed = message.consumed_position()};
  snapshot.position = message.position();
  snapshot.last_ticket = message.last_ticket();
  snapshot.serial = message.serial() + kSerialGap;
  snapshot.draws = message.draws();
  snapshot.max_priority = message.max_priority();
  snapshot.inserts = message.inserts();
  snapshot.samples = message.samples();
  snapshot.credited = message.credited();
  table.fences.assign(message.fences().begin(), message.fences().end());
  table.lost_items = message.lost_items();
  return table;
}

// Removes unfinished checkpoints and all but the newest `keep` ones.
void Prune(const std::string& root, uint32_t keep) {
  const absl::StatusOr<std::vector<std::string>> names = Directories(root);
  if (!names.ok()) return;
  std::vector<uint64_t> numbers;
  for (const std::string& name : *names) {
    if (const auto number = NumberOf(name)) numbers.push_back(*number);
  }
  std::sort(numbers.rbegin(), numbers.rend());
  for (const std::string& name : *names) {
    const auto number = NumberOf(name);
    const bool old = number && numbers.size() > keep && *number <= numbers[keep];
    if (!old && !absl::StartsWith(name, kUnfinished)) continue;
    std::error_code error;
    fs::remove_all(absl::StrCat(root, "/", name), error);
    if (error) LogWarning(absl::StrCat("cannot remove ", root, "/", name, ": ", error.message()));
  }
}

}  // namespace

absl::StatusOr<WrittenCheckpoint> WriteCheckpoint(const std::string& root,
                                                  absl::Span<const SavedTable> tables, uint32_t keep,
                                                  const OpenFile& open) {
  std::error_code error;
  fs::create_directories(root, error);
  if (error) return SystemError(error, root);
  Prune(root, std::numeric_limits<uint32_t>::max() - 1);
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> names, Directories(root));
  uint64_t number = 1;
  for (const std::string& name : names) {
    if (const auto existing = NumberOf(name)) number = std::max(number, *existing + 1);
  }
  const std::string name = absl::StrFormat("%s%012d", kPrefix, number);
  const std::string unfinished = absl::StrCat(root, "/", kUnfinished, name);
  fs::create_directory(unfinished, error);
  if (error) return SystemError(error, unfinished);

  WrittenCheckpoint written = {.directory = absl::StrCat(root, "/", name)};
  v1::ReplayCheckpointManifest manifest;
  manifest.set_format_version(kFormatVersion);
  manifest.set_created_unix_seconds(static_cast<uint64_t>(absl::ToUnixSeconds(absl::Now())));
  ChunkList chunks;
  for (size_t i = 0; i < tables.size(); ++i) {
    const v1::ReplayTableCheckpoint message = Encode(tables[i], &chunks);
    std::string bytes;
    if (message.ByteSizeLong() > std::numeric_limits<int32_t>::max() || !message.SerializeToString(&bytes)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("table '", tables[i].snapshot.options.name, "': ", tables[i].snapshot.items.size(),
                       " items need more than 2 GiB in a checkpoint, besides their values: lower max_items"));
    }
    TANDEM_ASSIGN_OR_RETURN(*manifest.add_files(),
                            WriteWhole(unfinished, absl::StrCat("TABLE-", i), bytes, open));
    written.items += tables[i].snapshot.items.size();
  }
  TANDEM_ASSIGN_OR_RETURN(*manifest.add_files(), chunks.Write(unfinished, open));
  for (const v1::ReplayCheckpointFile& file : manifest.files()) written.bytes += file.bytes();
  std::string text;
  google::protobuf::TextFormat::PrintToString(manifest, &text);
  absl::StrAppend(&text, "# crc32 ", absl::Hex(Crc32(text)), "\n");
  TANDEM_RETURN_IF_ERROR(WriteWhole(unfinished, kManifest, text, open));
  TANDEM_RETURN_IF_ERROR(SyncDirectory(unfinished));
  fs::rename(unfinished, written.directory, error);
  if (error) return SystemError(error, written.directory);
  TANDEM_RETURN_IF_ERROR(SyncDirectory(root));
  Prune(root, std::max(keep, uint32_t{1}));
  return written;
}

absl::StatusOr<std::string> LatestCheckpoint(const std::string& root) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> names, Directories(root));
  std::string latest;
  uint64_t largest = 0;
  for (const std::string& name : names) {
    const auto number = NumberOf(name);
    if (!number || *number < largest) continue;
    largest = *number;
    latest = name;
  }
  if (latest.empty()) return absl::NotFoundError(absl::StrCat("there is no replay checkpoint below ", root));
  return absl::StrCat(root, "/", latest);
}

absl::StatusOr<std::vector<SavedTable>> ReadCheckpoint(const std::string& directory,
                                                       const ShareChunk& share) {
  TANDEM_ASSIGN_OR_RETURN(const v1::ReplayCheckpointManifest manifest, ReadManifest(directory));
  std::vector<RawChunk> raw;
  std::vector<std::shared_ptr<const Signature>> signatures;
  for (const v1::ReplayCheckpointFile& file : manifest.files()) {
    if (file.name() != kChunks) continue;
    TANDEM_ASSIGN_OR_RETURN(raw, ReadChunks(directory, file.bytes()));
  }
  std::vector<SavedTable> tables;
  for (const v1::ReplayCheckpointFile& file : manifest.files()) {
    if (file.name() == kChunks) continue;
    TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> opened, OpenFileOf(directory, file.name()));
    const std::string& path = opened->path();
    if (opened->size() != file.bytes()) {
      return Damaged(path, absl::StrCat("it has ", opened->size(), " bytes instead of ", file.bytes()));
    }
    TANDEM_ASSIGN_OR_RETURN(const std::string bytes, opened->ReadAll());
    v1::ReplayTableCheckpoint message;
    if (Crc32(bytes) != file.crc32() || !message.ParseFromString(bytes)) {
      return Damaged(path, "its CRC-32 does not match, or it does not parse");
    }
    absl::StatusOr<SavedTable> table = Decode(message, share, &signatures, &raw);
    if (!table.ok()) return Damaged(path, table.status().message());
    tables.push_back(*std::move(table));
  }
  return tables;
}

}  // namespace tandem::replay
