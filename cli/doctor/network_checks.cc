// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/doctor/checks.h"
#include "rpc/network.h"

namespace tandem::cli {
namespace {

constexpr char kNetwork[] = "network";

// Returns an address that other hosts can use, with its interface, if there is one.
std::string UsableAddress(const std::vector<launcher::Machine::Interface>& interfaces) {
  for (const launcher::Machine::Interface& one : interfaces) {
    if (!one.up || one.loopback) continue;
    for (const std::string& address : one.addresses) {
      if (!rpc::IsLoopbackHost(address) && !absl::StartsWith(address, "fe80:")) {
        return absl::StrCat(address, " (", one.name, ")");
      }
    }
  }
  return "";
}

void CheckInterfaces(const std::vector<launcher::Machine::Interface>& interfaces, Checks* checks) {
  bool loopback = false;
  for (const launcher::Machine::Interface& one : interfaces) {
    loopback = loopback || (one.up && one.loopback && !one.addresses.empty());
    checks->push_back(
        {Level::kOk, kNetwork, absl::StrCat("interface ", one.name),
         absl::StrCat(one.up ? "up" : "down", one.addresses.empty()
                                                  ? ", no address"
                                                  : absl::StrCat(", ", absl::StrJoin(one.addresses, " ")))});
  }
  if (!loopback) {
    checks->push_back({Level::kFail, kNetwork, "loopback", "no loopback interface is up",
                       "processes of this machine cannot reach each other: ip link set lo up"});
  }
  if (UsableAddress(interfaces).empty()) {
    checks->push_back({Level::kWarn, kNetwork, "other hosts", "no interface has an address they can use",
                       "fine for jobs on this machine alone; a container needs a network for more"});
  }
}

void CheckHostName(const launcher::Machine& machine,
                   const std::vector<launcher::Machine::Interface>& interfaces, Checks* checks) {
  const std::string host = machine.HostName();
  const std::string usable = UsableAddress(interfaces);
  const absl::StatusOr<std::vector<std::string>> found = machine.Resolve(host);
  if (!found.ok()) {
    checks->push_back({Level::kWarn, kNetwork, "host name",
                       absl::StrCat(host, " cannot be resolved: ", found.status().message()),
                       "add it to /etc/hosts, or give addresses as MASTER_ADDR and interface"});
    return;
  }
  const std::string fact = absl::StrCat(host, " is ", absl::StrJoin(*found, " "));
  if (std::all_of(found->begin(), found->end(), rpc::IsLoopbackHost)) {
    if (usable.empty()) {
      checks->push_back(
          {Level::kOk, kNetwork, "host name", absl::StrCat(fact, ", as nothing else is there")});
      return;
    }
    checks->push_back(
        {Level::kWarn, kNetwork, "host name", absl::StrCat(fact, ": a loopback address"),
         absl::StrCat(
             "a job of several hosts must not use this name as MASTER_ADDR, for each host would look "
             "for rank 0 on itself: give ",
             usable, ", or make the line in /etc/hosts (Debian's 127.0.1.1) name that address")});
    return;
  }
  for (const std::string& address : *found) {
    for (const launcher::Machine::Interface& one : interfaces) {
      if (std::find(one.addresses.begin(), one.addresses.end(), address) == one.addresses.end()) continue;
      checks->push_back({Level::kOk, kNetwork, "host name", absl::StrCat(fact, " (", one.name, ")")});
      return;
    }
  }
  checks->push_back({Level::kWarn, kNetwork, "host name", absl::StrCat(fact, ", which no interface here has"),
                     "the name service or /etc/hosts is out of date (or this is behind NAT): give an address "
                     "as MASTER_ADDR"});
}

void CheckPorts(const launcher::Machine& machine, Checks* checks) {
  const absl::Status any = machine.CanListen(0);
  checks->push_back(any.ok() ? Check{Level::kOk, kNetwork, "listening", "a free TCP port was found"}
                             : Check{Level::kFail, kNetwork, "listening", std::string(any.message()),
                                     "no rank can be reached; see the limit of open files, and seccomp or "
                                     "firewall rules of the container"});
  int low = 0, high = 0;
  const absl::StatusOr<std::string> range = machine.ReadFile("/proc/sys/net/ipv4/ip_local_port_range");
  if (range.ok()) {
    const std::vector<std::string> words = absl::StrSplit(*range, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() == 2 && absl::SimpleAtoi(words[0], &low) && absl::SimpleAtoi(words[1], &high)) {
      const bool few = high - low + 1 < 4096;
      checks->push_back(
          {few ? Level::kWarn : Level::kOk, kNetwork, "ephemeral ports", absl::StrCat(low, " to ", high),
           few ? "each pair of ranks takes some: sysctl -w net.ipv4.ip_local_port_range='32768 60999'" : ""});
    }
  }
  const std::optional<std::string> text = machine.Variable("MASTER_PORT");
  int port = 0;
  if (!text.has_value()) return;
  if (!absl::SimpleAtoi(*text, &port) || port < 1 || port > 65535) {
    checks->push_back({Level::kFail, kNetwork, "MASTER_PORT", absl::StrCat("'", *text, "' is no port"),
                       "a number from 1 to 65535"});
    return;
  }
  const absl::Status free = machine.CanListen(port);
  if (!free.ok()) {
    checks->push_back({Level::kWarn, kNetwork, "MASTER_PORT", absl::StrCat(port, ": ", free.message()),
                       "rank 0 could not serve here, unless it is its job that runs already: choose another "
                       "port, or look who has it: ss -ltnp"});
  } else {
    const bool ephemeral = low <= port && port <= high;
    checks->push_back(
        {ephemeral ? Level::kWarn : Level::kOk, kNetwork, "MASTER_PORT",
         absl::StrCat(port, " is free", ephemeral ? ", but among the ephemeral ports" : ""),
         ephemeral ? absl::StrCat("any outgoing connection may take it: one below ", low, " is safer") : ""});
  }
}

}  // namespace

Checks CheckNetwork(const launcher::Machine& machine) {
  Checks checks;
  const std::vector<launcher::Machine::Interface> interfaces = machine.Interfaces();
  CheckInterfaces(interfaces, &checks);
  CheckHostName(machine, interfaces, &checks);
  CheckPorts(machine, &checks);
  return checks;
}

}  // namespace tandem::cli
