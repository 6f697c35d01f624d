// SPDX-License-Identifier: Apache-2.0
#include "python/src/checkpoint.h"

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/vector.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/export.h"
#include "python/src/config.h"
#include "python/src/errors.h"

namespace nb = nanobind;

namespace tandem::python {
namespace {

// Runs `function`, which blocks on the disk, without the GIL.
template <typename Function>
auto OnDisk(const Function& function) {
  nb::gil_scoped_release release;
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
  module.def("begin_checkpoint", [](const std::string& root, uint64_t step) {
    return ValueOrRaise(OnDisk([&] { return ps::BeginCheckpoint(root, step); }));
  });
  module.def("commit_checkpoint", &Commit);
  module.def("latest_checkpoint", [](const std::string& root) {
    return ValueOrRaise(OnDisk([&] { return ps::LatestCheckpoint(root); }));
  });
  module.def("read_manifest", [](const std::string& directory) {
    return ToJson(ValueOrRaise(OnDisk([&] { return ps::ReadManifest(directory); })));
  });
  module.def("export_checkpoint", &Export);
}

}  // namespace tandem::python
