// SPDX-License-Identifier: Apache-2.0
// A user's program outside the repository: a parameter server and its client over gRPC in one process, and a
// process group of one rank. Returns 0 if a pushed gradient changed the row exactly as SGD does.

#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cluster/store/memory_store.h"
#include "collectives/process_group.h"
#include "ps/client/client.h"
#include "ps/server/parameter_server.h"
#include "ps/table.h"
#include "rpc/channel.h"
#include "rpc/server.h"

namespace {

absl::Status TrainOneStep(int port) {
  auto channel = tandem::rpc::ConnectGrpc(absl::StrCat("127.0.0.1:", port));
  if (!channel.ok()) return channel.status();
  std::vector<std::unique_ptr<tandem::rpc::Channel>> channels;
  channels.push_back(*std::move(channel));
  auto client = tandem::ps::Client::Connect(std::move(channels), {});
  if (!client.ok()) return client.status();
  absl::Status status = (*client)->CreateTable(
      tandem::ps::EmbeddingTable("user", /*dim=*/2, tandem::ps::Sgd(0.5f), tandem::ps::Constant(1.0f)));
  if (!status.ok()) return status;

  const std::vector<uint64_t> ids = {7, 9000000000};
  std::vector<float> rows(4);
  auto pulled = (*client)->Pull(0, false, {{.table = "user", .ids = ids, .rows = rows.data()}});
  if (!pulled.ok()) return pulled.status();
  const std::vector<float> gradients = {1.0f, -2.0f, 0.0f, 4.0f};
  status = (*client)->Push(
      0, {{.table = "user", .ids = ids, .gradients = gradients.data(), .pulled_versions = (*pulled)[0]}});
  if (!status.ok()) return status;
  pulled = (*client)->Pull(1, false, {{.table = "user", .ids = ids, .rows = rows.data()}});
  if (!pulled.ok()) return pulled.status();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (std::abs(rows[i] - (1.0f - 0.5f * gradients[i])) > 1e-6f) {
      return absl::InternalError(absl::StrCat("element ", i, " is ", rows[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status ReduceAlone() {
  tandem::cluster::MemoryStore store;
  auto group = tandem::collectives::InitProcessGroup(&store, {.rank = 0, .world_size = 1});
  if (!group.ok()) return group.status();
  std::vector<float> values = {1.0f, 2.0f};
  return (*group)->AllReduce(absl::MakeSpan(values), {.op = tandem::collectives::ReduceOp::kSum}).Wait();
}

}  // namespace

int main() {
  tandem::ps::ParameterServer server({.index = 0, .num_servers = 1});
  auto listening = tandem::rpc::Server::Start({.listen = "127.0.0.1:0"}, {server.service()});
  absl::Status status = listening.status();
  if (status.ok()) status = TrainOneStep((*listening)->port());
  if (status.ok()) status = ReduceAlone();
  server.Stop();
  if (!status.ok()) {
    std::cerr << "consumer: " << status << "\n";
    return 1;
  }
  std::cout << "consumer: a step of SGD went through an installed Tandem\n";
  return 0;
}
