// SPDX-License-Identifier: Apache-2.0
#include "cluster/store_url.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "cluster/store/etcd/etcd_client.h"
#include "cluster/store/etcd/etcd_store.h"
#include "rpc/address.h"

namespace tandem::cluster {
namespace {

constexpr char kForms[] =
    "; a store is 'tcp://host:port', 'file:///path', 'etcd://host:port/prefix' or 'env://'";

// Removes "?rank=0&world_size=4" from `rest` and parses it.
absl::Status TakeQuery(absl::string_view* rest, int* rank, int* world_size) {
  const size_t mark = rest->find('?');
  if (mark == rest->npos) return absl::OkStatus();
  for (absl::string_view part : absl::StrSplit(rest->substr(mark + 1), '&')) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    int value = 0;
    if ((pair.first != "rank" && pair.first != "world_size") || !absl::SimpleAtoi(pair.second, &value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", part, "' is neither 'rank=R' nor 'world_size=N'", kForms));
    }
    int* const into = pair.first == "rank" ? rank : world_size;
    if (*into < 0) *into = value;
  }
  *rest = rest->substr(0, mark);
  return absl::OkStatus();
}

absl::Status CheckRank(int rank, int world_size) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " of a world of ", world_size,
                                                   ": both must be given, with 0 <= rank < world size"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<JobStore>> OpenJob(const Environment& env, absl::Duration timeout) {
  absl::StatusOr<std::unique_ptr<JobStore>> job = OpenStore(env, timeout);
  if (job.status().code() != absl::StatusCode::kUnavailable) return job;
  if (env.hosts_store()) return Annotate(job.status(), "rank 0 cannot serve the job's store");
  return absl::UnavailableError(
      absl::StrCat(job.status().message(),
                   "; look at rank 0's output first: if the port is in use on its host, rank 0 said so and "
                   "ended. Then check from this host that the name leads to rank 0's host and that no "
                   "firewall stands before the port"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<OpenedStore>> OpenStoreUrl(absl::string_view url, int rank, int world_size,
                                                          absl::Duration timeout) {
  const std::string context = absl::StrCat("store '", url, "'");
  auto opened = std::make_unique<OpenedStore>();
  absl::string_view rest = url;
  Environment env;
  if (absl::ConsumePrefix(&rest, "env://")) {
    TANDEM_RETURN_IF_ERROR(Annotate(TakeQuery(&rest, &rank, &world_size), context));
    if (!rest.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(context, ": nothing may follow 'env://'"));
    }
    TANDEM_ASSIGN_OR_RETURN(env, Environment::FromEnv());
    if (rank >= 0) env.rank = rank;
    if (world_size >= 0) env.world_size = world_size;
    TANDEM_RETURN_IF_ERROR(Annotate(CheckRank(env.rank, env.world_size), context));
    TANDEM_ASSIGN_OR_RETURN(opened->job_, OpenJob(env, timeout));
  } else if (absl::ConsumePrefix(&rest, "tcp://")) {
    TANDEM_RETURN_IF_ERROR(Annotate(TakeQuery(&rest, &rank, &world_size), context));
    absl::StatusOr<rpc::Address> address = rpc::ParseAddress(absl::StripSuffix(rest, "/"));
    if (!address.ok() || address->is_unix()) {
      return absl::InvalidArgumentError(absl::StrCat(context, ": '", rest, "' is no host:port", kForms));
    }
    TANDEM_RETURN_IF_ERROR(Annotate(CheckRank(rank, world_size), context));
    if (address->port == 0 && world_size > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(context,
                       ": port 0 lets the kernel pick a port that the other ranks cannot learn; "
                       "choose one, or start the job through `tandem run`"));
    }
    env.rank = rank;
    env.world_size = world_size;
    env.master_addr = address->host;
    env.master_port = address->port;
    TANDEM_ASSIGN_OR_RETURN(opened->job_, OpenJob(env, timeout));
  } else if (absl::ConsumePrefix(&rest, "file://")) {
    TANDEM_RETURN_IF_ERROR(Annotate(TakeQuery(&rest, &rank, &world_size), context));
    if (!absl::StartsWith(rest, "/")) {
      return absl::InvalidArgumentError(
          absl::StrCat(context, ": the path must be absolute, with three slashes: 'file:///path'"));
    }
    TANDEM_RETURN_IF_ERROR(Annotate(CheckRank(rank, world_size), context));
    env.rank = rank;
    env.world_size = world_size;
    FileStoreOptions options;
    options.users = world_size;
    options.clear_abandoned = true;
    options.lock_timeout = std::min(timeout, options.lock_timeout);
    TANDEM_ASSIGN_OR_RETURN(opened->own_, FileStore::Open(std::string(rest), options));
  } else if (absl::StartsWith(rest, "etcd://") || absl::StartsWith(rest, "etcds://")) {
    // rank= and world_size= are parsed here; the rest of the query belongs to etcd.
    std::string plain(rest.substr(0, rest.find('?')));
    const size_t mark = rest.find('?');
    char between = '?';
    for (absl::string_view part :
         absl::StrSplit(mark == rest.npos ? "" : rest.substr(mark + 1), '&', absl::SkipEmpty())) {
      if (absl::StartsWith(part, "rank=") || absl::StartsWith(part, "world_size=")) {
        const std::string one = absl::StrCat("?", part);
        absl::string_view query = one;
        TANDEM_RETURN_IF_ERROR(Annotate(TakeQuery(&query, &rank, &world_size), context));
      } else {
        absl::StrAppend(&plain, std::string(1, between), part);
        between = '&';
      }
    }
    TANDEM_RETURN_IF_ERROR(Annotate(CheckRank(rank, world_size), context));
    env.rank = rank;
    env.world_size = world_size;
    TANDEM_ASSIGN_OR_RETURN(EtcdOptions options, ParseEtcdUrl(plain));
    options.call_timeout = std::min(timeout, options.call_timeout);
    options.open_timeout = timeout;
    TANDEM_ASSIGN_OR_RETURN(opened->own_, EtcdStore::Open(std::move(options)));
  } else {
    return absl::InvalidArgumentError(absl::StrCat(context, " has an unknown form", kForms));
  }
  opened->rank_ = env.rank;
  opened->world_size_ = env.world_size;
  return opened;
}

}  // namespace tandem::cluster
