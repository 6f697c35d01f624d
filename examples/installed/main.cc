// SPDX-License-Identifier: Apache-2.0
// Serves a table, pulls two rows of it and pushes their gradients, in one process.

#include <cstdint>
#include <iostream>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ps/client/client.h"
#include "ps/server/parameter_server.h"
#include "ps/table.h"
#include "rpc/channel.h"
#include "rpc/server.h"

namespace ps = tandem::ps;
namespace rpc = tandem::rpc;

absl::Status Train(int port) {
  auto channel = rpc::ConnectGrpc(absl::StrCat("127.0.0.1:", port));
  if (!channel.ok()) return channel.status();
  std::vector<std::unique_ptr<rpc::Channel>> servers;
  servers.push_back(*std::move(channel));
  auto client = ps::Client::Connect(std::move(servers), {});
  if (!client.ok()) return client.status();
  absl::Status status = (*client)->CreateTable(
      ps::EmbeddingTable("user", /*dim=*/2, ps::Sgd(/*learning_rate=*/0.5f), ps::Constant(1.0f)));
  if (!status.ok()) return status;

  const std::vector<uint64_t> ids = {7, 9000000000};
  std::vector<float> rows(4);
  const std::vector<float> gradients = {1, -2, 0, 4};
  for (uint64_t step = 0; step < 2; ++step) {
    auto versions =
        (*client)->Pull(step, /*read_only=*/false, {{.table = "user", .ids = ids, .rows = rows.data()}});
    if (!versions.ok()) return versions.status();
    std::cout << "step " << step << ": user 7 is (" << rows[0] << ", " << rows[1] << ")\n";
    status = (*client)->Push(
        step,
        {{.table = "user", .ids = ids, .gradients = gradients.data(), .pulled_versions = (*versions)[0]}});
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

int main() {
  ps::ParameterServer server({.index = 0, .num_servers = 1});
  auto listening = rpc::Server::Start({.listen = "127.0.0.1:0"}, {server.service()});
  const absl::Status status = listening.ok() ? Train((*listening)->port()) : listening.status();
  server.Stop();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
