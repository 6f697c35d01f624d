// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/find_job.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "cli/monitor/rounds.h"
#include "cluster/join.h"
#include "cluster/store/remote_store.h"
#include "ps/failover/placement_text.h"
#include "rpc/address.h"
#include "rpc/channel.h"
#include "rpc/security/transport_security.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kMaxServers = 256;

absl::StatusOr<launcher::JobAddress> JobIn(const std::string& directory) {
  std::error_code error;
  for (const fs::path& path :
       {fs::path(directory) / launcher::kJobFile, fs::path(directory) / "logs" / launcher::kJobFile}) {
    if (fs::exists(path, error)) return launcher::ReadJobFile(path.string());
  }
  return absl::NotFoundError(
      absl::StrCat("'", directory, "' holds no ", launcher::kJobFile,
                   ": --job wants the log directory of a `tandem run`, such as runs/20260101-120000-4711"));
}

absl::StatusOr<launcher::JobAddress> NewestJob() {
  fs::path newest;
  fs::file_time_type newest_time;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("runs", error)) {
    const fs::path path = entry.path() / "logs" / launcher::kJobFile;
    const fs::file_time_type time = fs::last_write_time(path, error);
    if (error || (!newest.empty() && time <= newest_time)) continue;
    newest = path;
    newest_time = time;
  }
  if (!newest.empty()) return launcher::ReadJobFile(newest.string());
  return absl::NotFoundError(
      "which job? Give --servers HOST:PORT,..., --store HOST:PORT or --job DIR (the log directory of a "
      "`tandem run`), or set TANDEM_STORE (or MASTER_ADDR and MASTER_PORT); there is no runs/*/logs/job.json "
      "below this directory");
}

// Makes the key of `job`, which its store and its servers have, that of this process: that of its log
// directory; else, of a job that is known by its name at a rendezvous, what this process's key gives for it.
// A process with a grant keeps it.
absl::Status UseKeyOf(const launcher::JobAddress& job) {
  const absl::StatusOr<rpc::Credential> own = rpc::ProcessCredential();
  if (own.ok() && own->grant != nullptr) return absl::OkStatus();
  if (!job.key_file.empty()) {
    TANDEM_ASSIGN_OR_RETURN(rpc::JobKey key, rpc::JobKey::FromFile(job.key_file));
    rpc::SetProcessCredential({.key = std::make_shared<const rpc::JobKey>(std::move(key)), .grant = nullptr});
  } else if (!job.rendezvous.empty() && !job.run_id.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const rpc::JobKey key, rpc::JobKey::Load());
    rpc::SetProcessCredential(
        {.key = std::make_shared<const rpc::JobKey>(key.ForJob(job.run_id)), .grant = nullptr});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> StoreOf(const launcher::JobAddress& job, double timeout_seconds) {
  std::string store = job.store;
  if (store.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const JobRounds rounds,
                            AskRounds(job.rendezvous, job.run_id, absl::Seconds(timeout_seconds)));
    store = rounds.store();
    if (store.empty()) {
      return absl::UnavailableError(absl::StrCat("no round is running: ", RoundsToText(rounds)));
    }
  }
  TANDEM_RETURN_IF_ERROR(Annotate(cluster::CheckStoreAddress(store), "the job's store"));
  return store;
}

// Returns the job's address as the flags, the environment or a job file give it.
absl::StatusOr<launcher::JobAddress> Named(const JobFlags& flags) {
  if (IsRendezvous(flags.store))
    return launcher::JobAddress{.rendezvous = flags.store, .run_id = flags.run_id};
  if (!flags.store.empty()) return launcher::JobAddress{.store = flags.store};
  if (!flags.job.empty()) return JobIn(flags.job);
  const char* const store = std::getenv("TANDEM_STORE");
  const char* const host = std::getenv("MASTER_ADDR");
  const char* const port = std::getenv("MASTER_PORT");
  if (store != nullptr || (host != nullptr && port != nullptr)) {
    launcher::JobAddress job{.store = store != nullptr ? store : absl::StrCat(host, ":", port)};
    const char* const servers = std::getenv("TANDEM_NUM_PS");
    if (servers == nullptr || !absl::SimpleAtoi(servers, &job.num_servers)) job.num_servers = 0;
    return job;
  }
  return NewestJob();
}

}  // namespace

absl::StatusOr<launcher::JobAddress> FindJob(const JobFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(launcher::JobAddress job, Named(flags));
  TANDEM_RETURN_IF_ERROR(UseKeyOf(job));
  return job;
}

absl::StatusOr<std::string> FindStore(const JobFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const launcher::JobAddress job, FindJob(flags));
  return StoreOf(job, flags.timeout_seconds);
}

absl::Status StoreError(const absl::Status& error, const std::string& address) {
  if (!absl::IsUnavailable(error) && !absl::IsDeadlineExceeded(error)) {
    return Annotate(error, absl::StrCat("the job's store at ", address));
  }
  return absl::Status(
      error.code(),
      absl::StrCat("the job's store at ", address,
                   " does not answer: the job has ended, or its first node is away. Run this command while a "
                   "job runs, in the folder in which the job was started, or give --job DIR (",
                   error.message(), ")"));
}

absl::StatusOr<std::vector<std::string>> FindServers(const JobFlags& flags) {
  if (!flags.servers.empty()) {
    const std::vector<std::string> addresses = absl::StrSplit(flags.servers, ',');
    for (const std::string& address : addresses) {
      TANDEM_RETURN_IF_ERROR(Annotate(rpc::ParseAddress(address).status(), "--servers"));
    }
    return addresses;
  }
  TANDEM_ASSIGN_OR_RETURN(const launcher::JobAddress job, FindJob(flags));
  const absl::Duration timeout = absl::Seconds(flags.timeout_seconds);
  TANDEM_ASSIGN_OR_RETURN(const std::string address, StoreOf(job, flags.timeout_seconds));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel, cluster::ObserveStore(address));
  cluster::RemoteStore store(std::move(channel), timeout);
  const absl::StatusOr<std::vector<std::string>> keys = store.List("ps/");
  if (!keys.ok()) return StoreError(keys.status(), address);
  std::map<uint32_t, std::string> known;
  for (const std::string& key : *keys) {
    uint32_t index = 0;
    if (!absl::SimpleAtoi(absl::StripPrefix(key, "ps/"), &index) || index >= kMaxServers) continue;
    TANDEM_ASSIGN_OR_RETURN(known[index], store.Get(key, timeout));
  }
  // The placement documents of servers with followers name a new primary earlier.
  for (auto& [index, address] : known) {
    const std::string key = ps::PlacementKey(index);
    if (!absl::c_linear_search(*keys, key)) continue;
    TANDEM_ASSIGN_OR_RETURN(const std::string text, store.Get(key, timeout));
    TANDEM_ASSIGN_OR_RETURN(const tandem::v1::ShardPlacement placement, ps::PlacementFromText(key, text));
    address = placement.primary().address();
  }
  size_t count = job.num_servers > 0 ? std::min<uint32_t>(job.num_servers, kMaxServers) : 0;
  if (!known.empty()) count = std::max<size_t>(count, known.rbegin()->first + 1);
  if (count == 0) {
    return absl::NotFoundError(
        absl::StrCat("the job whose store is at ", address,
                     " has no parameter servers, or none yet; `tandem status` lists its processes"));
  }
  std::vector<std::string> addresses(count);
  for (const auto& [index, address] : known) addresses[index] = address;
  return addresses;
}

}  // namespace tandem::cli
