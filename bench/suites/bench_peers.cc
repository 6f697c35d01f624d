// SPDX-License-Identifier: Apache-2.0
#include "bench/suites/bench_peers.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/status.h"

namespace tandem::bench {
namespace {

// Timeout of one step. It is long because a worker that fills a large table on a busy machine must not seem
// dead.
constexpr absl::Duration kStepTimeout = absl::Minutes(5);
// Timeout of a server's wait for the workers. The processes end with the benchmark in any case.
constexpr absl::Duration kRunTimeout = absl::Hours(24);
constexpr char kDone[] = "bench/done";

std::string ServerKey(int index) { return absl::StrCat("bench/server/", index); }
std::string FollowerKey(int index) { return absl::StrCat("bench/follower/", index); }

}  // namespace

absl::StatusOr<std::unique_ptr<BenchPeers>> BenchPeers::Join(int workers, bool followers) {
  TANDEM_ASSIGN_OR_RETURN(const cluster::Environment env, cluster::Environment::FromEnv());
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<cluster::JobStore> store,
                          cluster::OpenStore(env, absl::Minutes(1)));
  return std::unique_ptr<BenchPeers>(new BenchPeers(env, workers, followers ? 2 : 1, std::move(store)));
}

absl::Status BenchPeers::Announce(const BenchServer& server) {
  return store_->store()->Set(ServerKey(server_index()),
                              absl::StrCat(server.tcp, "\n", server.unix_socket, "\n", server.pid));
}

absl::Status BenchPeers::WaitUntilDone() { return store_->store()->Get(kDone, kRunTimeout).status(); }

absl::Status BenchPeers::AnnounceFollower(const std::string& address) {
  return store_->store()->Set(FollowerKey(server_index()), address);
}

absl::StatusOr<std::string> BenchPeers::Follower() {
  return store_->store()->Get(FollowerKey(server_index()), kStepTimeout);
}

absl::StatusOr<std::vector<BenchServer>> BenchPeers::Servers() {
  std::vector<BenchServer> servers;
  for (int index = 0; index < this->servers(); ++index) {
    TANDEM_ASSIGN_OR_RETURN(const std::string text, store_->store()->Get(ServerKey(index), kStepTimeout));
    const std::vector<std::string> fields = absl::StrSplit(text, '\n');
    BenchServer server;
    if (fields.size() != 3 || !absl::SimpleAtoi(fields[2], &server.pid)) {
      return absl::InternalError(absl::StrCat("server ", index, " announced '", text, "'"));
    }
    server.tcp = fields[0];
    server.unix_socket = fields[1];
    servers.push_back(std::move(server));
  }
  return servers;
}

absl::StatusOr<std::vector<std::string>> BenchPeers::AllGather(absl::string_view mine) {
  const auto key = [this](int rank) { return absl::StrCat("bench/share/", gathers_, "/", rank); };
  TANDEM_RETURN_IF_ERROR(store_->store()->Set(key(rank()), mine));
  std::vector<std::string> keys;
  for (int rank = 0; rank < workers_; ++rank) keys.push_back(key(rank));
  ++gathers_;
  return store_->store()->MultiGet(keys, kStepTimeout);
}

absl::Status BenchPeers::ReleaseServers() { return store_->store()->Set(kDone, "1"); }

}  // namespace tandem::bench
