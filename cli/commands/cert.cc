// SPDX-License-Identifier: Apache-2.0
// tandem cert: certificates in files, for clusters that have no PKI and whose keys shall outlive a job.

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/checksummed_file.h"
#include "base/command_context.h"
#include "base/crypto/pki.h"
#include "base/local_path.h"
#include "base/read_file.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "rpc/security/grant.h"

namespace tandem::cli {
namespace {

struct CertFlags {
  std::string out;   // a directory
  std::string ca;    // a directory of `tandem cert ca`
  std::string name;  // of the authority, or of the process
  std::string validity;
};

std::string In(const std::string& directory, const char* file) { return absl::StrCat(directory, "/", file); }

absl::Status WriteCertificates(const std::string& directory, const crypto::Certificates& made) {
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", directory));
  }
  // The key first: who watches the files finds a pair that does not match, and waits for the certificate.
  const ::mode_t others = ::umask(0077);
  const absl::Status written = WriteFileAtomically(In(directory, "tls.key"), made.private_key);
  ::umask(others);
  TANDEM_RETURN_IF_ERROR(written);
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(In(directory, "ca.crt"), made.authority));
  return WriteFileAtomically(In(directory, "tls.crt"), made.certificate);
}

absl::Status MakeCa(const CertFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const absl::Duration validity, rpc::ParseGrantDuration(flags.validity));
  if (::access(In(flags.out, "tls.key").c_str(), F_OK) == 0) {
    return absl::AlreadyExistsError(absl::StrCat(
        flags.out,
        " has an authority already; processes with its certificates would not accept another one's"));
  }
  TANDEM_ASSIGN_OR_RETURN(const crypto::Certificates made,
                          crypto::MakeCertificateAuthority(flags.name, absl::Now() + validity));
  TANDEM_RETURN_IF_ERROR(WriteCertificates(flags.out, made));
  std::printf("%s/ca.crt is what all processes get, %s/tls.key stays here\n", flags.out.c_str(),
              flags.out.c_str());
  return absl::OkStatus();
}

absl::Status IssueCert(const CertFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const absl::Duration validity, rpc::ParseGrantDuration(flags.validity));
  crypto::Certificates authority;
  TANDEM_ASSIGN_OR_RETURN(authority.authority, ReadFile(In(flags.ca, "ca.crt")));
  TANDEM_ASSIGN_OR_RETURN(authority.private_key, ReadFile(In(flags.ca, "tls.key")));
  const absl::StatusOr<crypto::Certificates> made =
      crypto::IssueCertificate(authority, flags.name, absl::Now() + validity);
  TANDEM_RETURN_IF_ERROR(Annotate(made.status(), flags.ca));
  TANDEM_RETURN_IF_ERROR(Annotate(crypto::CheckCertificates(*made, absl::Now()).status(), flags.ca));
  TANDEM_RETURN_IF_ERROR(WriteCertificates(flags.out, *made));
  std::printf("--tls-cert %s/tls.crt --tls-key %s/tls.key --tls-ca %s/ca.crt\n", flags.out.c_str(),
              flags.out.c_str(), flags.out.c_str());
  return absl::OkStatus();
}

absl::Status ShowCert(const std::string& file) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
  const auto facts = crypto::ReadCertificates(text);
  TANDEM_RETURN_IF_ERROR(Annotate(facts.status(), file));
  for (const crypto::CertificateFacts& one : *facts) {
    std::string kind = one.authority ? "an authority" : "";
    if (!one.authority) {
      kind = one.for_servers && one.for_clients ? "for servers and clients"
             : one.for_clients                  ? "for clients only"
             : one.for_servers                  ? "for servers only"
                                                : "for neither servers nor clients";
    }
    std::printf("%s, signed by %s\n  %s%s\n  from %s until %s\n", one.subject.c_str(), one.issuer.c_str(),
                kind.c_str(),
                one.names.empty() ? "" : absl::StrCat(", of ", absl::StrJoin(one.names, ", ")).c_str(),
                absl::FormatTime("%Y-%m-%d %H:%M", one.from, absl::UTCTimeZone()).c_str(),
                absl::FormatTime("%Y-%m-%d %H:%M UTC", one.until, absl::UTCTimeZone()).c_str());
  }
  return absl::OkStatus();
}

}  // namespace

void AddCert(CLI::App& app, CommandContext* context) {
  CLI::App* cert = app.add_subcommand("cert", "Make and show certificates in files");
  cert->footer(
      "Tandem needs none of these: processes with one key make their certificates themselves. Files are for\n"
      "clusters with a PKI, or whose certificates shall be renewed while jobs run:\n\n"
      "  tandem cert ca --out ca\n"
      "  tandem cert issue --ca ca --name node7 --expires 30d --out node7    # again before it expires\n"
      "  tandem ps --tls-cert node7/tls.crt --tls-key node7/tls.key --tls-ca node7/ca.crt ...");
  cert->require_subcommand(1);
  auto ca_flags = std::make_shared<CertFlags>(CertFlags{.name = "Tandem cluster", .validity = "3650d"});
  CLI::App* ca = cert->add_subcommand("ca", "Make an authority: a directory with ca.crt and tls.key");
  LocalPath(ca->add_option("--out", ca_flags->out, "The directory")->required());
  ca->add_option("--name", ca_flags->name, "Its name");
  ca->add_option("--expires", ca_flags->validity, "How long it is good");
  ca->callback([ca_flags, context] { context->exit_code = Report("cert ca", MakeCa(*ca_flags)); });
  auto flags = std::make_shared<CertFlags>(CertFlags{.validity = "30d"});
  CLI::App* issue =
      cert->add_subcommand("issue", "Make a process's certificate: tls.crt, tls.key and ca.crt");
  LocalPath(issue->add_option("--ca", flags->ca, "The authority's directory")->required());
  issue->add_option("--name", flags->name, "Whose it is, for people")->required();
  LocalPath(issue->add_option("--out", flags->out, "The directory; files in it are replaced")->required());
  issue->add_option("--expires", flags->validity, "How long it is good: 12h, 30d");
  issue->callback([flags, context] { context->exit_code = Report("cert issue", IssueCert(*flags)); });
  CLI::App* show = cert->add_subcommand("show", "Print what the certificates in a file say");
  auto file = std::make_shared<std::string>();
  LocalPath(show->add_option("FILE", *file, "Certificates, as PEM")->required());
  show->callback([file, context] { context->exit_code = Report("cert show", ShowCert(*file)); });
}

}  // namespace tandem::cli
