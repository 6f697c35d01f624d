// SPDX-License-Identifier: Apache-2.0
#include "launcher/job_file.h"

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/read_file.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace tandem::launcher {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

absl::Status WriteJobFile(const std::string& directory, const JobAddress& job) {
  // Renamed into place, so that a reader sees a whole file at any time.
  const std::string path = absl::StrCat(directory, "/", kJobFile), fresh = absl::StrCat(path, ".new");
  std::ofstream out(fresh, std::ios::trunc);
  Json json = {{"run_id", job.run_id}, {"store", job.store}, {"servers", job.num_servers}};
  if (!job.rendezvous.empty()) json["rendezvous"] = job.rendezvous;
  out << json.dump() << "\n";
  out.close();
  if (out && std::rename(fresh.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot write ", path, ": the directory is not writable, or its disk is full"));
}

absl::StatusOr<JobAddress> ReadJobFile(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string written, ReadFile(path));
  const Json json = ParseOrderedJson(written);
  if (!json.is_object() || !json.contains("store") || !json["store"].is_string()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is no job file of `tandem run`"));
  }
  const auto text = [&json](const char* name) {
    return json.contains(name) && json[name].is_string() ? json[name].get<std::string>() : std::string();
  };
  JobAddress job{.store = text("store"), .rendezvous = text("rendezvous"), .run_id = text("run_id")};
  if (json.contains("servers") && json["servers"].is_number_unsigned())
    job.num_servers = json["servers"].get<int>();
  return job;
}

}  // namespace tandem::launcher
