// SPDX-License-Identifier: Apache-2.0
// tandem health: asks one server whether it serves, for probes of Kubernetes, compose and systemd.

#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/command_context.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "rpc/address.h"
#include "rpc/channel.h"
#include "rpc/health.h"

namespace tandem::cli {
namespace {

struct HealthFlags {
  std::string address;
  std::string service;
  double timeout_seconds = 1;
};

absl::Status Check(const HealthFlags& flags) {
  if (const absl::Status address = rpc::ParseAddress(flags.address).status(); !address.ok()) {
    return Refusal(std::string(address.message()));
  }
  // The health service is no part of a stream.
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::Channel> channel,
                          rpc::ConnectGrpc(flags.address, {.stream = false}));
  TANDEM_ASSIGN_OR_RETURN(const bool serving,
                          rpc::CheckHealth(*channel, flags.service, absl::Seconds(flags.timeout_seconds)));
  const std::string what =
      flags.service.empty() ? flags.address : absl::StrCat(flags.service, " at ", flags.address);
  if (!serving) {
    return absl::UnavailableError(
        absl::StrCat(what, " does not serve now: it is starting, or about to end (NOT_SERVING)"));
  }
  std::printf("%s serves\n", what.c_str());
  return absl::OkStatus();
}

}  // namespace

void AddHealth(CLI::App& app, CommandContext* context) {
  auto flags = std::make_shared<HealthFlags>();
  CLI::App* health = app.add_subcommand("health", "Ask a server whether it serves, for probes");
  health->footer(
      "Ends with 0 if the server says SERVING, and with 1 if it says anything else or does not respond in\n"
      "time. Any process of a job has such an address (`tandem status --json`: address, diagnostics), and "
      "so\n"
      "have other gRPC servers with grpc.health.v1.Health. It needs no key.");
  health->add_option("address", flags->address, "host:port or unix:/path of the server")->required();
  health->add_option("--service", flags->service,
                     "One service of the server, such as tandem.v1.ParameterServer [the server as a whole]");
  health->add_option("--timeout", flags->timeout_seconds, "Seconds to wait for the response")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str();
  health->callback([flags, context] { context->exit_code = Report("health", Check(*flags)); });
}

}  // namespace tandem::cli
