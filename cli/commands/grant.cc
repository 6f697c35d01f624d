// SPDX-License-Identifier: Apache-2.0
// tandem grant: gives a process outside of a job a part of the job's rights, and takes it back.

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/command_context.h"
#include "base/local_path.h"
#include "base/read_file.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_flags.h"
#include "cli/monitor/find_job.h"
#include "cluster/join.h"
#include "cluster/store/remote_store.h"
#include "cluster/store/revoked_grants.h"
#include "rpc/channel.h"
#include "rpc/security/grant.h"
#include "rpc/security/security_flags.h"
#include "rpc/security/transport_security.h"

namespace tandem::cli {
namespace {

struct GrantFlags {
  rpc::GrantClaims claims;
  std::string expires = "30d";
  std::string job;  // a log directory
};

std::string Facts(const rpc::GrantClaims& claims) {
  std::string text =
      absl::StrCat(claims.ToString(), "\nexpires ",
                   absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", claims.expires, absl::UTCTimeZone()), "\n");
  if (claims.calls_per_second > 0) absl::StrAppend(&text, claims.calls_per_second, " calls a second\n");
  if (claims.bytes_per_second > 0) absl::StrAppend(&text, claims.bytes_per_second, " bytes a second\n");
  return text;
}

absl::Status PrintGrant(const GrantFlags& flags) {
  if (::isatty(STDOUT_FILENO) != 0) {
    return Refusal("the grant is a secret, and standard output is a terminal: > FILE");
  }
  rpc::GrantClaims claims = flags.claims;
  TANDEM_ASSIGN_OR_RETURN(const absl::Duration validity, rpc::ParseGrantDuration(flags.expires));
  claims.expires = absl::Now() + validity;
  if (!flags.job.empty()) {
    TANDEM_RETURN_IF_ERROR(FindJob({.job = flags.job}).status());
  }
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const rpc::JobKey> key, rpc::ProcessKey());
  TANDEM_ASSIGN_OR_RETURN(const rpc::Grant grant, rpc::Grant::Make(*key, std::move(claims)));
  // A shell has made the file, and others may read it.
  struct stat facts = {};
  if (::fstat(STDOUT_FILENO, &facts) == 0 && S_ISREG(facts.st_mode) && ::fchmod(STDOUT_FILENO, 0600) != 0) {
    return absl::ErrnoToStatus(errno, "cannot keep the file from others");
  }
  if (std::printf("%s\n", grant.ToText().c_str()) < 0 || std::fflush(stdout) != 0) {
    return absl::ErrnoToStatus(errno, "cannot write the grant");
  }
  std::fprintf(stderr, "%sfor servers with key %s of %s. Its holder sets TANDEM_KEY_FILE to the file.\n",
               Facts(grant.claims()).c_str(), grant.key_id().c_str(), key->source().c_str());
  return absl::OkStatus();
}

absl::StatusOr<rpc::Grant> ReadGrant(const std::string& file) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
  return rpc::Grant::FromText(text, file);
}

absl::Status ShowGrant(const std::string& file) {
  TANDEM_ASSIGN_OR_RETURN(const rpc::Grant grant, ReadGrant(file));
  std::printf("%sof key %s\n", Facts(grant.claims()).c_str(), grant.key_id().c_str());
  return absl::OkStatus();
}

absl::Status Revoke(std::string id, const JobFlags& flags) {
  if (::access(id.c_str(), R_OK) == 0) {
    TANDEM_ASSIGN_OR_RETURN(const rpc::Grant grant, ReadGrant(id));
    id = grant.claims().id;
  }
  if (id.size() != 16 || id.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return Refusal(
        absl::StrCat("'", id, "' is no file, and no id of a grant, which has 16 hexadecimal digits"));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string address, FindStore(flags));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel, cluster::ConnectStore(address));
  cluster::RemoteStore store(std::move(channel), absl::Seconds(flags.timeout_seconds));
  if (const absl::Status revoked = cluster::RevokeGrant(&store, id); !revoked.ok()) {
    return StoreError(revoked, address);
  }
  std::printf("grant %s is revoked, at all servers of the job within %d s\n", id.c_str(),
              static_cast<int>(absl::ToInt64Seconds(2 * rpc::GrantChecker::kFetchEvery)));
  return absl::OkStatus();
}

}  // namespace

void AddGrant(CLI::App& app, CommandContext* context) {
  auto flags = std::make_shared<GrantFlags>();
  CLI::App* grant = app.add_subcommand("grant", "Give a process outside of a job a part of the job's rights");
  grant->footer(
      "  tandem grant --role reader --tables 'user*' --expires 30d > serving.grant\n"
      "  TANDEM_KEY_FILE=serving.grant python serve.py\n\n"
      "Roles: reader (observe, read), trainer (and train), actor (read, act), learner (train, act),\n"
      "operator (observe, administer). Servers need nothing but the job's key to check a grant.");
  grant->require_subcommand(0, 1);
  rpc::AddSecurityFlags(grant);
  grant->add_option("--role", flags->claims.role, absl::StrJoin(rpc::GrantRoles(), ", "));
  grant->add_option("--tables", flags->claims.tables, "Patterns of tables and models, such as 'user*' [all]")
      ->delimiter(',');
  grant->add_option("--expires", flags->expires, "How long it is good: 90s, 12h, 30d");
  grant->add_option("--name", flags->claims.name, "Whom it is for, shown in messages and the audit log");
  grant->add_option("--calls-per-second", flags->claims.calls_per_second, "Calls at one server [no limit]");
  grant->add_option("--bytes-per-second", flags->claims.bytes_per_second,
                    "Bytes of requests and responses at one server [no limit]");
  LocalPath(
      grant->add_option("--job", flags->job,
                        "The log directory of a `tandem run`, whose servers have a key of their own [this "
                        "process's key, as of servers that were started by hand]"));
  CLI::App* show = grant->add_subcommand("show", "Print what a grant allows");
  auto file = std::make_shared<std::string>();
  LocalPath(show->add_option("FILE", *file, "The grant")->required());
  show->callback([file, context] { context->exit_code = Report("grant show", ShowGrant(*file)); });
  CLI::App* revoke = grant->add_subcommand("revoke", "Take a grant back, as long as the job's store lives");
  auto id = std::make_shared<std::string>();
  auto job = std::make_shared<JobFlags>();
  revoke->add_option("GRANT", *id, "Its file, or its id")->required();
  AddJobFlags(revoke, job.get());
  revoke->callback([id, job, context] { context->exit_code = Report("grant revoke", Revoke(*id, *job)); });
  grant->callback([grant, flags, context] {
    if (!grant->get_subcommands().empty()) return;
    context->exit_code =
        Report("grant", flags->claims.role.empty() ? Refusal("--role says what the grant is for; see --help")
                                                   : PrintGrant(*flags));
  });
}

}  // namespace tandem::cli
