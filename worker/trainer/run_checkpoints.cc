// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer/run_checkpoints.h"

#include <filesystem>
#include <random>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/command_context.h"
#include "base/counted.h"
#include "base/logging.h"
#include "base/status.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/overwrite.h"

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
  TANDEM_RETURN_IF_ERROR(ps::AbandonOverwrite(job_.checkpoint.dir));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ps::CheckpointPaths(job_.checkpoint.dir));
  if (paths.empty()) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(RefuseUnlessOverwriting(
      paths, absl::StrCat("holds checkpoints of another run, the newest is ",
                          fs::path(paths.back()).filename().string(), "; continue it with --resume latest")));
  return Overwrite(paths, absl::nullopt);
}

absl::Status RunCheckpoints::RefuseUnlessOverwriting(const std::vector<std::string>& paths,
                                                     const std::string& why) const {
  if (overwrite_) return absl::OkStatus();
  return Refusal(
      absl::StrCat("checkpoint.dir '", job_.checkpoint.dir, "' ", why,
                   ", choose another directory with --set checkpoint.dir=DIR, or let --overwrite remove ",
                   paths.size() == 1 ? "it" : absl::StrCat("these ", paths.size())));
}

absl::Status RunCheckpoints::Overwrite(const std::vector<std::string>& paths,
                                       absl::optional<uint64_t> kept_step) const {
  LogInfo(absl::StrCat("--overwrite: ", Counted(paths.size(), "checkpoint"), " in '", job_.checkpoint.dir,
                       "' that this run does not continue will be removed when it has saved its first one"));
  return ps::BeginOverwrite(job_.checkpoint.dir, {.run_id = run_id_, .kept_step = kept_step});
}

absl::StatusOr<LoadedModel> RunCheckpoints::Resume(const std::string& from, ps::Client* client,
                                                   Accept accept) {
  TANDEM_RETURN_IF_ERROR(ps::RepairCheckpoints(job_.checkpoint.dir));
  TANDEM_RETURN_IF_ERROR(ps::AbandonOverwrite(job_.checkpoint.dir));
  return from == "latest" ? ResumeLatest(client, accept) : ResumeFrom(from, client, accept);
}

absl::StatusOr<v1::CheckpointManifest> RunCheckpoints::Peek(const std::string& from) const {
  if (from != "latest") return ps::ReadManifest(from);
  TANDEM_ASSIGN_OR_RETURN(const std::string newest, ps::LatestCheckpoint(job_.checkpoint.dir));
  return ps::ReadManifest(newest);
}

absl::StatusOr<LoadedModel> RunCheckpoints::ResumeLatest(ps::Client* client, Accept accept) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ps::CheckpointPaths(job_.checkpoint.dir));
  if (paths.empty()) return absl::NotFoundError(absl::StrCat("no checkpoint under ", job_.checkpoint.dir));
  std::vector<std::string> damaged;
  absl::Status newest;
  for (auto path = paths.rbegin(); path != paths.rend(); ++path) {
    const absl::StatusOr<v1::CheckpointManifest> read = ps::ReadManifest(*path);
    const absl::Status manifest = read.status();
    if (read.ok()) TANDEM_RETURN_IF_ERROR(accept(*path, *read));
    absl::StatusOr<LoadedModel> loaded =
        manifest.ok() ? LoadModel(job_, *path, client) : absl::StatusOr<LoadedModel>(manifest);
    if (loaded.ok()) {
      for (const std::string& bad : damaged) {
        // Left in place it would be the newest checkpoint again, and the wrong one to keep.
        TANDEM_ASSIGN_OR_RETURN(const std::string aside, ps::SetAside(bad));
        LogError(absl::StrCat("the damaged checkpoint is now ", aside));
      }
      run_id_ = earlier_run_id_ = loaded->state.run_id;
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

absl::StatusOr<LoadedModel> RunCheckpoints::ResumeFrom(const std::string& path, ps::Client* client,
                                                       Accept accept) {
  TANDEM_ASSIGN_OR_RETURN(const v1::CheckpointManifest manifest, ps::ReadManifest(path));
  const bool in_directory = SameFile(ParentOf(path), job_.checkpoint.dir);
  std::vector<std::string> others;  // what this run would leave in an order that is not that of its steps
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ps::CheckpointPaths(job_.checkpoint.dir));
  bool later = false;  // paths are in order of their steps
  absl::optional<uint64_t> kept_step;
  for (const std::string& other : paths) {
    if (SameFile(other, path)) {
      later = true;
      kept_step = ps::StepOfName(fs::path(other).filename().string());
    } else if (later || !in_directory) {
      others.push_back(other);
    }
  }
  if (!others.empty()) {
    TANDEM_RETURN_IF_ERROR(RefuseUnlessOverwriting(
        others, in_directory ? absl::StrCat("holds later checkpoints than ", path, ", the newest is ",
                                            fs::path(others.back()).filename().string(),
                                            "; continue that one with --resume latest")
                             : absl::StrCat("holds checkpoints of another run than ", path)));
  }
  TANDEM_RETURN_IF_ERROR(accept(path, manifest));
  TANDEM_ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(job_, path, client));
  if (in_directory) earlier_run_id_ = loaded.state.run_id;
  // The id tells the checkpoints of this run from the later ones that it overwrites.
  run_id_ = in_directory && others.empty() ? loaded.state.run_id : NewRunId();
  if (!others.empty()) TANDEM_RETURN_IF_ERROR(Overwrite(others, kept_step));
  return loaded;
}

void RunCheckpoints::Prune(const std::string& best) const {
  const absl::StatusOr<int> overwritten = ps::FinishOverwrite(job_.checkpoint.dir);
  if (!overwritten.ok()) {
    LogWarning(absl::StrCat("--overwrite: old checkpoints stay for now: ", overwritten.status().message()));
  } else if (*overwritten > 0) {
    LogInfo(absl::StrCat("--overwrite: removed from '", job_.checkpoint.dir, "' ",
                         Counted(*overwritten, "checkpoint"), " that this run does not continue"));
  }
  // Without periodic checkpoints the newest one is the best.
  const int keep = job_.checkpoint.periodic() ? job_.checkpoint.keep : 1;
  const absl::Status pruned = ps::PruneCheckpoints(job_.checkpoint.dir, keep, best, run_id_);
  if (!pruned.ok()) LogWarning(absl::StrCat("old checkpoints stay: ", pruned.message()));
}

std::string RunCheckpoints::OfStep(uint64_t step) const {
  const std::string path = absl::StrCat(job_.checkpoint.dir, "/", ps::CheckpointName(step));
  const absl::StatusOr<v1::CheckpointManifest> manifest = ps::ReadManifest(path);
  if (!manifest.ok() || manifest->run_id().empty()) return "";
  return manifest->run_id() == run_id_ || manifest->run_id() == earlier_run_id_ ? path : "";
}

}  // namespace tandem::worker
