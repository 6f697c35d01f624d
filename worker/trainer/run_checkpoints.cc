// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer/run_checkpoints.h"

#include <filesystem>
#include <random>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/logging.h"
#include "base/status.h"
#include "ps/checkpoint/checkpoint_dir.h"

namespace tandem::worker {
namespace {

namespace fs = std::filesystem;

std::string NewRunId() {
  std::random_device random;
  return absl::StrFormat("%08x%08x", random(), random());
}

bool SameFile(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error);
}

std::string ParentOf(const std::string& path) {
  // "dir/step-1/" has an empty last component.
  fs::path normal = fs::path(path).lexically_normal();
  if (!normal.has_filename()) normal = normal.parent_path();
  return normal.has_parent_path() ? normal.parent_path().string() : ".";
}

}  // namespace

absl::Status RunCheckpoints::StartAnew() {
  run_id_ = NewRunId();
  TANDEM_RETURN_IF_ERROR(ps::RepairCheckpoints(job_.checkpoint.dir));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ps::CheckpointPaths(job_.checkpoint.dir));
  if (paths.empty()) return absl::OkStatus();
  return RemoveOrRefuse(
      paths, absl::StrCat("holds checkpoints of another run, the newest is ",
                          fs::path(paths.back()).filename().string(), "; continue it with --resume latest"));
}

absl::Status RunCheckpoints::RemoveOrRefuse(const std::vector<std::string>& paths,
                                            const std::string& why) const {
  if (!overwrite_) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint.dir '", job_.checkpoint.dir, "' ", why,
                     ", choose another directory with --set checkpoint.dir=DIR, or let --overwrite remove ",
                     paths.size() == 1 ? "it" : absl::StrCat("these ", paths.size())));
  }
  for (const std::string& path : paths) TANDEM_RETURN_IF_ERROR(ps::RemoveCheckpoint(path));
  LogWarning(absl::StrCat("--overwrite: removed from '", job_.checkpoint.dir, "' ", paths.size(),
                          paths.size() == 1 ? " checkpoint" : " checkpoints",
                          " that this run does not continue"));
  return absl::OkStatus();
}

absl::StatusOr<LoadedModel> RunCheckpoints::Resume(const std::string& from, ps::Client* client) {
  TANDEM_RETURN_IF_ERROR(ps::RepairCheckpoints(job_.checkpoint.dir));
  return from == "latest" ? ResumeLatest(client) : ResumeFrom(from, client);
}

absl::StatusOr<LoadedModel> RunCheckpoints::ResumeLatest(ps::Client* client) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ps::CheckpointPaths(job_.checkpoint.dir));
  if (paths.empty()) return absl::NotFoundError(absl::StrCat("no checkpoint under ", job_.checkpoint.dir));
  std::vector<std::string> damaged;
  absl::Status newest;
  for (auto path = paths.rbegin(); path != paths.rend(); ++path) {
    const absl::Status manifest = ps::ReadManifest(*path).status();
    absl::StatusOr<LoadedModel> loaded =
        manifest.ok() ? LoadModel(job_, *path, client) : absl::StatusOr<LoadedModel>(manifest);
    if (loaded.ok()) {
      for (const std::string& bad : damaged) {
        // Left in place it would be the newest checkpoint again, and the wrong one to keep.
        TANDEM_ASSIGN_OR_RETURN(const std::string aside, ps::SetAside(bad));
        LogError(absl::StrCat("the damaged checkpoint is now ", aside));
      }
      Adopt(*loaded);
      return loaded;
    }
    const bool is_damaged =
        absl::IsDataLoss(loaded.status()) || (!manifest.ok() && absl::IsNotFound(manifest));
    if (!is_damaged) return loaded.status();
    LogError(absl::StrCat("checkpoint ", *path, " is damaged: ", loaded.status().message(),
                          path + 1 == paths.rend() ? "" : "; trying the one before it"));
    newest.Update(loaded.status());
    damaged.push_back(*path);
  }
  return Annotate(absl::DataLossError(newest.message()),
                  absl::StrCat("all ", paths.size(), " checkpoints under ", job_.checkpoint.dir,
                               " are damaged; the newest"));
}

absl::StatusOr<LoadedModel> RunCheckpoints::ResumeFrom(const std::string& path, ps::Client* client) {
  TANDEM_ASSIGN_OR_RETURN(const v1::CheckpointManifest manifest, ps::ReadManifest(path));
  const bool in_directory = SameFile(ParentOf(path), job_.checkpoint.dir);
  std::vector<std::string> others;  // what this run would leave in an order that is not that of its steps
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ps::CheckpointPaths(job_.checkpoint.dir));
  bool later = false;  // paths are in order of their steps
  for (const std::string& other : paths) {
    if (SameFile(other, path)) {
      later = true;
    } else if (later || !in_directory) {
      others.push_back(other);
    }
  }
  if (!others.empty() && !overwrite_) {
    return RemoveOrRefuse(
        others, in_directory ? absl::StrCat("holds later checkpoints than ", path, ", the newest is ",
                                            fs::path(others.back()).filename().string(),
                                            "; continue that one with --resume latest")
                             : absl::StrCat("holds checkpoints of another run than ", path));
  }
  TANDEM_ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(job_, path, client));
  if (!others.empty()) TANDEM_RETURN_IF_ERROR(RemoveOrRefuse(others, ""));
  if (in_directory) {
    Adopt(loaded);
  } else {
    run_id_ = NewRunId();
  }
  return loaded;
}

void RunCheckpoints::Adopt(const LoadedModel& loaded) {
  run_id_ = loaded.state.run_id;
  if (!run_id_.empty()) return;
  run_id_ = NewRunId();
  // An older version wrote them, for the run that goes on now.
  const absl::StatusOr<std::vector<ps::CheckpointEntry>> all = ps::ListCheckpoints(job_.checkpoint.dir);
  absl::Status adopted = all.status();
  for (size_t i = 0; adopted.ok() && i < all->size(); ++i) {
    v1::CheckpointManifest manifest = (*all)[i].manifest;
    if (!manifest.run_id().empty()) continue;
    manifest.set_run_id(run_id_);
    adopted = ps::UpdateManifest((*all)[i].path, manifest);
  }
  if (!adopted.ok()) LogWarning(absl::StrCat("checkpoints of an older version stay: ", adopted.message()));
}

void RunCheckpoints::Prune(const std::string& best) const {
  // Without periodic checkpoints the newest one is the best.
  const int keep = job_.checkpoint.periodic() ? job_.checkpoint.keep : 1;
  const absl::Status pruned = ps::PruneCheckpoints(job_.checkpoint.dir, keep, best, run_id_);
  if (!pruned.ok()) LogWarning(absl::StrCat("old checkpoints stay: ", pruned.message()));
}

std::string RunCheckpoints::OfEpoch(uint64_t epoch) const {
  const absl::StatusOr<std::vector<ps::CheckpointEntry>> all = ps::ListCheckpoints(job_.checkpoint.dir);
  if (!all.ok()) return "";
  for (const ps::CheckpointEntry& entry : *all) {
    if (entry.manifest.epoch() == epoch && !entry.manifest.has_position()) return entry.path;
  }
  return "";
}

}  // namespace tandem::worker
