// SPDX-License-Identifier: Apache-2.0
// Every kind of fault ends on every surviving rank, by its deadline, with the message that the table in
// docs/collectives.md promises: the test reads the table. TANDEM_PRINT_FAULTS=1 prints the ranks' messages.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "cluster/join.h"
#include "cluster/store/remote_store.h"
#include "cluster/store/store_server.h"
#include "collectives/connect/backend_choice.h"
#include "rpc/channel.h"
#include "tests/collectives/faults/rank_process.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(6);       // of the ranks, for their meeting too
constexpr absl::Duration kGrace = absl::Seconds(15);        // what a busy machine may take beyond that
constexpr absl::Duration kTestTimeout = absl::Seconds(60);  // for what is not measured

// The keys that ranks 0 and 1 of the group "default" write in the store when they come.
const std::vector<std::string> kTwoCame = {"pg/default/rank/0", "pg/default/rank/1"};

// The result of one rank.
struct End {
  std::string who;  // as in the table
  std::string message;
  absl::Duration took;  // since the fault
};

// The ranks of one job.
class Job {
 public:
  Job(std::string scenario, std::string backend, std::string store, absl::Duration timeout = kTimeout)
      : scenario_(std::move(scenario)),
        backend_(std::move(backend)),
        store_(std::move(store)),
        timeout_(timeout) {}

  void Start(int rank, int world_size) {
    ranks_.push_back(std::make_unique<RankProcess>(
        std::vector<std::string>{scenario_, backend_, absl::StrCat(rank), absl::StrCat(world_size), store_,
                                 absl::StrCat(absl::ToInt64Milliseconds(timeout_)), "default"}));
  }
  RankProcess& operator[](size_t i) { return *ranks_[i]; }
  // Waits until all ranks have printed `word`.
  void AllSay(absl::string_view word) {
    for (auto& rank : ranks_) EXPECT_TRUE(rank->WaitFor(word, absl::Now() + kTestTimeout)) << rank->output();
  }
  // Waits for the end of the i-th rank, bounded by the ranks' time-out.
  End EndOf(size_t i, absl::string_view who, absl::Time fault) {
    End end{std::string(who), "", {}};
    EXPECT_TRUE(ranks_[i]->WaitFor("end", absl::Now() + kTimeout + kGrace, &end.message))
        << who << " has not ended: " << ranks_[i]->output();
    end.took = absl::Now() - fault;
    return end;
  }

 private:
  const std::string scenario_, backend_, store_;
  const absl::Duration timeout_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
};

std::string Address(cluster::StoreServer& server) { return absl::StrCat("127.0.0.1:", server.port()); }

// Starts three ranks, of which rank 1 calls another operation.
std::vector<End> Disagree(const std::string& scenario, const std::string& backend) {
  auto server = cluster::StoreServer::Start("127.0.0.1:0").value();
  // The error comes long before the time is over.
  Job job(scenario, backend, Address(*server), kTestTimeout);
  for (int rank = 0; rank < 3; ++rank) job.Start(rank, 3);
  job.AllSay("begun");
  const absl::Time fault = absl::Now();
  std::vector<End> ends;
  for (int rank = 0; rank < 3; ++rank) ends.push_back(job.EndOf(rank, "all", fault));
  return ends;
}

std::vector<End> Missing(const std::string& backend) {
  auto server = cluster::StoreServer::Start("127.0.0.1:0").value();
  Job job("missing", backend, Address(*server));
  for (int rank = 0; rank < 3; ++rank) job.Start(rank, 3);
  job.AllSay("begun");
  const absl::Time fault = absl::Now();
  std::vector<End> ends = {job.EndOf(0, "all", fault), job.EndOf(2, "all", fault)};
  job[1].Continue();  // it comes too late
  ends.push_back(job.EndOf(1, "all", absl::Now()));
  return ends;
}

std::vector<End> Killed(const std::string& backend) {
  auto server = cluster::StoreServer::Start("127.0.0.1:0").value();
  // The others must end because of the death, not of the time: 64 MiB may take long on a busy machine.
  Job job("kill", backend, Address(*server), kTestTimeout);
  for (int rank = 0; rank < 3; ++rank) job.Start(rank, 3);
  for (int round = 0; round < 2; ++round) job.AllSay("round");
  EXPECT_TRUE(job[1].WaitFor("round", absl::Now() + kTestTimeout));
  job[1].Kill();
  const absl::Time fault = absl::Now();
  return {job.EndOf(0, "all", fault), job.EndOf(2, "all", fault)};
}

// Starts a store in a process of its own and returns its address.
std::unique_ptr<RankProcess> ServeStore(std::string* address) {
  auto server = std::make_unique<RankProcess>(std::vector<std::string>{"serve"});
  std::string port;
  EXPECT_TRUE(server->WaitFor("port", absl::Now() + kTestTimeout, &port)) << server->output();
  *address = "127.0.0.1:" + port;
  return server;
}

std::vector<End> StoreKilled(const std::string& backend) {
  std::string address;
  auto server = ServeStore(&address);
  Job job("store", backend, address);
  for (int rank = 0; rank < 2; ++rank) job.Start(rank, 2);
  job.AllSay("begun");
  server->Kill();
  const absl::Time fault = absl::Now();
  for (int rank = 0; rank < 2; ++rank) job[rank].Continue();
  return {job.EndOf(0, "all", fault), job.EndOf(1, "all", fault)};
}

std::vector<End> StoreKilledWhileMeeting(const std::string& backend) {
  std::string address;
  auto server = ServeStore(&address);
  Job job("op", backend, address);
  for (int rank = 0; rank < 2; ++rank) job.Start(rank, 3);  // a third does not come
  cluster::RemoteStore store(cluster::ConnectStore(address).value());
  TANDEM_EXPECT_OK(store.Wait(kTwoCame, kTestTimeout));
  server->Kill();
  const absl::Time fault = absl::Now();
  return {job.EndOf(0, "all", fault), job.EndOf(1, "all", fault)};
}

std::vector<End> PortInUse(const std::string& backend) {
  const int taken = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  TANDEM_CHECK(bind(taken, reinterpret_cast<sockaddr*>(&address), size) == 0 && listen(taken, 8) == 0 &&
               getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const absl::Time fault = absl::Now();
  Job job("op", backend, absl::StrCat("tcp://127.0.0.1:", ntohs(address.sin_port)));
  for (int rank = 0; rank < 2; ++rank) job.Start(rank, 2);
  std::vector<End> ends = {job.EndOf(0, "rank 0", fault), job.EndOf(1, "the others", fault)};
  close(taken);
  return ends;
}

std::vector<End> DuplicateRank(const std::string& backend) {
  auto server = cluster::StoreServer::Start("127.0.0.1:0").value();
  Job job("op", backend, Address(*server));
  job.Start(0, 3);
  job.Start(1, 3);
  TANDEM_EXPECT_OK(server->store()->Wait(kTwoCame, kTestTimeout));
  const absl::Time fault = absl::Now();
  job.Start(1, 3);  // it should have been 2
  return {job.EndOf(0, "the others", fault), job.EndOf(1, "the others", fault),
          job.EndOf(2, "the second of that rank", fault)};
}

std::vector<End> WrongWorldSize(const std::string& backend) {
  auto server = cluster::StoreServer::Start("127.0.0.1:0").value();
  Job job("op", backend, Address(*server));
  const absl::Time fault = absl::Now();
  job.Start(0, 2);
  job.Start(1, 3);
  return {job.EndOf(0, "all", fault), job.EndOf(1, "all", fault)};
}

struct Fault {
  friend void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.what; }
  const char* name;
  const char* what;  // as in the table
  std::function<std::vector<End>(const std::string& backend)> make;
};

const Fault kFaults[] = {
    {"Operation", "rank 1 calls another operation", [](auto& backend) { return Disagree("op", backend); }},
    {"DType", "rank 1 gives another dtype", [](auto& backend) { return Disagree("dtype", backend); }},
    {"Shape", "rank 1 gives another size", [](auto& backend) { return Disagree("shape", backend); }},
    {"Root", "rank 1 names another root", [](auto& backend) { return Disagree("root", backend); }},
    {"Missing", "rank 1 does not call", Missing},
    {"Killed", "rank 1 is killed (-9) in an all-reduce of 64 MiB", Killed},
    {"StoreKilled", "the store's server is killed; then a new group", StoreKilled},
    {"StoreKilledWhileMeeting", "the store's server is killed while ranks meet", StoreKilledWhileMeeting},
    {"PortInUse", "the store's port is in use", PortInUse},
    {"DuplicateRank", "two processes are rank 1, none is rank 2", DuplicateRank},
    {"WorldSize", "rank 1 expects a world of 3, rank 0 of 2", WrongWorldSize},
};

struct Row {
  std::string what, backends, who, message;
};

std::string Cell(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (text.size() > 1 && text.front() == '`' && text.back() == '`') text = text.substr(1, text.size() - 2);
  return std::string(text);
}

std::vector<Row> TableOfTheDocumentation() {
  std::ifstream file(std::string(TANDEM_SOURCE_DIR) + "/docs/collectives.md");
  std::vector<Row> rows;
  std::string line;
  bool inside = false;
  while (std::getline(file, line)) {
    if (absl::StartsWith(line, "#")) inside = line == "## What goes wrong, and what every rank sees";
    if (!inside || !absl::StartsWith(line, "| ")) continue;
    const std::vector<std::string> cells = absl::StrSplit(line, " | ");
    if (cells.size() != 4) continue;
    rows.push_back({Cell(absl::StripPrefix(cells[0], "| ")), Cell(cells[1]), Cell(cells[2]),
                    Cell(absl::StripSuffix(cells[3], " |"))});
  }
  return rows;
}

// Returns true if `pattern`, in which "…" stands for any text, matches all of `text`.
bool Matches(absl::string_view pattern, absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(pattern, "…");
  if (!absl::ConsumePrefix(&text, parts.front())) return false;
  if (parts.size() == 1) return text.empty();
  for (size_t i = 1; i + 1 < parts.size(); ++i) {
    const size_t at = text.find(parts[i]);
    if (at == text.npos) return false;
    text.remove_prefix(at + parts[i].size());
  }
  return absl::EndsWith(text, parts.back());
}

std::vector<std::string> BackendsTested() {
  std::vector<std::string> tested = {"shm", "tcp"};
  const std::vector<BackendFactory> built_in = BuiltInBackends();
  if (FindBackend("gloo", built_in) != nullptr) tested.push_back("gloo");
  return tested;
}

class FaultTest : public ::testing::TestWithParam<Fault> {};

TEST_P(FaultTest, EndsOnEverySurvivingRankAsDocumented) {
  const Fault& fault = GetParam();
  const std::vector<Row> rows = TableOfTheDocumentation();
  const std::vector<std::string> backends_tested = BackendsTested();
  std::vector<std::vector<End>> ends(backends_tested.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ends.size(); ++i) {
    threads.emplace_back([&, i] { ends[i] = fault.make(backends_tested[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < ends.size(); ++i) {
    const std::string& backend = backends_tested[i];
    for (const End& end : ends[i]) {
      if (std::getenv("TANDEM_PRINT_FAULTS") != nullptr) {
        std::cout << "| " << fault.what << " | " << backend << " | " << end.who << " | `" << end.message
                  << "` |  (" << end.took << ")\n";
      }
      EXPECT_LT(end.took, kTimeout + kGrace);
      bool documented = false;
      std::string promised;
      for (const Row& row : rows) {
        const std::vector<std::string> backends = absl::StrSplit(row.backends, ", ");
        if (row.what != fault.what || row.who != end.who) continue;
        if (std::find(backends.begin(), backends.end(), backend) == backends.end()) continue;
        promised = row.message;
        documented = documented || Matches(row.message, end.message);
      }
      EXPECT_TRUE(documented) << fault.what << ", " << backend << ", " << end.who
                              << "\n  says:     " << end.message << "\n  promised: " << promised;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FaultTest, ::testing::ValuesIn(kFaults),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(FaultTableTest, MatchesAsItSays) {
  EXPECT_TRUE(Matches("a…c", "abc"));
  EXPECT_TRUE(Matches("a…", "a"));
  EXPECT_FALSE(Matches("a", "ab"));
  EXPECT_FALSE(Matches("…x…", "abc"));
  EXPECT_GE(TableOfTheDocumentation().size(), std::size(kFaults));
}

}  // namespace
}  // namespace tandem::collectives
