// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/job_flags.h"

#include "CLI/CLI.hpp"
#include "base/local_path.h"
#include "rpc/security/security_flags.h"

namespace tandem::cli {

void AddServersFlags(CLI::App* command, JobFlags* flags) {
  command->add_option("--servers", flags->servers, "The parameter servers: HOST:PORT,HOST:PORT,... by index");
  AddJobFlags(command, flags);
}

void AddJobFlags(CLI::App* command, JobFlags* flags) {
  command->add_option("--store", flags->store,
                      "HOST:PORT of the job's store [TANDEM_STORE, MASTER_ADDR:MASTER_PORT], or "
                      "etcd://HOST:PORT/PREFIX/ID where its launchers meet");
  command->add_option("--rdzv-id", flags->run_id, "Of the job, where several meet there");
  LocalPath(command->add_option(
      "--job", flags->job, "The log directory of a `tandem run`, or its parent [the newest under runs/]"));
  rpc::AddSecurityFlags(command);
  command->add_option("--timeout", flags->timeout_seconds, "Seconds to wait for an answer")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
}

}  // namespace tandem::cli
