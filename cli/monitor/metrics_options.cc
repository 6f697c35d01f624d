// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/metrics_options.h"

#include <sys/stat.h>

#include <memory>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "base/status.h"
#include "launcher/plan/variable_options.h"
#include "rpc/network.h"
#include "rpc/security/job_key.h"

namespace tandem::cli {
namespace {

absl::StatusOr<std::string> ReadCredentials(const std::string& path) {
  struct stat about = {};
  if (::stat(path.c_str(), &about) == 0 && (about.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("other users may use the password file ", path, ": chmod 600 ", path));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, /*max_bytes=*/4096));
  std::string line = text.substr(0, text.find('\n'));
  if (absl::EndsWith(line, "\r")) line.pop_back();
  const size_t colon = line.find(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == line.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the first line of the password file ", path, " is not user:password"));
  }
  return line;
}

}  // namespace

void AddMetricsFlags(CLI::App* command, MetricsOptions* options) {
  const auto variables = std::make_shared<launcher::VariableOptions>();
  command
      ->add_option("--metrics-port", options->port,
                   "Serve /metrics for Prometheus at this port; 0: the kernel picks [not served]")
      ->check(CLI::Range(0, 65535));
  variables->Add(
      command
          ->add_option("--metrics-listen", options->host,
                       "Address of the metrics. One that other machines reach asks for a password: "
                       "that of --metrics-password-file, or of `tandem key metrics`")
          ->capture_default_str(),
      "TANDEM_METRICS_LISTEN");
  variables->Add(
      command->add_option("--metrics-password-file", options->password_file,
                          "File whose first line, user:password, each request for metrics must present"),
      "TANDEM_METRICS_PASSWORD_FILE");
  variables->Add(
      command->add_flag("--metrics-open", options->open,
                        "Serve the metrics to everyone who reaches --metrics-listen, without a password "
                        "[off]"),
      "TANDEM_METRICS_OPEN");
  variables->Add(
      command
          ->add_option("--metrics-names", options->names,
                       "Further names by which clients call the metrics' address, such as that of a "
                       "service; separated by commas [none]")
          ->delimiter(','),
      "TANDEM_METRICS_NAMES");
  command->parse_complete_callback([variables] { (void)variables->Read(); });
}

absl::StatusOr<std::optional<cluster::HttpAccess>> ReadMetricsAccess(const MetricsOptions& options) {
  if (options.port < 0) return std::nullopt;
  cluster::HttpAccess access{.host = options.host, .port = options.port, .names = options.names};
  if (!options.password_file.empty()) {
    TANDEM_ASSIGN_OR_RETURN(access.credentials, ReadCredentials(options.password_file));
  } else if (!options.open && !rpc::IsLoopbackHost(options.host)) {
    TANDEM_ASSIGN_OR_RETURN(const rpc::JobKey key, rpc::JobKey::Load());
    access.credentials = MetricsCredentials(key);
  }
  return access;
}

std::string MetricsCredentials(const rpc::JobKey& key) {
  constexpr size_t kPasswordBytes = 16;
  return absl::StrCat("tandem:", absl::BytesToHexString(key.Derive("metrics", kPasswordBytes)));
}

}  // namespace tandem::cli
