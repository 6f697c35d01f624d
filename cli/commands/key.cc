// SPDX-License-Identifier: Apache-2.0
// tandem key: makes and shows the key that the processes of a job share.

#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/command_context.h"
#include "base/local_path.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/monitor/metrics_options.h"
#include "rpc/security/job_key.h"

namespace tandem::cli {
namespace {

void Print(const rpc::JobKey& key) { std::printf("key %s in %s\n", key.Id().c_str(), key.source().c_str()); }

absl::Status Show(const std::string& file) {
  const absl::StatusOr<rpc::JobKey> key = file.empty() ? rpc::JobKey::Load() : rpc::JobKey::FromFile(file);
  if (key.ok()) Print(*key);
  return key.status();
}

// Makes a file with a new key, or with that of the job `run_id` if it is given.
absl::Status Make(std::string file, const std::string& run_id) {
  if (file.empty() && !run_id.empty()) return Refusal("--job needs --key-file, the file to make");
  if (file.empty()) {
    TANDEM_ASSIGN_OR_RETURN(file, rpc::JobKey::DefaultFile());
  }
  rpc::JobKey key = rpc::JobKey::Make();
  if (!run_id.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const rpc::JobKey own, rpc::JobKey::Load());
    key = own.ForJob(run_id);
  }
  const absl::Status made = key.CreateFile(file);
  if (absl::IsAlreadyExists(made)) {
    return absl::AlreadyExistsError(
        absl::StrCat(file,
                     " is there already. Processes that share it would no longer reach each other with "
                     "another key; to make one nevertheless, remove the file first"));
  }
  TANDEM_RETURN_IF_ERROR(made);
  return Show(file);
}

absl::Status ShowMetrics(const std::string& file) {
  const absl::StatusOr<rpc::JobKey> key = file.empty() ? rpc::JobKey::Load() : rpc::JobKey::FromFile(file);
  if (key.ok()) std::printf("%s\n", MetricsCredentials(*key).c_str());
  return key.status();
}

}  // namespace

void AddKey(CLI::App& app, CommandContext* context) {
  auto file = std::make_shared<std::string>();
  CLI::App* key = app.add_subcommand("key", "Make or show the key that the processes of a job share");
  key->footer(
      "A process has its key from the file TANDEM_KEY_FILE, else from the variable TANDEM_KEY, which has "
      "the\n"
      "text of such a file, else from ~/.tandem/key, which is made when it is first needed. Processes reach\n"
      "each other only with the same key. The file is the secret; its id, which `show` prints, is not.");
  key->require_subcommand(1);
  const auto file_flag = [file](CLI::App* command, const char* text) {
    LocalPath(command->add_option("--key-file", *file, text));
  };
  CLI::App* make = key->add_subcommand("make", "Make a file with a new key, which only this user can read");
  file_flag(make, "The file [~/.tandem/key]");
  auto run_id = std::make_shared<std::string>();
  make->add_option(
      "--job", *run_id,
      "The key of the job that `tandem run --rdzv-id` names so, for a server beside it [a random "
      "key]");
  make->callback([file, run_id, context] { context->exit_code = Report("key make", Make(*file, *run_id)); });
  CLI::App* show = key->add_subcommand("show", "Print the id of this process's key and where it is");
  file_flag(show, "The file [as every command finds its key]");
  show->callback([file, context] { context->exit_code = Report("key show", Show(*file)); });
  CLI::App* metrics = key->add_subcommand(
      "metrics", "Print user:password with which Prometheus reads the metrics of processes with this key");
  file_flag(metrics, "The file [as every command finds its key]");
  metrics->callback([file, context] { context->exit_code = Report("key metrics", ShowMetrics(*file)); });
}

}  // namespace tandem::cli
