// SPDX-License-Identifier: Apache-2.0
#include "launcher/job_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/crypto/crypto.h"
#include "base/ipc/descriptor.h"
#include "base/json.h"
#include "base/read_file.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace tandem::launcher {
namespace {

using Json = nlohmann::ordered_json;

// Replaces a file, so that a reader sees a whole one at any time. Launchers of several nodes may do so at the
// same time in a directory that they share, so each writes a file of its own first.
absl::Status Replace(const std::string& path, absl::string_view content, mode_t mode) {
  std::string fresh = absl::StrCat(path, ".XXXXXX");
  const ipc::Descriptor file(::mkostemp(fresh.data(), O_CLOEXEC));
  if (file.valid()) {
    if (::write(file.get(), content.data(), content.size()) == static_cast<ssize_t>(content.size()) &&
        ::fchmod(file.get(), mode) == 0 && std::rename(fresh.c_str(), path.c_str()) == 0) {
      return absl::OkStatus();
    }
    ::unlink(fresh.c_str());
  }
  return absl::UnavailableError(
      absl::StrCat("cannot write ", path, ": the directory is not writable, or its disk is full"));
}

// Replaces `path` by a symbolic link.
absl::Status ReplaceByLink(const std::string& path, const std::string& target) {
  const std::string fresh = absl::StrCat(path, ".", absl::BytesToHexString(crypto::RandomBytes(8)));
  if (::symlink(target.c_str(), fresh.c_str()) == 0) {
    if (std::rename(fresh.c_str(), path.c_str()) == 0) return absl::OkStatus();
    ::unlink(fresh.c_str());
  }
  return absl::UnavailableError(absl::StrCat("cannot make the link ", path));
}

std::string KeyFileIn(const std::string& directory) {
  std::error_code ignored;
  return (std::filesystem::absolute(directory, ignored) / kKeyFile).lexically_normal().string();
}

}  // namespace

std::string AuditFileBeside(const std::string& key_file) {
  return (std::filesystem::path(key_file).parent_path() / "audit.jsonl").string();
}

absl::StatusOr<std::string> WriteKeyFile(const std::string& directory, const rpc::JobKey& key) {
  std::error_code ignored;
  std::filesystem::create_directories(directory, ignored);
  const std::string path = KeyFileIn(directory);
  TANDEM_RETURN_IF_ERROR(Replace(path, absl::StrCat(key.ToText(), "\n"), 0600));
  return path;
}

absl::Status WriteJobFile(const std::string& directory, const JobAddress& job) {
  Json json = {{"run_id", job.run_id}, {"store", job.store}, {"servers", job.num_servers}};
  if (!job.rendezvous.empty()) json["rendezvous"] = job.rendezvous;
  if (const std::string key_file = KeyFileIn(directory); !job.key_file.empty() && job.key_file != key_file) {
    TANDEM_RETURN_IF_ERROR(ReplaceByLink(key_file, job.key_file));
  }
  return Replace(absl::StrCat(directory, "/", kJobFile), absl::StrCat(json.dump(), "\n"), 0644);
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
  std::error_code ignored;
  const std::string key_file = KeyFileIn(std::filesystem::path(path).parent_path());
  if (std::filesystem::exists(key_file, ignored)) job.key_file = key_file;
  if (json.contains("servers") && json["servers"].is_number_unsigned())
    job.num_servers = json["servers"].get<int>();
  return job;
}

}  // namespace tandem::launcher
