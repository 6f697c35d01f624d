// SPDX-License-Identifier: Apache-2.0
// tandem store: serves a key-value store in a process of its own, as the rendezvous of launchers and
// processes.

#include <signal.h>

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/process/signal_pipe.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/commands/serve.h"
#include "cluster/store/limits.h"
#include "cluster/store/store_server.h"
#include "rpc/security/security_flags.h"

namespace tandem::cli {
namespace {

struct StoreFlags {
  std::string listen = "127.0.0.1:0";
  cluster::StoreLimits limits;
  size_t max_connections = 0;  // as rpc::ServerOptions::max_connections
  std::string data;            // the directory; empty: in memory only
};

absl::Status Serve(const StoreFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<SignalPipe> signals, SignalPipe::Install({SIGTERM, SIGINT}));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<cluster::StoreServer> store,
                          cluster::StoreServer::Start(
                              flags.listen, Clock::Real(), nullptr,
                              {.limits = flags.limits,
                               .max_connections = flags.max_connections,
                               .disk = {.directory = flags.data, .on_failure = [] { ::raise(SIGTERM); }}}));
  if (store->disk() != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(const int64_t keys, store->store()->NumKeys());
    LogInfo(absl::StrCat("the store in ", flags.data, " has ", keys, " keys; its log has ",
                         store->disk()->log_bytes(), " bytes"));
  }
  TANDEM_RETURN_IF_ERROR(ServeUntilSignal(flags.listen, store->port(), *signals));
  store->Shutdown(absl::Seconds(1));
  return store->disk() == nullptr ? absl::OkStatus() : store->disk()->failure();
}

}  // namespace

void AddStore(CLI::App& app, CommandContext* context) {
  auto flags = std::make_shared<StoreFlags>();
  CLI::App* store =
      app.add_subcommand("store", "Serve a key-value store at which the launchers of a job can meet");
  store->footer(
      "Prints its address, and serves until SIGTERM or SIGINT. Any node may die while it lives:\n"
      "tandem run --nnodes 2:4 --rdzv-backend c10d --rdzv-conf is_host=false --rdzv-endpoint HOST:PORT -- "
      "PROGRAM");
  rpc::AddSecurityFlags(store);
  store->add_option("--listen", flags->listen, "host:port to bind; port 0: the kernel picks")
      ->capture_default_str();
  store->add_option(
      "--data", flags->data,
      "Directory that keeps keys, queues, the names of members and the end of the job: each change is on its "
      "disk before it is acknowledged, and a store that is started again goes on with them. Default: in "
      "memory only");
  store->add_option("--max-keys", flags->limits.keys, "Keys and queued items; more are refused")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  store
      ->add_option("--max-bytes", flags->limits.bytes,
                   "Memory of keys, values and queued items, in bytes or as 64MiB; more are refused")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(uint64_t{1} << 10, uint64_t{1} << 40))
      ->default_str("1GiB");
  store->add_option("--max-waits", flags->limits.waits, "Calls that wait at once; more are refused")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  store
      ->add_option("--max-connections", flags->max_connections,
                   "Connections at once; more are refused. In any case 3/4 of `ulimit -n`")
      ->check(CLI::Range(1, 1 << 20))
      ->default_str("4096");
  store->callback([flags, context] { context->exit_code = Report("store", Serve(*flags)); });
}

}  // namespace tandem::cli
