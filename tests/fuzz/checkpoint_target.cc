// SPDX-License-Identifier: Apache-2.0
// A checkpoint and the one that it builds on, read as `tandem ckpt` and servers do.

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/checksummed_file.h"
#include "ps/checkpoint/chain.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/digest.h"
#include "ps/checkpoint/export.h"
#include "ps/checkpoint/format.h"
#include "ps/checkpoint/overwrite.h"
#include "tests/fuzz/real_files.h"
#include "tests/ps/checkpoint/trained_table.h"

namespace tandem::fuzz {
namespace {

uint32_t U32At(const std::string& bytes, size_t at) {
  uint32_t value = 0;
  if (at <= bytes.size() && bytes.size() - at >= sizeof(value))
    std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}
void PutU32(std::string* bytes, size_t at, uint32_t value) {
  if (at <= bytes->size() && bytes->size() - at >= sizeof(value))
    std::memcpy(bytes->data() + at, &value, sizeof(value));
}

// Makes the CRCs of a manifest right.
std::string SealManifest(std::string text) {
  text = text.substr(0, text.rfind("# crc32: "));
  return absl::StrCat(text, absl::StrFormat("# crc32: %08x\n", Crc32(text)));
}

// Makes the size and the CRC of a file DENSE right.
std::string SealDense(std::string bytes) {
  if (bytes.size() < 16) return bytes;
  PutU32(&bytes, 8, static_cast<uint32_t>(bytes.size() - 16));
  PutU32(&bytes, bytes.size() - 4, Crc32(absl::string_view(bytes).substr(0, bytes.size() - 4)));
  return bytes;
}

// Makes the CRCs of a table file's header, buckets and footer right.
std::string SealTable(std::string bytes) {
  if (bytes.size() < 32) return bytes;
  const size_t header_end = 12 + size_t{U32At(bytes, 8)};
  if (header_end < bytes.size())
    PutU32(&bytes, header_end, Crc32(absl::string_view(bytes).substr(0, header_end)));
  const size_t trailer = bytes.size() - 16, footer_bytes = U32At(bytes, trailer);
  if (footer_bytes > trailer) return bytes;
  const size_t footer_at = trailer - footer_bytes;
  ps::v1::TableFileFooter footer;
  if (footer.ParseFromArray(bytes.data() + footer_at, static_cast<int>(footer_bytes))) {
    for (ps::v1::BucketIndex& bucket : *footer.mutable_buckets()) {
      if (bucket.offset() > footer_at || bucket.bytes() > footer_at - bucket.offset()) continue;
      bucket.set_crc32(Crc32(absl::string_view(bytes).substr(bucket.offset(), bucket.bytes())));
    }
    const std::string sealed = footer.SerializeAsString();
    bytes = absl::StrCat(bytes.substr(0, footer_at), sealed, bytes.substr(trailer));
    PutU32(&bytes, bytes.size() - 16, static_cast<uint32_t>(sealed.size()));
  }
  const size_t end = bytes.size() - 16, from = end - U32At(bytes, end);
  PutU32(&bytes, end + 4, Crc32(absl::string_view(bytes).substr(from, end + 4 - from)));
  return bytes;
}

// Two checkpoints of one training run.
class Checkpoints {
 public:
  Checkpoints() {
    ps::v1::TableConfig config = ps::Table(ps::Adagrad(0.1f));
    *config.mutable_admission() = ps::AdmitAfter(2, 4096);
    ps::TrainedTable run(config, Root());
    for (const uint64_t step : {1, 2}) {
      run.Train(5, 200, 20);
      TANDEM_CHECK(run.Save(step).ok());
    }
    ps::v1::DenseState dense;
    ps::v1::DenseBlock& block = *dense.add_parameters();
    block.set_name("weight");
    block.add_shape(2);
    block.add_shape(3);
    block.set_values(std::string(24, '\x01'));
    dense.set_optimizer_state(std::string(24, '\x02'));
    TANDEM_CHECK(ps::WriteDenseState(Newest(), dense).ok());
    TANDEM_CHECK(ps::BeginOverwrite(Root(), {.run_id = "another"}).ok());
    const std::string base = "root/" + ps::CheckpointName(1), newest = "root/" + ps::CheckpointName(2);
    files_.Add(newest + "/user.0-of-1.table", SealTable);
    files_.Add(base + "/user.0-of-1.table", SealTable);
    files_.Add(newest + "/MANIFEST", SealManifest);
    files_.Add(base + "/MANIFEST", SealManifest);
    files_.Add(newest + "/DENSE", SealDense);
    files_.Add("root/OVERWRITE");
    std::filesystem::create_directory(files_.File("to"));
  }
  const RealFiles& files() const { return files_; }

  void Run(Input input) const {
    const bool csv = (input.size() & 1) != 0;
    files_.Run(input, [&](size_t) {
      (void)ps::ListCheckpoints(Root());
      (void)ps::BestCheckpoint(Root());
      (void)ps::VerifyCheckpoint(Newest());
      (void)ps::VerifyLinks(Newest());
      (void)ps::DigestCheckpoint(Newest());
      (void)ps::ReadDenseState(Newest());
      (void)ps::ExportCheckpoint(
          Newest(), files_.File("to"),
          {.format = csv ? ps::ExportFormat::kCsv : ps::ExportFormat::kNpy, .optimizer_state = true});
      const auto compacted = ps::CompactCheckpoint(Newest());
      if (compacted.ok() && *compacted) files_.Restore();
    });
  }

 private:
  std::string Root() const { return files_.File("root"); }
  std::string Newest() const { return absl::StrCat(Root(), "/", ps::CheckpointName(2)); }
  RealFiles files_;
};

const Checkpoints& Real() {
  static const Checkpoints checkpoints;
  return checkpoints;
}

}  // namespace

void FuzzCheckpoint(Input input) { Real().Run(input); }
std::vector<std::string> CheckpointSeeds() { return Real().files().Seeds(); }

}  // namespace tandem::fuzz
