// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_LOG_FAKE_FILE_SYSTEM_H_
#define TANDEM_TESTS_PS_LOG_FAKE_FILE_SYSTEM_H_

// A file system in memory that loses power. What was synced survives. Of the rest, each sector of 512 bytes
// and each change of a directory survives or not, at random. As on Linux, a sync that fails leaves the
// sectors clean: they are lost with the power, unless they are written again, whatever later syncs say.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/random.h"
#include "ps/log/file_system.h"

namespace tandem::ps::testing {

// Thread-safe.
class FakeFileSystem : public FileSystem {
 public:
  // Every operation after the next `operations` ones fails, as if the machine had lost power.
  void CutAfter(uint64_t operations) {
    absl::MutexLock lock(&mutex_);
    left_ = operations;
  }
  // Returns whether the cut was reached.
  bool cut() const {
    absl::MutexLock lock(&mutex_);
    return left_ == 0;
  }
  // Limits the bytes of all files together.
  void set_capacity(uint64_t bytes) {
    absl::MutexLock lock(&mutex_);
    capacity_ = bytes;
  }
  // Every sync fails from now on.
  void FailSyncs() {
    absl::MutexLock lock(&mutex_);
    syncs_fail_ = true;
  }
  // While held, no sync returns.
  void HoldSyncs(bool hold) {
    absl::MutexLock lock(&mutex_);
    hold_syncs_ = hold;
  }

  void FailRemoves(bool fail) {
    absl::MutexLock lock(&mutex_);
    removes_fail_ = fail;
  }
  // While held, no snapshot is begun.
  void HoldSnapshots(bool hold) {
    absl::MutexLock lock(&mutex_);
    hold_snapshots_ = hold;
  }
  // Blocks until a snapshot waits to be begun.
  void AwaitHeldSnapshot() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&snapshot_is_held_));
  }
  uint64_t used() const {
    absl::MutexLock lock(&mutex_);
    return UsedLocked();
  }

  // Loses power, and starts the machine again: no object that uses this file system may exist. The kernel's
  // cache is lost; `seed` decides what had reached the disk.
  void LosePower(uint64_t seed) {
    absl::MutexLock lock(&mutex_);
    CounterRandom random(seed, 1);
    for (auto& change : changes_) {
      if (random.Below(2) == 0) change(&durable_names_);
    }
    Restart();
    for (auto& [path, file] : names_) {
      for (size_t at = 0; at < file->content.size(); at += kSector) {
        if (random.Below(2) == 0 && file->dirty.contains(at / kSector)) continue;
        file->content.replace(at, kSector, file->synced.substr(at, kSector));
      }
      file->synced = file->content;
      file->dirty.clear();
    }
  }
  // Ends the process only: the kernel's cache stays.
  void LoseProcess() {
    absl::MutexLock lock(&mutex_);
    durable_names_ = names_;
    Restart();
  }

  // Returns the paths of the files whose names begin with `prefix`, in order.
  std::vector<std::string> Paths(absl::string_view prefix) const {
    absl::MutexLock lock(&mutex_);
    std::vector<std::string> paths;
    for (const auto& [path, file] : names_) {
      if (absl::StartsWith(path, prefix)) paths.push_back(path);
    }
    return paths;
  }
  // Changes the content of a file behind the back of its user.
  void Change(const std::string& path, const std::function<void(std::string*)>& change) {
    absl::MutexLock lock(&mutex_);
    change(&names_.at(path)->content);
    names_.at(path)->synced = names_.at(path)->content;
    names_.at(path)->dirty.clear();
  }

  absl::StatusOr<std::unique_ptr<LogFile>> Create(const std::string& path, uint64_t bytes) override {
    absl::MutexLock lock(&mutex_);
    if (absl::StrContains(path, "/snapshot-")) {
      snapshot_is_held_ = hold_snapshots_;
      mutex_.Await(absl::Condition(
          +[](FakeFileSystem* files)
               ABSL_EXCLUSIVE_LOCKS_REQUIRED(files->mutex_) { return !files->hold_snapshots_; },
          this));
      snapshot_is_held_ = false;
    }
    if (!Take()) return Gone();
    if (UsedLocked() + bytes > capacity_)
      return absl::ResourceExhaustedError(absl::StrCat(path, ": the disk is full"));
    auto file = std::make_shared<File>();
    file->content = file->synced = std::string(bytes, '\0');
    Apply([path, file](Names* names) { (*names)[path] = file; });
    return std::make_unique<Writer>(this, std::move(file));
  }
  absl::StatusOr<std::string> Read(const std::string& path, uint64_t offset, uint64_t bytes) override {
    absl::MutexLock lock(&mutex_);
    auto found = names_.find(path);
    if (found == names_.end()) return absl::NotFoundError(path);
    const std::string& content = found->second->content;
    return offset >= content.size() ? std::string() : content.substr(offset, bytes);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    absl::MutexLock lock(&mutex_);
    std::vector<std::string> names;
    for (const auto& [path, file] : names_) {
      if (absl::StartsWith(path, directory + "/")) names.push_back(path.substr(directory.size() + 1));
    }
    return names;
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    absl::MutexLock lock(&mutex_);
    if (!Take()) return Gone();
    const std::shared_ptr<File> file = names_.at(from);
    Apply([from, to, file](Names* names) {
      names->erase(from);
      (*names)[to] = file;
    });
    return absl::OkStatus();
  }
  absl::Status Remove(const std::string& path) override {
    absl::MutexLock lock(&mutex_);
    if (removes_fail_) return absl::PermissionDeniedError(path);
    if (!Take()) return Gone();
    Apply([path](Names* names) { names->erase(path); });
    return absl::OkStatus();
  }
  absl::Status SyncFile(const std::string& path) override {
    absl::MutexLock lock(&mutex_);
    if (!Take()) return Gone();
    names_.at(path)->Sync();
    return absl::OkStatus();
  }
  absl::Status RewriteFile(const std::string& path) override {
    absl::MutexLock lock(&mutex_);
    if (!Take()) return Gone();
    File& file = *names_.at(path);
    file.Written(0, file.content.size());
    file.Sync();
    return absl::OkStatus();
  }
  absl::Status SyncDirectory(const std::string&) override {
    absl::MutexLock lock(&mutex_);
    if (!Take()) return Gone();
    durable_names_ = names_;
    changes_.clear();
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kSector = 512;

  struct File {
    void Written(uint64_t offset, uint64_t bytes) {
      for (uint64_t at = offset / kSector; at * kSector < offset + bytes; ++at) dirty.insert(at);
    }
    void Sync() {
      for (const uint64_t sector : dirty) {
        synced.replace(sector * kSector, kSector, content.substr(sector * kSector, kSector));
      }
      dirty.clear();
    }

    std::string content, synced;  // of the same size
    std::set<uint64_t> dirty;     // sectors that the next sync writes
  };
  using Names = std::map<std::string, std::shared_ptr<File>>;

  class Writer : public LogFile {
   public:
    Writer(FakeFileSystem* files, std::shared_ptr<File> file) : files_(files), file_(std::move(file)) {}
    absl::Status WriteAt(uint64_t offset, absl::string_view bytes) override {
      absl::MutexLock lock(&files_->mutex_);
      const bool whole = files_->Take();
      // A write that is cut has reached the disk in part.
      if (!whole) bytes = bytes.substr(0, bytes.size() / 2);
      if (file_->content.size() < offset + bytes.size()) {
        file_->content.resize(offset + bytes.size());
        file_->synced.resize(file_->content.size());
      }
      if (whole || !files_->over_) {
        file_->content.replace(offset, bytes.size(), bytes.data(), bytes.size());
        file_->Written(offset, bytes.size());
      }
      if (!whole) files_->over_ = true;
      return whole ? absl::OkStatus() : Gone();
    }
    absl::Status Sync() override {
      absl::MutexLock lock(&files_->mutex_);
      files_->mutex_.Await(absl::Condition(
          +[](FakeFileSystem* files)
               ABSL_EXCLUSIVE_LOCKS_REQUIRED(files->mutex_) { return !files->hold_syncs_; },
          files_));
      if (files_->syncs_fail_) {
        file_->dirty.clear();
        return absl::InternalError("the disk has failed");
      }
      if (!files_->Take()) return Gone();
      file_->Sync();
      return absl::OkStatus();
    }

   private:
    FakeFileSystem* const files_;
    const std::shared_ptr<File> file_;
  };

  uint64_t UsedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    uint64_t used = 0;
    for (const auto& [name, file] : names_) used += file->content.size();
    return used;
  }
  static absl::Status Gone() { return absl::InternalError("the machine has lost power"); }
  bool Take() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!left_.has_value()) return true;
    if (*left_ == 0) return false;
    --*left_;
    return true;
  }
  void Apply(std::function<void(Names*)> change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    change(&names_);
    changes_.push_back(std::move(change));
  }
  void Restart() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    names_ = durable_names_;
    changes_.clear();
    left_.reset();
    over_ = syncs_fail_ = hold_syncs_ = hold_snapshots_ = removes_fail_ = false;
  }

  mutable absl::Mutex mutex_;
  Names names_ ABSL_GUARDED_BY(mutex_), durable_names_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void(Names*)>> changes_ ABSL_GUARDED_BY(mutex_);  // not synced
  std::optional<uint64_t> left_ ABSL_GUARDED_BY(mutex_);                      // operations until the cut
  bool over_ ABSL_GUARDED_BY(mutex_) = false;  // a write was torn by the cut: it was the last one
  uint64_t capacity_ ABSL_GUARDED_BY(mutex_) = ~uint64_t{0};
  bool syncs_fail_ ABSL_GUARDED_BY(mutex_) = false, hold_syncs_ ABSL_GUARDED_BY(mutex_) = false;
  bool removes_fail_ ABSL_GUARDED_BY(mutex_) = false;
  bool hold_snapshots_ ABSL_GUARDED_BY(mutex_) = false, snapshot_is_held_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem::ps::testing

#endif  // TANDEM_TESTS_PS_LOG_FAKE_FILE_SYSTEM_H_
