// SPDX-License-Identifier: Apache-2.0
#include "python/src/checkpoint.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/local_path.h"
#include "base/status.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/vector.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/export.h"
#include "python/src/config.h"
#include "python/src/errors.h"
#include "python/src/process.h"

namespace nb = nanobind;

namespace tandem::python {
namespace {

// Runs `function`, which blocks on the disk, without the GIL.
template <typename Function>
auto OnDisk(const Function& function) {
  GilReleased release;
  return function();
}

std::string Commit(const std::string& unfinished, const std::string& manifest_json,
                   const std::vector<std::string>& written_json) {
  ps::v1::CheckpointManifest manifest;
  RaiseIfError(FromJson(manifest_json, &manifest));
  std::vector<ps::v1::SavedFile> written(written_json.size());
  for (size_t i = 0; i < written.size(); ++i) RaiseIfError(FromJson(written_json[i], &written[i]));
  return ValueOrRaise(OnDisk([&]() -> absl::StatusOr<std::string> {
    // The dense part of a PyTorch program is its own. Readers of checkpoints expect the file, though.
    TANDEM_RETURN_IF_ERROR(ps::WriteDenseState(unfinished, {}));
    return ps::CommitCheckpoint(unfinished, std::move(manifest), written);
  }));
}

// Checks that every file of the checkpoint is there with its size, and reads those whose names begin with one
// of `prefixes`. Raises DataLossError, naming the file.
void Verify(const std::string& directory, const std::vector<std::string>& prefixes) {
  RaiseIfError(OnDisk([&]() -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const ps::v1::CheckpointManifest manifest, ps::ReadManifest(directory));
    TANDEM_RETURN_IF_ERROR(ps::CheckSizes(directory, manifest));
    for (const ps::v1::CheckpointFile& file : manifest.files()) {
      for (const std::string& prefix : prefixes) {
        if (!absl::StartsWith(file.name(), prefix)) continue;
        TANDEM_RETURN_IF_ERROR(ps::VerifyCheckpointFile(directory, file));
        break;
      }
    }
    return absl::OkStatus();
  }));
}

// Returns [(table, rows, dim, [file, ...]), ...].
nb::list Export(const std::string& checkpoint, const std::string& to, bool csv, bool optimizer_state) {
  const ps::Exported exported = ValueOrRaise(OnDisk([&] {
    return ps::ExportCheckpoint(checkpoint, to,
                                {.format = csv ? ps::ExportFormat::kCsv : ps::ExportFormat::kNpy,
                                 .optimizer_state = optimizer_state});
  }));
  nb::list tables;
  for (const ps::ExportedTable& table : exported.tables) {
    tables.append(nb::make_tuple(table.name, table.rows, table.dim, table.files));
  }
  return tables;
}

}  // namespace

void BindCheckpoint(nb::module_& module) {
  module.def("check_local_path", [](const std::string& path) { RaiseIfError(CheckLocalPath(path)); });
  module.def("begin_checkpoint", [](const std::string& root, uint64_t step) {
    return ValueOrRaise(OnDisk([&] { return ps::BeginCheckpoint(root, step); }));
  });
  module.def("commit_checkpoint", &Commit);
  module.def("latest_checkpoint", [](const std::string& root) {
    return ValueOrRaise(OnDisk([&] { return ps::LatestCheckpoint(root); }));
  });
  module.def("checkpoint_paths", [](const std::string& root) {
    return ValueOrRaise(OnDisk([&] { return ps::CheckpointPaths(root); }));
  });
  module.def("verify_checkpoint", &Verify);
  module.def("repair_checkpoints", [](const std::string& root) {
    RaiseIfError(OnDisk([&] { return ps::RepairCheckpoints(root); }));
  });
  module.def("set_checkpoint_aside", [](const std::string& directory) {
    return ValueOrRaise(OnDisk([&] { return ps::SetAside(directory); }));
  });
  module.def("prune_checkpoints", [](const std::string& root, int keep, const std::string& protect) {
    RaiseIfError(OnDisk([&] { return ps::PruneCheckpoints(root, keep, protect); }));
  });
  module.def("read_manifest", [](const std::string& directory) {
    return ToJson(ValueOrRaise(OnDisk([&] { return ps::ReadManifest(directory); })));
  });
  module.def("export_checkpoint", &Export);
}

}  // namespace tandem::python
