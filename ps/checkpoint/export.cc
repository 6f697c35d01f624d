// SPDX-License-Identifier: Apache-2.0
#include "ps/checkpoint/export.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/checksummed_file.h"
#include "base/status.h"
#include "ps/checkpoint/chain.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/format.h"
#include "ps/checkpoint/numpy_file.h"

namespace tandem::ps {
namespace {

constexpr size_t kExportBuffer = size_t{1} << 20;

absl::string_view FloatBytes(const float* values, size_t count) {
  return {reinterpret_cast<const char*>(values), count * sizeof(float)};
}

// A file that is written through a buffer and gets its name when it is complete.
class ExportFile {
 public:
  static absl::StatusOr<std::unique_ptr<ExportFile>> Create(const std::string& path) {
    std::unique_ptr<ExportFile> file(new ExportFile(path));
    TANDEM_ASSIGN_OR_RETURN(file->file_, OpenPosixFile(file->temporary_));
    return file;
  }
  ~ExportFile() {
    if (file_ != nullptr) std::remove(temporary_.c_str());
  }

  absl::Status Append(absl::string_view bytes) {
    absl::StrAppend(&buffer_, bytes);
    return buffer_.size() < kExportBuffer ? absl::OkStatus() : Flush();
  }
  absl::Status Finish() {
    TANDEM_RETURN_IF_ERROR(Flush());
    TANDEM_RETURN_IF_ERROR(file_->Sync());
    file_.reset();
    if (std::rename(temporary_.c_str(), path_.c_str()) == 0) return absl::OkStatus();
    const absl::Status failed = absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", path_));
    std::remove(temporary_.c_str());
    return failed;
  }

 private:
  explicit ExportFile(const std::string& path) : path_(path), temporary_(path + ".tmp") {}
  absl::Status Flush() {
    TANDEM_RETURN_IF_ERROR(file_->Append(buffer_));
    buffer_.clear();
    return absl::OkStatus();
  }

  const std::string path_, temporary_;
  std::unique_ptr<WritableFile> file_;  // nullptr: finished
  std::string buffer_;
};

// Receives the rows of a table in their order.
class RowSink {
 public:
  virtual ~RowSink() = default;
  // `row` has the embedding and then the optimizer state.
  virtual absl::Status Add(uint64_t id, const float* row) = 0;
  virtual absl::Status Finish() = 0;
};

class NpySink : public RowSink {
 public:
  static absl::StatusOr<std::unique_ptr<RowSink>> Create(const std::string& to, bool with_state,
                                                         ExportedTable* table) {
    auto sink = std::make_unique<NpySink>();
    sink->dim_ = table->dim;
    sink->state_ = with_state ? table->state : 0;
    const auto open = [&](const char* suffix, absl::string_view dtype, std::vector<uint64_t> shape,
                          std::unique_ptr<ExportFile>* out) -> absl::Status {
      table->files.push_back(absl::StrCat(table->name, ".", suffix, ".npy"));
      TANDEM_ASSIGN_OR_RETURN(*out, ExportFile::Create(absl::StrCat(to, "/", table->files.back())));
      return (*out)->Append(NpyHeader(dtype, shape));
    };
    TANDEM_RETURN_IF_ERROR(open("ids", "<u8", {table->rows}, &sink->ids_file_));
    TANDEM_RETURN_IF_ERROR(open("rows", "<f4", {table->rows, table->dim}, &sink->rows_file_));
    if (sink->state_ > 0) {
      TANDEM_RETURN_IF_ERROR(open("state", "<f4", {table->rows, table->state}, &sink->state_file_));
    }
    return sink;
  }

  absl::Status Add(uint64_t id, const float* row) override {
    TANDEM_RETURN_IF_ERROR(ids_file_->Append({reinterpret_cast<const char*>(&id), sizeof(id)}));
    TANDEM_RETURN_IF_ERROR(rows_file_->Append(FloatBytes(row, dim_)));
    return state_ == 0 ? absl::OkStatus() : state_file_->Append(FloatBytes(row + dim_, state_));
  }
  absl::Status Finish() override {
    TANDEM_RETURN_IF_ERROR(ids_file_->Finish());
    TANDEM_RETURN_IF_ERROR(rows_file_->Finish());
    return state_ == 0 ? absl::OkStatus() : state_file_->Finish();
  }

 private:
  size_t dim_ = 0, state_ = 0;
  std::unique_ptr<ExportFile> ids_file_, rows_file_, state_file_;
};

class CsvSink : public RowSink {
 public:
  static absl::StatusOr<std::unique_ptr<RowSink>> Create(const std::string& to, bool with_state,
                                                         ExportedTable* table) {
    auto sink = std::make_unique<CsvSink>();
    table->files.push_back(absl::StrCat(table->name, ".csv"));
    TANDEM_ASSIGN_OR_RETURN(sink->file_, ExportFile::Create(absl::StrCat(to, "/", table->files.back())));
    const uint32_t state = with_state ? table->state : 0;
    sink->floats_ = table->dim + state;
    std::string header = "id";
    for (uint32_t i = 0; i < table->dim; ++i) absl::StrAppend(&header, ",v", i);
    for (uint32_t i = 0; i < state; ++i) absl::StrAppend(&header, ",s", i);
    TANDEM_RETURN_IF_ERROR(sink->file_->Append(header + "\n"));
    return sink;
  }

  absl::Status Add(uint64_t id, const float* row) override {
    line_ = absl::StrCat(id);
    for (size_t i = 0; i < floats_; ++i) {
      std::array<char, 32> digits;  // the fewest that read back as the same float
      const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), row[i]);
      line_ += ',';
      line_.append(digits.data(), end);
    }
    line_ += '\n';
    return file_->Append(line_);
  }
  absl::Status Finish() override { return file_->Finish(); }

 private:
  size_t floats_ = 0;
  std::string line_;
  std::unique_ptr<ExportFile> file_;
};

using Readers = std::vector<std::unique_ptr<TableFileReader>>;

absl::StatusOr<ExportedTable> ExportTable(const Readers& readers, const std::string& to,
                                          const ExportOptions& options) {
  const v1::TableFileHeader& header = readers.front()->header();
  if (readers.size() != header.num_servers()) {
    return absl::DataLossError(absl::StrCat("table '", header.config().name(), "' was saved by ",
                                            header.num_servers(), " servers, but the checkpoint has ",
                                            readers.size(), " of its files beside ",
                                            readers.front()->path()));
  }
  ExportedTable table{.name = header.config().name(),
                      .dim = header.config().dim(),
                      .state = header.row_floats() - header.config().dim(),
                      .config = header.config()};
  std::multimap<uint32_t, TableChain*> buckets;
  std::vector<std::unique_ptr<TableChain>> chains;
  for (const auto& reader : readers) {
    if (reader->header().row_floats() != header.row_floats()) {
      return absl::DataLossError(absl::StrCat(reader->path(), " does not belong with ",
                                              readers.front()->path(), ": another save wrote it"));
    }
    TANDEM_ASSIGN_OR_RETURN(TableChain opened, TableChain::Open(reader.get()));
    chains.push_back(std::make_unique<TableChain>(std::move(opened)));
    for (const v1::BucketIndex& bucket : reader->footer().buckets()) {
      buckets.emplace(bucket.bucket(), chains.back().get());
      if (!reader->builds_on_another()) {
        table.rows += bucket.rows();
        continue;
      }
      // Files that build on others do not say how many rows there are, and an .npy file begins with the
      // number.
      const auto count = [&](uint64_t, const float*, const RowHistory&) { ++table.rows; };
      TANDEM_RETURN_IF_ERROR(chains.back()->ReadBucket(bucket.bucket(), count).status());
    }
  }
  const auto create = options.format == ExportFormat::kCsv ? CsvSink::Create : NpySink::Create;
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<RowSink> sink, create(to, options.optimizer_state, &table));
  for (const auto& [number, chain] : buckets) {
    absl::Status added;
    const auto add = [&](uint64_t id, const float* row, const RowHistory&) {
      if (added.ok()) added = sink->Add(id, row);
    };
    TANDEM_RETURN_IF_ERROR(chain->ReadBucket(number, add).status());
    TANDEM_RETURN_IF_ERROR(added);
  }
  TANDEM_RETURN_IF_ERROR(sink->Finish());
  return table;
}

absl::Status ExportDense(const v1::DenseState& dense, const std::string& to, bool with_state,
                         std::vector<std::string>* blocks) {
  std::vector<NpzEntry> entries;
  uint64_t bytes = 0;
  const auto add = [&](const std::string& name, absl::string_view dtype, absl::Span<const uint64_t> shape,
                       absl::string_view values) {
    entries.push_back({name, absl::StrCat(NpyHeader(dtype, shape), values)});
    bytes += entries.back().bytes.size();
    blocks->push_back(name);
  };
  const auto add_block = [&](const v1::DenseBlock& block) -> absl::Status {
    const std::vector<uint64_t> shape(block.shape().begin(), block.shape().end());
    uint64_t size = sizeof(float);
    bool fits = true;
    for (const uint64_t side : shape) fits = fits && !__builtin_mul_overflow(size, side, &size);
    if (!fits || size != block.values().size()) {
      return absl::DataLossError(absl::StrCat("dense block '", block.name(), "' has ", block.values().size(),
                                              " bytes for the shape [", absl::StrJoin(shape, ","), "]"));
    }
    add(block.name(), "<f4", shape, block.values());
    return absl::OkStatus();
  };
  for (const v1::DenseBlock& block : dense.parameters()) TANDEM_RETURN_IF_ERROR(add_block(block));
  // Nothing can be computed with the parameters of a model with batch normalization but without these.
  for (const v1::DenseBlock& block : dense.running_averages()) TANDEM_RETURN_IF_ERROR(add_block(block));
  if (with_state) {
    const uint64_t steps = dense.optimizer_steps();
    add("optimizer_state", "<f4", {dense.optimizer_state().size() / sizeof(float)}, dense.optimizer_state());
    add("optimizer_steps", "<u8", {}, {reinterpret_cast<const char*>(&steps), sizeof(steps)});
  }
  constexpr uint64_t kMaxNpz = uint64_t{4000} << 20;
  if (bytes > kMaxNpz) {
    return absl::InvalidArgumentError(
        absl::StrCat("the dense parameters have ", bytes, " bytes, but an .npz file holds less than 4 GiB"));
  }
  return WriteFileAtomically(absl::StrCat(to, "/dense.npz"), NpzFile(entries));
}

}  // namespace

absl::StatusOr<Exported> ExportCheckpoint(const std::string& checkpoint, const std::string& to,
                                          const ExportOptions& options) {
  Exported exported;
  TANDEM_ASSIGN_OR_RETURN(exported.manifest, ReadManifest(checkpoint));
  std::map<std::string, Readers> tables;
  for (const v1::CheckpointFile& file : exported.manifest.files()) {
    if (!absl::EndsWith(file.name(), kTableFileSuffix)) continue;
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<TableFileReader> reader,
                            TableFileReader::Open(absl::StrCat(checkpoint, "/", file.name())));
    Readers& readers = tables[reader->header().config().name()];
    readers.push_back(std::move(reader));
  }
  TANDEM_ASSIGN_OR_RETURN(const v1::DenseState dense, ReadDenseState(checkpoint));
  std::error_code error;
  std::filesystem::create_directories(to, error);
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot create the directory ", to));
  for (const auto& [name, readers] : tables) {
    TANDEM_ASSIGN_OR_RETURN(ExportedTable table, ExportTable(readers, to, options));
    exported.tables.push_back(std::move(table));
  }
  const absl::Status written = ExportDense(dense, to, options.optimizer_state, &exported.blocks);
  TANDEM_RETURN_IF_ERROR(Annotate(written, checkpoint));
  return exported;
}

}  // namespace tandem::ps
