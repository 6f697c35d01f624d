// SPDX-License-Identifier: Apache-2.0
#include "launcher/job_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/ipc/descriptor.h"
#include "base/json.h"
#include "base/read_file.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace tandem::launcher {
namespace {

using Json = nlohmann::ordered_json;

// Replaces the file with the token, which only this user can read.
absl::Status WriteToken(const std::string& directory, const std::string& token) {
  const std::string path = absl::StrCat(directory, "/", kTokenFile), fresh = absl::StrCat(path, ".new");
  ::unlink(fresh.c_str());
  const ipc::Descriptor file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const std::string line = absl::StrCat(token, "\n");
  if (file.get() >= 0 && ::write(file.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size()) &&
      std::rename(fresh.c_str(), path.c_str()) == 0) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("cannot write ", path, ": the directory is not writable, or its disk is full"));
}

}  // namespace

absl::Status WriteJobFile(const std::string& directory, const JobAddress& job) {
  if (!job.token.empty()) TANDEM_RETURN_IF_ERROR(WriteToken(directory, job.token));
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
  // Another user may read the job file only.
  const size_t slash = path.rfind('/');
  const std::string token_file =
      absl::StrCat(slash == std::string::npos ? "" : path.substr(0, slash + 1), kTokenFile);
  if (const absl::StatusOr<std::string> token = ReadFile(token_file); token.ok()) {
    job.token = std::string(absl::StripAsciiWhitespace(*token));
  }
  if (json.contains("servers") && json["servers"].is_number_unsigned())
    job.num_servers = json["servers"].get<int>();
  return job;
}

}  // namespace tandem::launcher
