// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer/data_identity.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/checksummed_file.h"
#include "base/random.h"
#include "base/status.h"
#include "base/utf8.h"
#include "worker/data/data_file.h"

namespace tandem::worker {
namespace {

constexpr uint64_t kBlockBytes = 64 << 10;
// Blocks that are read of all files together, and of one file.
constexpr uint64_t kBlocks = 1024;
constexpr uint64_t kMostBlocksOfFile = 256, kLeastBlocksOfFile = 8;

using FieldList = google::protobuf::RepeatedPtrField<v1::DataField>;
using FileList = google::protobuf::RepeatedPtrField<v1::DataFileIdentity>;

// Reads a file whole, or, if it is larger, `most` blocks.
absl::StatusOr<v1::DataFileIdentity> IdentifyFile(const std::string& path, uint64_t most) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, ReadableFile::Open(path));
  const uint64_t size = file->size();
  const bool whole = size <= most * kBlockBytes;
  const uint64_t blocks = whole ? (size + kBlockBytes - 1) / kBlockBytes : most;
  std::string block(kBlockBytes, '\0');
  uint64_t fingerprint = size;
  for (uint64_t i = 0; i < blocks; ++i) {
    // The last block of a large file ends with the file.
    const uint64_t offset =
        whole ? i * kBlockBytes
              : static_cast<uint64_t>(static_cast<double>(size - kBlockBytes) *
                                      (static_cast<double>(i) / static_cast<double>(most - 1)));
    const size_t bytes = static_cast<size_t>(std::min(kBlockBytes, size - offset));
    TANDEM_RETURN_IF_ERROR(file->Read(offset, bytes, block.data()));
    fingerprint = HashBytes(absl::string_view(block).substr(0, bytes), fingerprint);
  }
  v1::DataFileIdentity identity;
  identity.set_path(path);
  identity.set_bytes(size);
  identity.set_fingerprint(fingerprint);
  return identity;
}

absl::Status IdentifyFiles(const std::vector<std::string>& paths, FileList* files) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<FoundFile> found, FindFiles(paths));
  const uint64_t most =
      std::clamp(kBlocks / std::max<uint64_t>(1, found.size()), kLeastBlocksOfFile, kMostBlocksOfFile);
  for (const FoundFile& file : found) {
    TANDEM_ASSIGN_OR_RETURN(*files->Add(), IdentifyFile(file.path, most));
  }
  return absl::OkStatus();
}

void Add(const std::string& name, const std::string& value, FieldList* fields) {
  v1::DataField* const field = fields->Add();
  field->set_name(name);
  field->set_value(value);
}

std::string FormatOf(const Schema& schema) {
  constexpr const char* kNames[] = {"csv", "tsv", "criteo", "libsvm", "libfm"};
  std::string text = kNames[static_cast<int>(schema.format)];
  if (schema.format == DataFormat::kCsv)
    absl::StrAppend(&text, " delimited by ", Quoted({&schema.delimiter, 1}));
  if (!schema.header) absl::StrAppend(&text, " without header");
  return text;
}

std::string LabelOf(const Schema& schema) {
  return schema.has_threshold ? absl::StrCat(schema.label, " (threshold ", schema.threshold, ")")
                              : schema.label;
}

// Describes which examples of the training files are for training.
std::string SplitOf(const DatasetOptions& options) {
  const double valid = options.valid_files.empty() ? options.valid_fraction : 0;
  const double test = options.test_files.empty() ? options.test_fraction : 0;
  if (valid == 0 && test == 0) return "none";
  return absl::StrCat("valid ", valid, ", test ", test, ", seed ", options.split_seed, ", by ",
                      options.split_by == SplitBy::kText ? "text" : "position");
}

std::string Describe(const SparseFeature& feature) {
  std::vector<std::string> parts;
  if (feature.separator != '\0') parts.push_back(absl::StrCat("separator ", Quoted({&feature.separator, 1})));
  if (feature.hash_buckets > 0) parts.push_back(absl::StrCat("hash_buckets ", feature.hash_buckets));
  if (!feature.shared_as.empty()) parts.push_back(absl::StrCat("shared_as ", feature.shared_as));
  return absl::StrJoin(parts, ", ");
}

std::string Describe(const DenseFeature& feature) {
  constexpr const char* kNames[] = {"none", "log1p", "standardize"};
  return absl::StrCat("transform ", kNames[static_cast<int>(feature.transform)]);
}

void AddFeatures(const Schema& schema, v1::DataIdentity* identity) {
  for (const DenseFeature& feature : schema.dense) {
    Add(feature.column, Describe(feature), identity->mutable_dense());
  }
  for (const SparseFeature& feature : schema.sparse) {
    Add(feature.column, Describe(feature), identity->mutable_sparse());
  }
}

std::string ColumnNames(const std::vector<std::string>& names) {
  constexpr size_t kMostListed = 8;
  std::vector<std::string> listed(names.begin(), names.begin() + std::min(names.size(), kMostListed));
  for (std::string& name : listed) name = absl::StrCat("'", Printable(name), "'");
  if (listed.size() < names.size()) listed.push_back(absl::StrCat("... (", names.size(), " in all)"));
  return absl::StrJoin(listed, ", ");
}

void CompareColumns(const std::string& list, const FieldList& before, const FieldList& now,
                    std::vector<std::string>* differences) {
  std::set<std::string> then_names, now_names;
  for (const v1::DataField& field : before) then_names.insert(field.name());
  for (const v1::DataField& field : now) now_names.insert(field.name());
  std::vector<std::string> added, missing;
  for (const v1::DataField& field : now) {
    if (!then_names.contains(field.name())) added.push_back(field.name());
  }
  for (const v1::DataField& field : before) {
    if (!now_names.contains(field.name())) missing.push_back(field.name());
  }
  if (!added.empty() && !missing.empty()) {
    differences->push_back(
        absl::StrCat(list, " has ", ColumnNames(added), " instead of ", ColumnNames(missing)));
  } else if (!added.empty()) {
    differences->push_back(absl::StrCat(list, " has ", ColumnNames(added), " in addition"));
  } else if (!missing.empty()) {
    differences->push_back(absl::StrCat(list, " lacks ", ColumnNames(missing)));
  }
  if (!added.empty() || !missing.empty()) return;
  for (int i = 0; i < now.size(); ++i) {
    if (now[i].name() == before[i].name()) continue;
    differences->push_back(absl::StrCat(list, " has another order: '", Printable(now[i].name()),
                                        "' is number ", i + 1, ", where '", Printable(before[i].name()),
                                        "' was"));
    return;
  }
  for (int i = 0; i < now.size(); ++i) {
    if (now[i].value() == before[i].value()) continue;
    const auto text = [](const std::string& value) {
      return value.empty() ? std::string("plain") : Printable(value);
    };
    differences->push_back(absl::StrCat("column '", Printable(now[i].name()), "' of ", list, " is ",
                                        text(now[i].value()), ", was ", text(before[i].value())));
  }
}

void CompareFields(const FieldList& before, const FieldList& now, std::vector<std::string>* differences) {
  for (const v1::DataField& field : now) {
    const auto same_name = [&](const v1::DataField& other) { return other.name() == field.name(); };
    const auto found = std::find_if(before.begin(), before.end(), same_name);
    const std::string was = found == before.end() ? "" : found->value();
    if (was == field.value()) continue;
    differences->push_back(
        absl::StrCat(field.name(), " is '", Printable(field.value()), "', was '", Printable(was), "'"));
  }
}

std::string Sized(const v1::DataFileIdentity& file) {
  return absl::StrCat("'", Printable(file.path()), "' (", file.bytes(), " bytes)");
}

void CompareFiles(const std::string& list, const FileList& before, const FileList& now,
                  std::vector<std::string>* differences) {
  if (before.size() != now.size()) {
    const auto text = [](const FileList& files) {
      return files.empty() ? std::string("cut from data.train")
                           : absl::StrCat(files.size(), files.size() == 1 ? " file, " : " files, the first ",
                                          Sized(files[0]));
    };
    differences->push_back(absl::StrCat(list, " is ", text(now), ", was ", text(before)));
    return;
  }
  int others = 0;
  std::string first;
  for (int i = 0; i < now.size(); ++i) {
    if (now[i].bytes() == before[i].bytes() && now[i].fingerprint() == before[i].fingerprint()) continue;
    if (++others > 1) continue;
    const bool same_name = std::filesystem::path(now[i].path()).lexically_normal() ==
                           std::filesystem::path(before[i].path()).lexically_normal();
    if (same_name && now[i].bytes() == before[i].bytes()) {
      first = absl::StrCat(list, ": ", Sized(now[i]), " has other contents than it had");
    } else if (same_name) {
      first = absl::StrCat(list, ": ", Sized(now[i]), " had ", before[i].bytes(), " bytes");
    } else {
      first = absl::StrCat(list, " is ", Sized(now[i]), ", was ", Sized(before[i]));
    }
  }
  if (others > 1) absl::StrAppend(&first, ", and ", others - 1, others == 2 ? " other file" : " other files");
  if (others > 0) differences->push_back(std::move(first));
}

}  // namespace

absl::StatusOr<v1::DataIdentity> IdentifyData(const DatasetOptions& options, const Dataset& dataset,
                                              const ExampleOrder& order) {
  const Schema& schema = dataset.schema();
  v1::DataIdentity identity;
  TANDEM_RETURN_IF_ERROR(IdentifyFiles(options.train_files, identity.mutable_train()));
  TANDEM_RETURN_IF_ERROR(IdentifyFiles(options.valid_files, identity.mutable_valid()));
  AddFeatures(schema, &identity);
  FieldList* const settings = identity.mutable_settings();
  Add("data.format", FormatOf(schema), settings);
  Add("data.label", LabelOf(schema), settings);
  Add("data.nan", schema.nan_is_missing ? "missing" : "malformed", settings);
  Add("data.split", SplitOf(options), settings);
  FieldList* const orders = identity.mutable_order();
  Add("data.shuffle", order.shuffle ? "true" : "false", orders);
  if (order.shuffle) {
    Add("data.shuffle_buffer", absl::StrCat(order.shuffle_buffer), orders);
    Add("train.seed", absl::StrCat(order.seed), orders);
  }
  return identity;
}

std::vector<std::string> CompareFeatures(const v1::DataIdentity& before, const Schema& now) {
  v1::DataIdentity features;
  AddFeatures(now, &features);
  std::vector<std::string> differences;
  CompareColumns("data.sparse", before.sparse(), features.sparse(), &differences);
  CompareColumns("data.dense", before.dense(), features.dense(), &differences);
  return differences;
}

DataDifferences CompareData(const v1::DataIdentity& before, const v1::DataIdentity& now) {
  DataDifferences differences;
  CompareColumns("data.sparse", before.sparse(), now.sparse(), &differences.features);
  CompareColumns("data.dense", before.dense(), now.dense(), &differences.features);
  CompareFiles("data.train", before.train(), now.train(), &differences.training);
  CompareFields(before.settings(), now.settings(), &differences.training);
  CompareFiles("data.valid", before.valid(), now.valid(), &differences.validation);
  CompareFields(before.order(), now.order(), &differences.order);
  return differences;
}

}  // namespace tandem::worker
