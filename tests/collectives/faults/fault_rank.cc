// SPDX-License-Identifier: Apache-2.0
// One rank of a job with a fault: the program that faults_test and soak_test run as real processes.
//
//   fault_rank SCENARIO BACKEND RANK WORLD_SIZE STORE TIMEOUT_MS GROUP
//
// STORE is a URL for OpenStoreUrl, or "host:port" of a store that another process serves. The program prints
// these lines: "@ready" (the group is connected), "@begun" (it has worked once), "@round" (a long operation
// begins), "@end STATUS". If a scenario waits for the test, the program reads a line from stdin.

#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "cluster/join.h"
#include "cluster/store/remote_store.h"
#include "cluster/store/store_server.h"
#include "cluster/store_url.h"
#include "collectives/process_group.h"
#include "rpc/channel.h"

namespace tandem::collectives {
namespace {

struct Arguments {
  std::string scenario, backend, store, group;
  int rank = 0, world_size = 1, timeout_ms = 0;
};

void Say(const std::string& line) {
  const std::string text = "@" + line + "\n";
  TANDEM_CHECK(write(STDOUT_FILENO, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

// Returns false if the test has ended.
bool WaitForTheTest() {
  std::string line;
  return static_cast<bool>(std::getline(std::cin, line));
}

// Plays the scenario after the group was formed. Rank 1 causes the fault.
absl::Status Play(const Arguments& arguments, ProcessGroup& group) {
  const std::string& scenario = arguments.scenario;
  const bool wrong = group.rank() == 1;
  std::vector<float> values(1000, 1.0f);
  TANDEM_RETURN_IF_ERROR(group.AllReduce(values).Wait());
  Say("begun");
  if (scenario == "op") {
    return wrong ? group.Barrier().Wait() : group.AllReduce(values).Wait();
  }
  if (scenario == "dtype") {
    std::vector<double> doubles(1000);
    return wrong ? group.AllReduce(doubles).Wait() : group.AllReduce(values).Wait();
  }
  if (scenario == "shape") {
    values.resize(wrong ? 1001 : 1000);
    return group.AllReduce(values).Wait();
  }
  if (scenario == "root") {
    return group.Broadcast(values, {.root = wrong ? 1 : 0}).Wait();
  }
  if (scenario == "missing") {
    // The missing rank comes when all others have given up.
    if (wrong && !WaitForTheTest()) return absl::OkStatus();
    return group.AllReduce(values).Wait();
  }
  if (scenario == "kill") {
    values.resize((64 << 20) / sizeof(float));
    while (true) {
      Say("round");  // which begins now
      TANDEM_RETURN_IF_ERROR(group.AllReduce(values, {.op = ReduceOp::kAvg}).Wait());
    }
  }
  if (scenario == "work") {  // of the soak test: sizes from a cache line to a few segments
    for (size_t i = 0;; ++i) {
      values.resize((size_t{1} << (4 + i % 17)) + i % 3);
      TANDEM_RETURN_IF_ERROR(group.AllReduce(values, {.op = ReduceOp::kAvg}).Wait());
    }
  }
  if (scenario == "store") {
    if (!WaitForTheTest()) return absl::OkStatus();
    TANDEM_RETURN_IF_ERROR(Annotate(group.AllReduce(values).Wait(), "without a store"));
    std::vector<int> all;
    for (int rank = 0; rank < group.world_size(); ++rank) all.push_back(rank);
    return group.NewGroup(all).status();
  }
  return absl::UnimplementedError(absl::StrCat("no scenario '", scenario, "'"));
}

absl::Status Run(const Arguments& arguments) {
  ProcessGroupOptions options;
  options.backend = arguments.backend;
  options.rank = arguments.rank;
  options.world_size = arguments.world_size;
  options.name = arguments.group;
  options.timeout = absl::Milliseconds(arguments.timeout_ms);
  std::unique_ptr<cluster::RemoteStore> store;  // outlives the group
  absl::StatusOr<std::unique_ptr<ProcessGroup>> group;
  if (absl::StrContains(arguments.store, "://")) {
    options.init_method = arguments.store;
    group = InitProcessGroup(options);
  } else {
    TANDEM_ASSIGN_OR_RETURN(auto channel, cluster::ConnectStore(arguments.store));
    store = std::make_unique<cluster::RemoteStore>(std::move(channel), options.timeout);
    group = InitProcessGroup(store.get(), options);
  }
  TANDEM_RETURN_IF_ERROR(group);
  Say("ready");
  return Play(arguments, **group);
}

// Serves a store in a process of its own until stdin ends.
int Serve() {
  auto server = cluster::StoreServer::Start("127.0.0.1:0");
  if (!server.ok()) return 1;
  Say(absl::StrCat("port ", (*server)->port()));
  (void)WaitForTheTest();
  return 0;
}

int Main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "serve") return Serve();
  Arguments arguments;
  if (argc != 8 || !absl::SimpleAtoi(argv[3], &arguments.rank) ||
      !absl::SimpleAtoi(argv[4], &arguments.world_size) ||
      !absl::SimpleAtoi(argv[6], &arguments.timeout_ms)) {
    std::fprintf(stderr, "see the head of fault_rank.cc\n");
    return 2;
  }
  arguments.scenario = argv[1];
  arguments.backend = argv[2];
  arguments.store = argv[5];
  arguments.group = argv[7];
  const absl::Status end = Run(arguments);
  Say(absl::StrCat("end ", absl::StrReplaceAll(end.ToString(), {{"\n", " "}})));
  return 0;
}

}  // namespace
}  // namespace tandem::collectives

int main(int argc, char** argv) { return tandem::collectives::Main(argc, argv); }
