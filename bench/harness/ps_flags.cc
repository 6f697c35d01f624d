// SPDX-License-Identifier: Apache-2.0
#include "bench/harness/ps_flags.h"

#include <algorithm>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/number_flag.h"
#include "base/status.h"
#include "base/suggest.h"

namespace tandem::bench {
namespace {

constexpr uint64_t kMaxRows = 100000000;
constexpr int kMaxProcesses = 64;  // of one kind (servers or workers)
constexpr int kMaxInFlight = 1024;
constexpr uint32_t kMaxDim = 4096;
constexpr uint64_t kMaxIds = 1000000;
// A batch of distinct ids is drawn from at least this many times as many rows: with fewer rows nearly all
// Zipf draws would be repetitions.
constexpr uint64_t kRowsPerId = 8;

template <typename T>
absl::StatusOr<std::vector<T>> ParseNames(const char* flag, const std::string& text,
                                          absl::Span<const T> all) {
  std::vector<T> parsed;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    std::vector<absl::string_view> names;
    const size_t before = parsed.size();
    for (const T value : all) {
      names.push_back(Name(value));
      if (Name(value) == part) parsed.push_back(value);
    }
    if (parsed.size() == before) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, ": there is no '", part, "'", DidYouMean(part, names)));
    }
  }
  return parsed;
}

template <typename T>
absl::StatusOr<std::vector<T>> ParseNumbers(const char* flag, const std::string& text, T max) {
  std::vector<T> parsed;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    T value = 0;
    if (!absl::SimpleAtoi(part, &value) || value < 1 || value > max) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": '", part, "' is not a number from 1 to ", max));
    }
    parsed.push_back(value);
  }
  return parsed;
}

// The values of each choice, with defaults filled in.
struct Lists {
  std::vector<PsTransport> transports;
  std::vector<PsOp> ops;
  std::vector<uint64_t> ids;
  std::vector<uint32_t> dims;
  std::vector<std::pair<int, int>> processes;  // servers, workers
  std::vector<int> in_flight;
  std::vector<PsDistribution> distributions;
};

absl::StatusOr<std::vector<std::pair<int, int>>> ParseProcesses(const PsFlags& flags) {
  const std::string all = flags.quick ? "1" : "1,2";
  const std::string& servers_text = !flags.servers.empty() ? flags.servers : flags.workers;
  const std::string& workers_text = !flags.workers.empty() ? flags.workers : flags.servers;
  TANDEM_ASSIGN_OR_RETURN(std::vector<int> servers,
                          ParseNumbers<int>(flags.servers.empty() ? "--workers" : "--servers",
                                            servers_text.empty() ? all : servers_text, kMaxProcesses));
  TANDEM_ASSIGN_OR_RETURN(std::vector<int> workers,
                          ParseNumbers<int>(flags.workers.empty() ? "--servers" : "--workers",
                                            workers_text.empty() ? all : workers_text, kMaxProcesses));
  const size_t count = std::max(servers.size(), workers.size());
  if (servers.size() == 1) servers.resize(count, servers[0]);
  if (workers.size() == 1) workers.resize(count, workers[0]);
  if (servers.size() != workers.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--servers has ", servers.size(), " entries and --workers ", workers.size(),
                     "; they are taken in pairs, so there must be as many, or one that goes with all"));
  }
  std::vector<std::pair<int, int>> processes;
  for (size_t i = 0; i < count; ++i) processes.emplace_back(servers[i], workers[i]);
  return processes;
}

absl::StatusOr<Lists> ListsOf(const PsFlags& flags) {
  const auto given = [&](const std::string& text, const char* all, const char* quick) {
    return !text.empty() ? text : std::string(flags.quick ? quick : all);
  };
  Lists lists;
  TANDEM_ASSIGN_OR_RETURN(
      lists.transports,
      ParseNames("--transport", given(flags.transports, "in-process,tcp,unix,shm", "in-process,tcp,shm"),
                 AllPsTransports()));
  TANDEM_ASSIGN_OR_RETURN(lists.ops,
                          ParseNames("--op", given(flags.ops, "pull,push,mixed", "pull,push"), AllPsOps()));
  TANDEM_ASSIGN_OR_RETURN(
      lists.ids,
      ParseNumbers<uint64_t>("--ids", given(flags.ids, "256,4096,16384", "256,4096,16384"), kMaxIds));
  for (const uint64_t ids : lists.ids) {
    if (ids * kRowsPerId <= flags.rows) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--ids: ", ids, " is more than an eighth of --rows, ", flags.rows));
  }
  TANDEM_ASSIGN_OR_RETURN(lists.dims,
                          ParseNumbers<uint32_t>("--dim", given(flags.dims, "16,64,128", "64"), kMaxDim));
  TANDEM_ASSIGN_OR_RETURN(lists.processes, ParseProcesses(flags));
  TANDEM_ASSIGN_OR_RETURN(
      lists.in_flight,
      ParseNumbers<int>("--in-flight", given(flags.in_flight, "1,4,8", "1,4"), kMaxInFlight));
  TANDEM_ASSIGN_OR_RETURN(lists.distributions,
                          ParseNames("--distribution", given(flags.distributions, "uniform,zipf", "uniform"),
                                     AllPsDistributions()));
  return lists;
}

// The cases of one transport, except fairness.
void AddCases(const Lists& lists, PsCase c, PsGroup* group) {
  for (const PsDistribution distribution : lists.distributions) {
    for (const uint64_t ids : lists.ids) {
      for (const PsOp op : lists.ops) {
        if (op == PsOp::kFairness) continue;
        for (const int in_flight : lists.in_flight) {
          if (c.transport == PsTransport::kInProcess && in_flight != lists.in_flight[0]) continue;
          c.distribution = distribution;
          c.ids = ids;
          c.op = op;
          c.in_flight = c.transport == PsTransport::kInProcess ? 1 : in_flight;
          group->cases.push_back(c);
        }
      }
    }
  }
}

bool Remote(PsTransport transport) { return transport != PsTransport::kInProcess; }

void AddInProcess(const Lists& lists, std::vector<PsGroup>* groups) {
  for (const uint32_t dim : lists.dims) {
    PsGroup group{.dim = dim, .servers = 0, .workers = 1};
    AddCases(lists, {.transport = PsTransport::kInProcess, .dim = dim, .servers = 0}, &group);
    groups->push_back(std::move(group));
  }
}

void AddRemote(const Lists& lists, std::vector<PsGroup>* groups) {
  for (const auto& [servers, workers] : lists.processes) {
    for (const uint32_t dim : lists.dims) {
      PsGroup group{.dim = dim, .servers = servers, .workers = workers};
      for (const PsTransport transport : lists.transports) {
        if (!Remote(transport)) continue;
        AddCases(lists, {.transport = transport, .dim = dim, .servers = servers, .workers = workers}, &group);
      }
      groups->push_back(std::move(group));
    }
  }
}

// One worker pulls and one pushes, with as many calls in flight as the largest entry of the list.
void AddFairness(const Lists& lists, std::vector<PsGroup>* groups) {
  for (const uint32_t dim : lists.dims) {
    PsGroup group{.dim = dim, .servers = 1, .workers = 2};
    for (const PsTransport transport : lists.transports) {
      if (!Remote(transport)) continue;
      for (const PsDistribution distribution : lists.distributions) {
        for (const uint64_t ids : lists.ids) {
          group.cases.push_back(
              {.transport = transport,
               .op = PsOp::kFairness,
               .ids = ids,
               .dim = dim,
               .servers = 1,
               .workers = 2,
               .in_flight = *std::max_element(lists.in_flight.begin(), lists.in_flight.end()),
               .distribution = distribution});
        }
      }
    }
    groups->push_back(std::move(group));
  }
}

}  // namespace

void DeclarePsFlags(CLI::App* command, PsFlags* flags) {
  const auto list = [command](const char* names, std::string* value, const char* help) {
    command->add_option(names, *value, help);
  };
  list("--transport,--transports", &flags->transports, "in-process,tcp,unix,shm");
  list("--op,--ops", &flags->ops,
       "pull,push,mixed; or fairness: the latency of one worker's pulls, alone and while another pushes as "
       "fast as it can");
  list("--ids", &flags->ids, "Distinct ids of a call [256,4096,16384]");
  list("--dim,--dims", &flags->dims, "Floats of a row [16,64,128]");
  list("--servers", &flags->servers,
       "Server processes, in pairs with --workers; one of the two stands for both [1,2]");
  list("--workers", &flags->workers, "Worker processes [as --servers]");
  list("--in-flight", &flags->in_flight, "Calls that a worker has under way [1,4,8]");
  list("--distribution,--distributions", &flags->distributions, "How ids are drawn: uniform,zipf (1.05)");
  LimitTo(Between(kRowsPerId, kMaxRows),
          command->add_option("--rows", flags->rows, "Rows of the table")->capture_default_str());
  LimitTo(Range{.min = 0, .max = 3600e3, .above_min = true},
          command->add_option("--time-per-case", flags->time_ms, "Milliseconds that a case is measured")
              ->capture_default_str());
  command->add_flag("--quick", flags->quick,
                    "A part of each choice that was not given: under a minute, where all take under ten");
  command->add_flag(
      "--json", flags->json,
      "Print one JSON object a line: transport, op, ids, dim, servers, workers, in_flight, distribution, "
      "keys_per_s, median_us, p99_us, client_cpu_s_per_mkeys, server_cpu_s_per_mkeys; of pulls in process "
      "also plain_keys_per_s and plain_ratio");
}

absl::StatusOr<std::vector<PsGroup>> PsGroupsOf(const PsFlags& flags) {
  if (flags.rows < kRowsPerId || flags.rows > kMaxRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rows is ", flags.rows, "; it must be from ", kRowsPerId, " to ", kMaxRows));
  }
  if (!(flags.time_ms > 0 && flags.time_ms <= 3600e3)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--time-per-case is ", flags.time_ms, "; it must be above 0 and at most an hour"));
  }
  TANDEM_ASSIGN_OR_RETURN(const Lists lists, ListsOf(flags));
  const auto wants = [&](PsTransport transport) {
    return std::find(lists.transports.begin(), lists.transports.end(), transport) != lists.transports.end();
  };
  std::vector<PsGroup> groups;
  if (wants(PsTransport::kInProcess)) AddInProcess(lists, &groups);
  AddRemote(lists, &groups);
  if (std::find(lists.ops.begin(), lists.ops.end(), PsOp::kFairness) != lists.ops.end()) {
    AddFairness(lists, &groups);
  }
  groups.erase(std::remove_if(groups.begin(), groups.end(), [](const PsGroup& g) { return g.cases.empty(); }),
               groups.end());
  if (groups.empty()) {
    return absl::InvalidArgumentError(
        "--op fairness needs a --transport between processes: tcp, unix or shm");
  }
  return groups;
}

}  // namespace tandem::bench
