// SPDX-License-Identifier: Apache-2.0
#include "weights/server/uploads.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "weights/wire/messages.h"

namespace tandem::weights {
namespace {

absl::Status NoUpload() {
  return absl::NotFoundError(
      "there is no such upload: it was dropped, or the server has started again; publish the version as a "
      "whole, or begin again");
}

}  // namespace

struct Uploads::Upload {
  Upload(std::shared_ptr<Model> unfilled, std::shared_ptr<float> memory)
      : model(std::move(unfilled)),
        values(std::move(memory)),
        bytes(model->count * sizeof(float)),
        digest(model->info.tensors, bytes) {}

  const std::shared_ptr<Model> model;
  const std::shared_ptr<float> values;
  const uint64_t bytes;
  absl::Time used;  // guarded by Uploads::mutex_
  absl::Mutex mutex;
  PiecesDigest digest ABSL_GUARDED_BY(mutex);
  bool taken ABSL_GUARDED_BY(mutex) = false;  // the values must not change any more
};

absl::Status Uploads::Begin(uint64_t id, ModelInfo info) {
  if (id == 0) return absl::InvalidArgumentError("an upload must have a number other than 0");
  TANDEM_ASSIGN_OR_RETURN(const size_t count, CheckTensors(info.tensors));
  const uint64_t most =
      max_bytes_ == 0 ? kMaxBytesInPieces : std::min(max_bytes_, uint64_t{kMaxBytesInPieces});
  if (count > most / sizeof(float)) {
    return absl::ResourceExhaustedError(absl::StrCat("model '", info.model, "' has ", count,
                                                     " values; an upload may have ", most / sizeof(float)));
  }
  DropIdle();  // also those of newer versions whose publisher is gone
  Map removed;
  {
    absl::MutexLock lock(&mutex_);
    if (uploads_.contains(id)) return absl::OkStatus();
    for (const auto& [other, upload] : uploads_) {
      const ModelInfo& current = upload->model->info;
      if (current.model != info.model || current.version <= info.version) continue;
      return absl::FailedPreconditionError(absl::StrCat("model '", info.model, "': ", ToString(info.version),
                                                        " is older than ", ToString(current.version),
                                                        ", which is on its way"));
    }
    removed = MakeSpace(info, count * sizeof(float));
  }
  removed.clear();  // the new upload may use this memory
  auto model = std::make_shared<Model>();
  model->info = std::move(info);
  model->count = count;
  std::shared_ptr<float> values = AllocateValues(count);
  if (values == nullptr) return NoMemoryFor(count);
  model->data = values;
  const auto upload = std::make_shared<Upload>(std::move(model), std::move(values));
  absl::MutexLock lock(&mutex_);
  upload->used = clock_->Now();
  uploads_.emplace(id, upload);
  return absl::OkStatus();
}

Uploads::Map Uploads::MakeSpace(const ModelInfo& info, uint64_t bytes) {
  Map removed;
  uint64_t held = 0;
  for (auto it = uploads_.begin(); it != uploads_.end();) {
    if (it->second->model->info.model == info.model) {
      removed.insert(uploads_.extract(it++));
    } else {
      held += (it++)->second->bytes;
    }
  }
  while (!uploads_.empty() && (uploads_.size() >= kMost || (max_bytes_ > 0 && held + bytes > max_bytes_))) {
    const auto oldest = std::min_element(uploads_.begin(), uploads_.end(), [](const auto& a, const auto& b) {
      return a.second->used < b.second->used;
    });
    held -= oldest->second->bytes;
    removed.insert(uploads_.extract(oldest));
  }
  dropped_ += removed.size();
  return removed;
}

absl::Time Uploads::DropIdle() {
  Map removed;  // destroyed without the lock
  absl::MutexLock lock(&mutex_);
  const absl::Time now = clock_->Now();
  absl::Time next = absl::InfiniteFuture();
  for (auto it = uploads_.begin(); it != uploads_.end();) {
    if (const absl::Time end = it->second->used + kIdle; end > now) {
      next = std::min(next, end);
      ++it;
    } else {
      removed.insert(uploads_.extract(it++));
    }
  }
  dropped_ += removed.size();
  return next;
}

Uploads::State Uploads::state() const {
  absl::MutexLock lock(&mutex_);
  State state = {.count = uploads_.size(), .dropped = dropped_};
  for (const auto& [id, upload] : uploads_) state.bytes += upload->bytes;
  return state;
}

std::shared_ptr<Uploads::Upload> Uploads::Find(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  const auto found = uploads_.find(id);
  if (found == uploads_.end()) return nullptr;
  found->second->used = clock_->Now();
  return found->second;
}

absl::Status Uploads::Put(uint64_t id, uint64_t offset, const Bytes& values) {
  const std::shared_ptr<Upload> upload = Find(id);
  if (upload == nullptr) return NoUpload();
  absl::MutexLock lock(&upload->mutex);
  if (upload->taken) return NoUpload();
  if (!upload->digest.IsWhole(offset, values.size())) {
    return absl::InvalidArgumentError(absl::StrCat("model '", upload->model->info.model, "': ", values.size(),
                                                   " bytes at ", offset, " of ", upload->bytes,
                                                   " are no whole pieces of ", kDigestPieceBytes, " bytes"));
  }
  const std::vector<absl::string_view> parts = PartsOf(values);
  PartsReader reader(parts);
  upload->digest.Copy(reinterpret_cast<char*>(upload->values.get()), offset, values.size(), &reader);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Model>> Uploads::Take(uint64_t id) {
  std::shared_ptr<Upload> upload;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = uploads_.find(id);
    if (found == uploads_.end()) return NoUpload();
    upload = std::move(found->second);
    uploads_.erase(found);
  }
  absl::MutexLock lock(&upload->mutex);
  upload->taken = true;
  if (!upload->digest.complete()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model '", upload->model->info.model, "': pieces of the upload are missing"));
  }
  upload->model->computed_digest = upload->digest.Digest();
  return upload->model;
}

}  // namespace tandem::weights
