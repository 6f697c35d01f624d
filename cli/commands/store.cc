// SPDX-License-Identifier: Apache-2.0
// tandem store: serves a key-value store in a process of its own, as the rendezvous of launchers and
// processes.

#include <poll.h>
#include <signal.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/time/time.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "collectives/store/store_server.h"
#include "launcher/process/signal_pipe.h"
#include "rpc/address.h"

namespace tandem::cli {
namespace {

absl::Status Serve(const std::string& listen) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<launcher::SignalPipe> signals,
                          launcher::SignalPipe::Install({SIGTERM, SIGINT}));
  TANDEM_ASSIGN_OR_RETURN(const rpc::Address address, rpc::ParseAddress(listen));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<collectives::StoreServer> store,
                          collectives::StoreServer::Start(listen));
  std::printf("%s:%d\n", address.host.c_str(), store->port());
  std::fflush(stdout);
  pollfd stop = {signals->fd(), POLLIN, 0};
  while (::poll(&stop, 1, -1) < 0 && errno == EINTR) {
  }
  store->Shutdown(absl::Seconds(1));
  return absl::OkStatus();
}

}  // namespace

void AddStore(CLI::App& app, CommandContext* context) {
  auto listen = std::make_shared<std::string>("127.0.0.1:0");
  CLI::App* store =
      app.add_subcommand("store", "Serve a key-value store at which the launchers of a job can meet");
  store->footer(
      "Prints its address, and serves until SIGTERM or SIGINT. Any node may die while it lives:\n"
      "tandem run --nnodes 2:4 --rdzv-backend c10d --rdzv-conf is_host=false --rdzv-endpoint HOST:PORT -- "
      "PROGRAM");
  store->add_option("--listen", *listen, "host:port to bind; port 0: the kernel picks")
      ->capture_default_str();
  store->callback([listen, context] { context->exit_code = Report("store", Serve(*listen)); });
}

}  // namespace tandem::cli
