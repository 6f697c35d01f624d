#include "cli/servers/find_servers.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "collectives/store/remote_store.h"
#include "nlohmann/json.hpp"
#include "rpc/address.h"
#include "rpc/channel.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr uint32_t kMaxServers = 256;

struct JobFile {
  std::string store;
  int num_servers = 0;  // 0: unknown
};

absl::StatusOr<JobFile> ReadJobFile(const fs::path& path) {
  std::ifstream in(path);
  if (!in) return absl::NotFoundError(absl::StrCat("cannot read ", path.string()));
  const Json json = Json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("store") || !json["store"].is_string()) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), " is no job file of `tandem run`"));
  }
  JobFile job{.store = json["store"].get<std::string>()};
  if (json.contains("servers") && json["servers"].is_number_unsigned())
    job.num_servers = json["servers"].get<int>();
  return job;
}

absl::StatusOr<JobFile> JobIn(const std::string& directory) {
  std::error_code error;
  for (const fs::path& path : {fs::path(directory) / kJobFile, fs::path(directory) / "logs" / kJobFile}) {
    if (fs::exists(path, error)) return ReadJobFile(path);
  }
  return absl::NotFoundError(absl::StrCat("'", directory, "' holds no ", kJobFile,
                                          ": --job wants the log directory of a `tandem run`, such as "
                                          "runs/20260101-120000-4711"));
}

absl::StatusOr<JobFile> NewestJob() {
  fs::path newest;
  fs::file_time_type newest_time;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("runs", error)) {
    const fs::path path = entry.path() / "logs" / kJobFile;
    const fs::file_time_type time = fs::last_write_time(path, error);
    if (error || (!newest.empty() && time <= newest_time)) continue;
    newest = path;
    newest_time = time;
  }
  if (!newest.empty()) return ReadJobFile(newest);
  return absl::NotFoundError(
      "which job? Give --servers HOST:PORT,..., --store HOST:PORT or --job DIR (the log directory of a "
      "`tandem run`), "
      "or set TANDEM_STORE (or MASTER_ADDR and MASTER_PORT); there is no runs/*/logs/job.json below this "
      "directory");
}

absl::StatusOr<JobFile> WhichJob(const ServersFlags& flags) {
  if (!flags.store.empty()) return JobFile{.store = flags.store};
  if (!flags.job.empty()) return JobIn(flags.job);
  const char* const store = std::getenv("TANDEM_STORE");
  const char* const host = std::getenv("MASTER_ADDR");
  const char* const port = std::getenv("MASTER_PORT");
  if (store != nullptr || (host != nullptr && port != nullptr)) {
    JobFile job{.store = store != nullptr ? store : absl::StrCat(host, ":", port)};
    const char* const servers = std::getenv("TANDEM_NUM_PS");
    if (servers == nullptr || !absl::SimpleAtoi(servers, &job.num_servers)) job.num_servers = 0;
    return job;
  }
  return NewestJob();
}

}  // namespace

void AddServersFlags(CLI::App* command, ServersFlags* flags) {
  command->add_option("--servers", flags->servers, "The parameter servers: HOST:PORT,HOST:PORT,... by index");
  AddJobFlags(command, flags);
}

void AddJobFlags(CLI::App* command, ServersFlags* flags) {
  command->add_option("--store", flags->store,
                      "HOST:PORT of the job's store [TANDEM_STORE, MASTER_ADDR:MASTER_PORT]");
  command->add_option("--job", flags->job,
                      "The log directory of a `tandem run`, or its parent [the newest under runs/]");
  command->add_option("--timeout", flags->timeout_seconds, "Seconds to wait for an answer")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
}

absl::Status WriteJobFile(const std::string& directory, const std::string& run_id, const std::string& store,
                          int num_servers) {
  const std::string path = absl::StrCat(directory, "/", kJobFile);
  std::ofstream out(path, std::ios::trunc);
  out << Json{{"run_id", run_id}, {"store", store}, {"servers", num_servers}}.dump() << "\n";
  out.close();
  return out ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

absl::StatusOr<std::string> FindStore(const ServersFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const JobFile job, WhichJob(flags));
  TANDEM_RETURN_IF_ERROR(Annotate(rpc::ParseAddress(job.store).status(), "the job's store"));
  return job.store;
}

absl::StatusOr<std::vector<std::string>> FindServers(const ServersFlags& flags) {
  if (!flags.servers.empty()) {
    const std::vector<std::string> addresses = absl::StrSplit(flags.servers, ',');
    for (const std::string& address : addresses) {
      TANDEM_RETURN_IF_ERROR(Annotate(rpc::ParseAddress(address).status(), "--servers"));
    }
    return addresses;
  }
  TANDEM_ASSIGN_OR_RETURN(const JobFile job, WhichJob(flags));
  const absl::Duration timeout = absl::Seconds(flags.timeout_seconds);
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel, rpc::ConnectGrpc(job.store));
  collectives::RemoteStore store(std::move(channel), timeout);
  const absl::StatusOr<std::vector<std::string>> keys = store.List("ps/");
  if (!keys.ok()) {
    return Annotate(keys.status(), "asking the job's store for its servers (has the job ended?)");
  }
  std::map<uint32_t, std::string> known;
  for (const std::string& key : *keys) {
    uint32_t index = 0;
    if (!absl::SimpleAtoi(absl::StripPrefix(key, "ps/"), &index) || index >= kMaxServers) continue;
    TANDEM_ASSIGN_OR_RETURN(known[index], store.Get(key, timeout));
  }
  size_t count = job.num_servers > 0 ? std::min<uint32_t>(job.num_servers, kMaxServers) : 0;
  if (!known.empty()) count = std::max<size_t>(count, known.rbegin()->first + 1);
  if (count == 0) {
    return absl::NotFoundError(
        absl::StrCat("the job whose store is at ", job.store, " has no parameter servers (yet)"));
  }
  std::vector<std::string> addresses(count);
  for (const auto& [index, address] : known) addresses[index] = address;
  return addresses;
}

}  // namespace tandem::cli
