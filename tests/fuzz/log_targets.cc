// SPDX-License-Identifier: Apache-2.0
// What a server finds on its disk when it starts: the log of a store, and the log and the snapshot of a
// parameter server.

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "cluster/store/memory_store.h"
#include "cluster/store/store_disk.h"
#include "ps/log/record.h"
#include "tests/fuzz/real_files.h"
#include "tests/ps/server/durable_shard.h"

namespace tandem::fuzz {
namespace {

template <typename T>
T At(const std::string& bytes, size_t at) {
  T value{};
  if (at <= bytes.size() && bytes.size() - at >= sizeof(T)) std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}
template <typename T>
void Put(std::string* bytes, size_t at, T value) {
  if (at <= bytes->size() && bytes->size() - at >= sizeof(T))
    std::memcpy(bytes->data() + at, &value, sizeof(T));
}

// Makes the checksum of each record of a store's log right (cluster/store/log.h).
std::string SealStoreLog(std::string bytes) {
  constexpr size_t kMagic = 16, kHeader = 12;
  for (size_t at = kMagic; at + kHeader <= bytes.size();) {
    const auto size = At<uint32_t>(bytes, at);
    if (size > bytes.size() - at - kHeader) break;
    uint64_t hash = 0xcbf29ce484222325u ^ size;
    for (const char c : bytes.substr(at + kHeader, size))
      hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
    Put(&bytes, at + sizeof(size), hash);
    at += kHeader + size;
  }
  return bytes;
}

class StoreLog {
 public:
  StoreLog() {
    {
      cluster::MemoryStore store;
      const auto disk = cluster::StoreDisk::Open(files_.directory(), &store, nullptr);
      TANDEM_CHECK(disk.ok());
      for (const char* key : {"a", "b"}) TANDEM_CHECK(store.Set(key, "value").ok());
      TANDEM_CHECK(store.Add("counter", 3, "request 1").ok());
      TANDEM_CHECK(store.Append("a", " and more", "request 2").ok());
      for (const char* item : {"first", "second"}) TANDEM_CHECK(store.Push("queue", item, item).ok());
      TANDEM_CHECK(store.TryPop("queue", "request 3").ok());
      TANDEM_CHECK(store.Delete("b", "request 4").ok());
    }
    files_.Add("log", SealStoreLog);
  }
  const RealFiles& files() const { return files_; }
  void Run(Input input) const {
    files_.Run(input, [&](size_t) {
      cluster::MemoryStore store;
      const auto disk = cluster::StoreDisk::Open(files_.directory(), &store, nullptr);
      // What was read can be changed.
      if (disk.ok()) (void)store.Set("after", "value");
    });
  }

 private:
  RealFiles files_;
};

const StoreLog& RealStoreLog() {
  static const StoreLog log;
  return log;
}

// Makes the CRCs of a segment's or a snapshot's records right (ps/log/record.h).
std::string SealRecords(std::string bytes) {
  size_t at = 8;
  if (absl::StartsWith(bytes, ps::kSegmentMagic)) {
    const size_t end = 12 + size_t{At<uint32_t>(bytes, 8)};
    if (end > bytes.size()) return bytes;
    Put(&bytes, end, Crc32c(absl::string_view(bytes).substr(0, end)));
    at = (end + 4 + 7) / 8 * 8;
  }
  while (at + ps::kRecordHeaderBytes <= bytes.size()) {
    const size_t body = At<uint32_t>(bytes, at + 8), size = ps::kRecordHeaderBytes + body;
    if (size > bytes.size() - at) break;
    Put(&bytes, at + 4, Crc32c(absl::string_view(bytes).substr(at + 8, size - 8)));
    at += ps::RecordBytes(body);
  }
  return bytes;
}

// The files of a parameter server that was killed, by path.
std::vector<std::pair<std::string, std::string>> ShardFiles() {
  ps::testing::Shard shard(
      [](ps::ParameterServerOptions* options) { options->durability.snapshot_bytes = 4000; });
  TANDEM_CHECK(shard.Start().ok());
  ps::v1::TableConfig config = ps::testing::CountTable(2, ps::Bounded(3));
  *config.mutable_admission() = ps::AdmitAfter(2, 4096);
  TANDEM_CHECK(shard->CreateTable(config).ok());
  for (uint64_t step = 0; shard.Info().snapshots() == 0; ++step) {
    for (uint32_t worker : {0, 1}) {
      TANDEM_CHECK(
          shard->Push({.worker = worker, .step = step}, {ps::testing::CountPush(worker, step)}).ok());
    }
  }
  TANDEM_CHECK(shard->Flush("user").ok());
  shard.Kill();
  std::vector<std::pair<std::string, std::string>> files;
  for (const std::string& path : shard.files().Paths("/shard/")) {
    files.emplace_back(path, shard.files().Read(path, 0, uint64_t{1} << 30).value());
  }
  return files;
}
const std::vector<std::pair<std::string, std::string>>& RealShard() {
  static const auto* const files = new std::vector<std::pair<std::string, std::string>>(ShardFiles());
  return *files;
}

}  // namespace

void FuzzStoreLog(Input input) { RealStoreLog().Run(input); }
std::vector<std::string> StoreLogSeeds() { return RealStoreLog().files().Seeds(); }

// An input is that of RealFiles. The files lie in memory.
void FuzzShardLog(Input input) {
  ByteSource source(input);
  const auto choice = source.Take<uint8_t>();
  std::string changed = ToString(source.Rest());
  if ((choice & 0x80) != 0) changed = SealRecords(std::move(changed));
  const size_t number = (choice & 0x7f) % RealShard().size();
  ps::testing::Shard shard;
  for (size_t i = 0; i < RealShard().size(); ++i) {
    const auto& [path, content] = RealShard()[i];
    const std::string& bytes = i == number ? changed : content;
    const auto file = shard.files().Create(path, bytes.size());
    TANDEM_CHECK(file.ok() && (*file)->WriteAt(0, bytes).ok());
  }
  if (!shard.Start().ok()) return;
  // What was read can be used.
  (void)shard->Pull(0, 0, {{"user", {ps::testing::kShared}}}, /*read_only=*/true);
}
std::vector<std::string> ShardLogSeeds() {
  std::vector<std::string> seeds;
  for (size_t i = 0; i < RealShard().size(); ++i) {
    for (const size_t seal : {0x00, 0x80}) {
      seeds.push_back(absl::StrCat(std::string(1, static_cast<char>(i | seal)), RealShard()[i].second));
    }
  }
  return seeds;
}

}  // namespace tandem::fuzz
