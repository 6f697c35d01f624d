// SPDX-License-Identifier: Apache-2.0
#include "weights/store/model_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "base/timed_wait.h"

namespace tandem::weights {
namespace {

// Epochs and numbers of commits are at most this large, so that those that follow do not overflow.
constexpr uint64_t kGreatest = uint64_t{1} << 62;

// StartEpoch grants epochs that are at least the microseconds since 1970: this is in 2004. Smaller ones are a
// user's own.
constexpr uint64_t kLeastGranted = uint64_t{1} << 50;

uint64_t BytesOf(const Model& model) { return model.count * sizeof(float); }

absl::Status CheckPublisher(absl::string_view publisher) {
  if (publisher.size() <= kMaxNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the name of a publisher has ", publisher.size(),
                                                 " bytes; it must have at most ", kMaxNameBytes));
}

// Returns InvalidArgument unless both parts of the version are at least 1, the number is at most kGreatest,
// and the epoch is at most `greatest_epoch`.
absl::Status CheckVersion(const ModelInfo& info, uint64_t greatest_epoch) {
  if (info.version.epoch > 0 && info.version.epoch <= greatest_epoch && info.version.number > 0 &&
      info.version.number <= kGreatest) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("model '", info.model, "': ", ToString(info.version),
                                                 "; epoch and version must be 1 to ", kGreatest));
}

}  // namespace

ModelStore::ModelStore(const ModelStoreOptions& options) : options_(options) {
  TANDEM_CHECK_MSG(options.keep > 0, "ModelStoreOptions::keep must be at least 1");
}

absl::Status ModelStore::CheckName(absl::string_view model) const {
  if (!model.empty() && model.size() <= kMaxNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the name of a model has ", model.size(), " bytes; it must have 1 to ", kMaxNameBytes));
}

absl::StatusOr<ModelStore::Entry*> ModelStore::FindOrAdd(absl::string_view model) {
  TANDEM_RETURN_IF_ERROR(CheckName(model));
  if (const auto found = models_.find(model); found != models_.end()) return &found->second;
  if (models_.size() >= options_.max_models) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", models_.size(), " models already; '", model, "' would be one too many"));
  }
  Entry& entry = models_[std::string(model)];
  entry.state.model = std::string(model);
  return &entry;
}

absl::StatusOr<EpochGrant> ModelStore::StartEpoch(absl::string_view model, absl::string_view publisher,
                                                  uint64_t token) {
  TANDEM_RETURN_IF_ERROR(CheckPublisher(publisher));
  absl::MutexLock lock(&mutex_);
  TANDEM_ASSIGN_OR_RETURN(Entry* const entry, FindOrAdd(model));
  const std::shared_ptr<const Model>& head = entry->state.head;
  const uint64_t version = head == nullptr ? 0 : head->info.version.number;
  for (const Started& started : entry->started) {
    if (token != 0 && started.token == token) return EpochGrant{.epoch = started.epoch, .version = version};
  }
  // The time makes the epochs of a store that has started again larger than those that it has lost.
  entry->state.epoch =
      std::max(entry->state.epoch + 1, static_cast<uint64_t>(absl::ToUnixMicros(absl::Now())));
  entry->state.publisher = std::string(publisher);
  if (token != 0) entry->started.push_back({token, entry->state.epoch});
  if (entry->started.size() > kKnownTokens) entry->started.pop_front();
  return EpochGrant{.epoch = entry->state.epoch, .version = version};
}

absl::Status ModelStore::CheckSuccessor(const Entry& entry, const ModelInfo& info, uint64_t bytes) const {
  const ModelState& state = entry.state;
  if (info.version.epoch < state.epoch) {
    return absl::FailedPreconditionError(
        absl::StrCat("model '", info.model, "': the publisher '", info.publisher, "' of epoch ",
                     info.version.epoch, " has been replaced by '", state.publisher, "' of epoch ",
                     state.epoch, "; a model has one publisher: stop one of the two"));
  }
  if (state.head != nullptr && info.version.number <= state.head->info.version.number) {
    return absl::FailedPreconditionError(absl::StrCat(
        "model '", info.model, "': ", ToString(info.version), " of '", info.publisher,
        "' does not exceed the head, ", ToString(state.head->info.version), "; numbers must rise"));
  }
  uint64_t others = bytes_;  // of the other models: the versions of this one may be dropped
  for (const std::shared_ptr<const Model>& one : entry.versions) others -= BytesOf(*one);
  if (options_.max_bytes > 0 && bytes > options_.max_bytes - std::min(others, options_.max_bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("model '", info.model, "': a version of ", bytes, " bytes beside ", others,
                     " of other models exceeds the limit of ", options_.max_bytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status ModelStore::CheckInfo(const ModelInfo& info) const {
  TANDEM_RETURN_IF_ERROR(CheckName(info.model));
  TANDEM_RETURN_IF_ERROR(CheckPublisher(info.publisher));
  return Annotate(CheckDigestKind(info.digest_kind), absl::StrCat("model '", info.model, "'"));
}

absl::StatusOr<bool> ModelStore::CheckNext(const ModelInfo& info, uint64_t bytes, bool damaged) {
  // A refused version leaves no model behind: peers could fill max_models with them.
  const auto found = models_.find(info.model);
  Entry unknown;
  Entry& entry = found == models_.end() ? unknown : found->second;
  // Epochs that this store has begun after the greatest of a commit are valid, too.
  TANDEM_RETURN_IF_ERROR(CheckVersion(info, std::max(kGreatest, entry.state.epoch)));
  if (damaged) {
    ++entry.state.refused;
    return absl::DataLossError(absl::StrCat("model '", info.model, "': the digest of ",
                                            ToString(info.version), " of '", info.publisher,
                                            "' is not that of its values: it was damaged on its way"));
  }
  if (const std::shared_ptr<const Model>& head = entry.state.head;
      head != nullptr && head->info.version == info.version && head->info.digest == info.digest &&
      head->info.digest_kind == info.digest_kind) {
    return true;
  }
  if (absl::Status refused = CheckSuccessor(entry, info, bytes); !refused.ok()) {
    ++entry.state.refused;
    return refused;
  }
  return false;
}

absl::StatusOr<bool> ModelStore::CheckCommit(const ModelInfo& info, uint64_t bytes) {
  TANDEM_RETURN_IF_ERROR(CheckInfo(info));
  absl::MutexLock lock(&mutex_);
  return CheckNext(info, bytes, /*damaged=*/false);
}

absl::Status ModelStore::Commit(std::shared_ptr<const Model> model) {
  const ModelInfo& info = model->info;
  TANDEM_RETURN_IF_ERROR(CheckInfo(info));
  const bool damaged = !model->HasItsDigest();
  std::vector<OnNewer> ready;
  std::vector<std::shared_ptr<const Model>> removed;  // freed outside the lock
  {
    absl::MutexLock lock(&mutex_);
    TANDEM_ASSIGN_OR_RETURN(const bool repeated, CheckNext(info, BytesOf(*model), damaged));
    if (repeated) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(Entry* const entry, FindOrAdd(info.model));
    ModelState& state = entry->state;
    if (info.version.epoch > state.epoch) {  // of a publisher that another life of this store has admitted
      state.epoch = info.version.epoch;
      state.publisher = info.publisher;
    }
    while (!entry->versions.empty() &&
           (entry->versions.size() >= options_.keep ||
            (options_.max_bytes > 0 && bytes_ + BytesOf(*model) > options_.max_bytes))) {
      removed.push_back(std::move(entry->versions.front()));
      entry->versions.pop_front();
      bytes_ -= BytesOf(*removed.back());
    }
    bytes_ += BytesOf(*model);
    entry->versions.push_back(model);
    state.head = model;
    state.published_at = options_.clock->Now();
    ++state.publishes;
    for (auto it = watches_.begin(); it != watches_.end();) {
      if (it->second.model == info.model && info.version > it->second.than) {
        ready.push_back(std::move(it->second.done));
        it = watches_.erase(it);
      } else {
        ++it;
      }
    }
  }
  for (OnNewer& done : ready) done(model);
  return absl::OkStatus();
}

std::shared_ptr<const Model> ModelStore::Head(absl::string_view model, absl::Time* published_at) const {
  absl::MutexLock lock(&mutex_);
  const auto found = models_.find(model);
  if (found == models_.end()) return nullptr;
  if (published_at != nullptr) *published_at = found->second.state.published_at;
  return found->second.state.head;
}

absl::StatusOr<std::shared_ptr<const Model>> ModelStore::Get(absl::string_view model,
                                                             const ModelVersion& version, bool count) {
  absl::MutexLock lock(&mutex_);
  const auto found = models_.find(model);
  if (found == models_.end() || found->second.versions.empty()) {
    return absl::NotFoundError(absl::StrCat("no version of model '", model, "' has been published"));
  }
  if (version.number == 0) {
    found->second.state.pulls += count ? 1 : 0;
    return found->second.state.head;
  }
  for (const std::shared_ptr<const Model>& one : found->second.versions) {
    if (one->info.version != version) continue;
    found->second.state.pulls += count ? 1 : 0;
    return one;
  }
  return absl::NotFoundError(absl::StrCat(
      "model '", model, "': ", ToString(version), " is not kept; there are ",
      absl::StrJoin(found->second.versions, ", ",
                    [](std::string* out, const auto& one) { out->append(ToString(one->info.version)); })));
}

uint64_t ModelStore::Watch(absl::string_view model, const ModelVersion& than, OnNewer done) {
  absl::StatusOr<std::shared_ptr<const Model>> result;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = models_.find(model);
    const absl::Status named = CheckName(model);
    if (!named.ok()) {
      result = named;
    } else if (stopped_) {
      result = absl::CancelledError("the weight store has stopped");
    } else if (found != models_.end() && found->second.state.head != nullptr &&
               found->second.state.head->info.version > than) {
      result = found->second.state.head;
    } else if (watches_.size() >= options_.max_watches) {
      result = absl::ResourceExhaustedError(
          absl::StrCat("model '", model, "': ", watches_.size(), " readers wait for versions already"));
    } else {
      const uint64_t ticket = next_ticket_++;
      watches_.emplace(ticket, Waiting{std::string(model), than, std::move(done)});
      return ticket;
    }
  }
  done(std::move(result));
  return 0;
}

bool ModelStore::CancelWatch(uint64_t ticket) {
  Waiting removed;  // destroyed outside the lock: `done` may own a call
  absl::MutexLock lock(&mutex_);
  const auto found = watches_.find(ticket);
  if (found == watches_.end()) return false;
  removed = std::move(found->second);
  watches_.erase(found);
  return true;
}

bool ModelStore::Grown(const std::pair<std::string, ModelVersion>& from) const {
  if (stopped_) return true;
  const auto found = models_.find(from.first);
  return found != models_.end() && found->second.state.head != nullptr &&
         found->second.state.head->info.version > from.second;
}

absl::StatusOr<std::shared_ptr<const Model>> ModelStore::Newer(absl::string_view model,
                                                               const ModelVersion& than,
                                                               absl::Time deadline) {
  struct Wait {
    const ModelStore* store;
    std::pair<std::string, ModelVersion> from;
  } wait = {this, {std::string(model), than}};
  absl::MutexLock lock(&mutex_);
  const auto grown = +[](Wait* w) ABSL_NO_THREAD_SAFETY_ANALYSIS { return w->store->Grown(w->from); };
  if (!options_.clock->AwaitUntil(&mutex_, absl::Condition(grown, &wait), deadline)) return nullptr;
  if (stopped_) return absl::CancelledError("the weight store has stopped");
  ++models_.find(model)->second.state.pulls;
  return models_.find(model)->second.state.head;
}

std::vector<ModelState> ModelStore::List() const {
  std::vector<ModelState> all;
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, entry] : models_) {
    ModelState& state = all.emplace_back(entry.state);
    for (const std::shared_ptr<const Model>& one : entry.versions)
      state.kept.push_back(one->info.version.number);
    for (const auto& [ticket, waiting] : watches_) state.waiting += waiting.model == name ? 1 : 0;
  }
  return all;
}

absl::StatusOr<std::string> ModelStore::Find(const ModelVersion& committed) const {
  if (committed.epoch < kLeastGranted) return std::string();
  std::string others;
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, entry] : models_) {
    const std::shared_ptr<const Model>& head = entry.state.head;
    if (head == nullptr) continue;
    const ModelInfo& info = head->info;
    if (info.version.epoch == committed.epoch && info.version.number >= committed.number) {
      return absl::StrCat(ToString(info.version), " of model '", name, "' was published ",
                          absl::ToInt64Seconds(options_.clock->Now() - entry.state.published_at),
                          " s ago by ", info.publisher);
    }
    absl::StrAppend(&others, others.empty() ? "it has " : ", ", ToString(info.version), " of model '", name,
                    "'");
  }
  return absl::NotFoundError(absl::StrCat("the weights of ", ToString(committed),
                                          ", which the learner has committed, are not in the weight store of "
                                          "this server, and actors that pull them here wait: ",
                                          others.empty() ? "it is empty" : others,
                                          "; their publisher must publish them again"));
}

void ModelStore::Stop() {
  std::map<uint64_t, Waiting> rest;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    rest.swap(watches_);
  }
  for (auto& [ticket, waiting] : rest) waiting.done(absl::CancelledError("the weight store has stopped"));
}

}  // namespace tandem::weights
