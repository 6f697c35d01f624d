// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/spill/rocks_database.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "rocksdb/cache.h"
#include "rocksdb/convenience.h"
#include "rocksdb/db.h"
#include "rocksdb/filter_policy.h"
#include "rocksdb/options.h"
#include "rocksdb/table.h"
#include "rocksdb/write_batch.h"
#include "rocksdb/write_buffer_manager.h"

namespace tandem::ps {
namespace {

constexpr size_t kKeyBytes = 16;
using KeyBytes = std::array<char, kKeyBytes>;
// Keys per MultiGet. RocksDB itself processes them 32 at a time.
constexpr size_t kLookups = 256;

void StoreBigEndian(char* to, uint64_t value, int bytes) {
  for (int i = bytes - 1; i >= 0; --i, value >>= 8) to[i] = static_cast<char>(value);
}

KeyBytes KeyOf(uint32_t tier, uint64_t bucket, uint64_t id) {
  KeyBytes key;
  StoreBigEndian(key.data(), tier, 4);
  StoreBigEndian(key.data() + 4, bucket, 4);
  StoreBigEndian(key.data() + 8, id, 8);
  return key;
}

uint64_t IdOf(const rocksdb::Slice& key) {
  uint64_t id = 0;
  for (size_t i = 8; i < kKeyBytes; ++i) id = id << 8 | static_cast<unsigned char>(key[i]);
  return id;
}

rocksdb::Slice SliceOf(const KeyBytes& key) { return rocksdb::Slice(key.data(), key.size()); }

absl::Status ToStatus(const rocksdb::Status& status, absl::string_view what) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat(what, ": ", status.ToString());
  if (status.IsNoSpace()) {
    return absl::ResourceExhaustedError(absl::StrCat(message, "; free some space there"));
  }
  if (status.IsCorruption()) return absl::DataLossError(message);
  return absl::UnavailableError(message);
}

rocksdb::Options DatabaseOptions(size_t cache_bytes) {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.error_if_exists = true;
  // One size bounds all memory: the block cache also accounts for the write buffers and for filters and
  // indexes, which stay longest.
  const std::shared_ptr<rocksdb::Cache> cache = rocksdb::NewLRUCache(
      cache_bytes, /*num_shard_bits=*/-1, /*strict_capacity_limit=*/false, /*high_pri_pool_ratio=*/0.5);
  options.write_buffer_manager = std::make_shared<rocksdb::WriteBufferManager>(cache_bytes / 2, cache);
  options.write_buffer_size = std::clamp<size_t>(cache_bytes / 8, size_t{1} << 20, size_t{64} << 20);
  options.target_file_size_base = std::max<size_t>(options.write_buffer_size, size_t{8} << 20);
  options.max_bytes_for_level_base = 4 * options.target_file_size_base;
  options.level_compaction_dynamic_level_bytes = true;  // superseded rows take a tenth of the disk, not half
  options.memtable_whole_key_filtering = true;
  options.memtable_prefix_bloom_size_ratio = 0.05;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.cache_index_and_filter_blocks = true;
  table.cache_index_and_filter_blocks_with_high_priority = true;
  table.pin_l0_filter_and_index_blocks_in_cache = true;
  // The filter answers for ids that were never spilled, as new ids are, without reading blocks.
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.whole_key_filtering = true;
  table.data_block_index_type = rocksdb::BlockBasedTableOptions::kDataBlockBinaryAndHash;
  table.format_version = 5;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  const std::vector<rocksdb::CompressionType> known = rocksdb::GetSupportedCompressions();
  const auto has = [&](rocksdb::CompressionType type) {
    return std::find(known.begin(), known.end(), type) != known.end();
  };
  options.compression = has(rocksdb::kLZ4Compression) ? rocksdb::kLZ4Compression : rocksdb::kNoCompression;
  options.max_background_jobs = 2;
  options.max_open_files = 512;
  options.bytes_per_sync = size_t{1} << 20;  // no long pauses when a file is closed
  options.avoid_flush_during_shutdown = true;
  options.info_log_level = rocksdb::WARN_LEVEL;
  options.keep_log_file_num = 1;
  options.max_log_file_size = size_t{1} << 20;
  return options;
}

class Database : public RocksDatabase {
 public:
  Database(std::unique_ptr<rocksdb::DB> db, std::string directory)
      : db_(std::move(db)), directory_(std::move(directory)) {}
  ~Database() override { rocksdb::CancelAllBackgroundWork(db_.get(), /*wait=*/true); }

  std::unique_ptr<ColdTier> NewTier(absl::string_view table) override;

  rocksdb::DB& db() { return *db_; }
  const std::string& directory() const { return directory_; }
  uint32_t TakeTierNumber() { return next_tier_.fetch_add(1); }
  // After a failed write RocksDB refuses all later ones until Resume is called.
  rocksdb::Status Write(rocksdb::WriteBatch* batch) {
    if (write_failed_.load(std::memory_order_relaxed)) db_->Resume().PermitUncheckedError();
    rocksdb::WriteOptions options;
    options.disableWAL = true;
    rocksdb::Status status = db_->Write(options, batch);
    write_failed_.store(!status.ok(), std::memory_order_relaxed);
    return status;
  }

 private:
  const std::unique_ptr<rocksdb::DB> db_;
  const std::string directory_;
  std::atomic<uint32_t> next_tier_{0};
  std::atomic<bool> write_failed_{false};
};

class RocksTier : public ColdTier {
 public:
  RocksTier(Database* database, absl::string_view table)
      : database_(database),
        who_(absl::StrCat("table '", table, "', rows on disk in ", database->directory())),
        tier_(database->TakeTierNumber()) {}
  ~RocksTier() override { Forget(tier_); }

  absl::Status Put(uint32_t bucket, absl::Span<const uint64_t> ids, size_t row_bytes,
                   const char* rows) override {
    rocksdb::WriteBatch batch(ids.size() * (row_bytes + kKeyBytes + 8));
    for (size_t i = 0; i < ids.size(); ++i) {
      const rocksdb::Status added =
          batch.Put(SliceOf(KeyOf(tier_, bucket, ids[i])), rocksdb::Slice(rows + i * row_bytes, row_bytes));
      if (!added.ok()) return ToStatus(added, absl::StrCat(who_, ": writing"));
    }
    const rocksdb::Status status = database_->Write(&batch);
    if (!status.ok()) return ToStatus(status, absl::StrCat(who_, ": writing"));
    put_bytes_.fetch_add(ids.size() * (row_bytes + kKeyBytes), std::memory_order_relaxed);
    return absl::OkStatus();
  }

  absl::Status Get(absl::Span<const Key> keys, size_t row_bytes, char* rows, uint8_t* found) override {
    std::vector<KeyBytes> bytes(std::min(keys.size(), kLookups));
    std::vector<rocksdb::Slice> slices(bytes.size());
    std::vector<rocksdb::PinnableSlice> values(bytes.size());
    std::vector<rocksdb::Status> statuses(bytes.size());
    const rocksdb::ReadOptions options;
    for (size_t first = 0; first < keys.size(); first += kLookups) {
      const size_t count = std::min(kLookups, keys.size() - first);
      for (size_t i = 0; i < count; ++i) {
        bytes[i] = KeyOf(tier_, keys[first + i].bucket, keys[first + i].id);
        slices[i] = SliceOf(bytes[i]);
        values[i].Reset();
      }
      database_->db().MultiGet(options, database_->db().DefaultColumnFamily(), count, slices.data(),
                               values.data(), statuses.data());
      for (size_t i = 0; i < count; ++i) {
        found[first + i] = statuses[i].ok() ? 1 : 0;
        if (statuses[i].IsNotFound()) continue;
        if (!statuses[i].ok()) return ToStatus(statuses[i], absl::StrCat(who_, ": reading"));
        if (values[i].size() != row_bytes) return WrongSize(keys[first + i].id, values[i].size(), row_bytes);
        std::memcpy(rows + (first + i) * row_bytes, values[i].data(), row_bytes);
      }
    }
    return absl::OkStatus();
  }

  absl::Status VisitBucket(uint32_t bucket, uint64_t first_id, size_t row_bytes, Visitor visit) override {
    const KeyBytes begin = KeyOf(tier_, bucket, first_id), end = KeyOf(tier_, uint64_t{bucket} + 1, 0);
    const rocksdb::Slice lower = SliceOf(begin), upper = SliceOf(end);
    rocksdb::ReadOptions options;
    options.iterate_lower_bound = &lower;
    options.iterate_upper_bound = &upper;
    options.fill_cache = false;
    const std::unique_ptr<rocksdb::Iterator> at(database_->db().NewIterator(options));
    for (at->Seek(lower); at->Valid(); at->Next()) {
      const uint64_t id = IdOf(at->key());
      if (at->value().size() != row_bytes) return WrongSize(id, at->value().size(), row_bytes);
      if (!visit(id, at->value().data())) break;
    }
    return at->status().ok() ? absl::OkStatus() : ToStatus(at->status(), absl::StrCat(who_, ": reading"));
  }

  // A new tier number has no rows, even if removing the old rows fails.
  void Clear() override {
    put_bytes_.store(0, std::memory_order_relaxed);
    Forget(tier_.exchange(database_->TakeTierNumber()));
  }

  uint64_t bytes() const override {
    const uint32_t tier = tier_;
    const KeyBytes begin = KeyOf(tier, 0, 0), end = KeyOf(tier + 1, 0, 0);
    const rocksdb::Range range(SliceOf(begin), SliceOf(end));
    rocksdb::SizeApproximationOptions options;
    options.include_files = true;
    uint64_t bytes = 0, in_memory = 0;
    const rocksdb::Status status = database_->db().GetApproximateSizes(
        options, database_->db().DefaultColumnFamily(), &range, 1, &bytes);
    // RocksDB's estimate of the part of its write buffers that belongs to a range is often 0. That part is at
    // most the bytes that were put, and at most the size of all write buffers.
    database_->db().GetIntProperty(rocksdb::DB::Properties::kCurSizeAllMemTables, &in_memory);
    return (status.ok() ? bytes : 0) + std::min(in_memory, put_bytes_.load(std::memory_order_relaxed));
  }

 private:
  // Frees the space of a tier number that is no longer used. On an error the space is freed when the
  // directory is removed.
  void Forget(uint32_t tier) {
    const KeyBytes begin = KeyOf(tier, 0, 0), end = KeyOf(tier + 1, 0, 0);
    const rocksdb::Slice lower = SliceOf(begin), upper = SliceOf(end);
    rocksdb::WriteBatch batch;
    batch.DeleteRange(lower, upper).PermitUncheckedError();
    database_->Write(&batch).PermitUncheckedError();
    rocksdb::DeleteFilesInRange(&database_->db(), database_->db().DefaultColumnFamily(), &lower, &upper,
                                /*include_end=*/false)
        .PermitUncheckedError();
  }
  absl::Status WrongSize(uint64_t id, size_t size, size_t expected) const {
    return absl::DataLossError(
        absl::StrCat(who_, ": the row of id ", id, " has ", size, " bytes, not ", expected));
  }

  Database* const database_;
  const std::string who_;
  std::atomic<uint32_t> tier_;  // the tier number, the first part of its keys
  std::atomic<uint64_t> put_bytes_{0};
};

std::unique_ptr<ColdTier> Database::NewTier(absl::string_view table) {
  return std::make_unique<RocksTier>(this, table);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RocksDatabase>> RocksDatabase::Open(const std::string& path,
                                                                   const std::string& directory,
                                                                   size_t cache_bytes) {
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(DatabaseOptions(cache_bytes), path, &db);
  if (!status.ok()) return ToStatus(status, absl::StrCat("spill directory ", directory));
  return std::unique_ptr<RocksDatabase>(
      std::make_unique<Database>(std::unique_ptr<rocksdb::DB>(db), directory));
}

}  // namespace tandem::ps
