// SPDX-License-Identifier: Apache-2.0
// tandem version, and the text of tandem --version.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command_line/build_info.h"
#include "cli/commands/commands.h"
#include "collectives/connect/backend_choice.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

std::vector<std::string> BackendNames() {
  std::vector<std::string> names;
  for (const collectives::BackendFactory& backend : collectives::BuiltInBackends())
    names.push_back(backend.name);
  return names;
}

nlohmann::ordered_json VersionJson() {
  const BuildInfo build = GetBuildInfo();
  return {{"version", build.version},       {"commit", build.commit},     {"build_type", build.build_type},
          {"sanitizers", build.sanitizers}, {"compiler", build.compiler}, {"processor", build.processor},
          {"backends", BackendNames()},     {"spill", build.has_rocksdb}, {"metrics", build.has_prometheus}};
}

}  // namespace

std::string VersionText() {
  const BuildInfo build = GetBuildInfo();
  const std::string sanitizers = build.sanitizers;
  return absl::StrCat("tandem ", build.version, "\ncommit    ", build.commit, "\nbuild     ",
                      build.build_type, sanitizers.empty() ? "" : absl::StrCat(", sanitizers ", sanitizers),
                      ", ", build.compiler, ", ", build.processor, "\nbackends  ",
                      absl::StrJoin(BackendNames(), ", "), "\nspill     ",
                      build.has_rocksdb ? "yes" : "no (built without RocksDB)", "\nmetrics   ",
                      build.has_prometheus ? "yes" : "no (built without prometheus-cpp)");
}

void AddVersion(CLI::App& app, CommandContext*) {
  auto json = std::make_shared<bool>(false);
  CLI::App* version = app.add_subcommand("version", "Print version, commit, build type and backends");
  version->add_flag("--json", *json, "Print one JSON object");
  version->callback([json] { std::puts(*json ? VersionJson().dump().c_str() : VersionText().c_str()); });
}

}  // namespace tandem::cli
