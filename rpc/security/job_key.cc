// SPDX-License-Identifier: Apache-2.0
#include "rpc/security/job_key.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crypto/crypto.h"
#include "base/ipc/descriptor.h"
#include "base/status.h"
#include "rpc/security/grant.h"

namespace tandem::rpc {
namespace {

constexpr absl::string_view kPrefix = "tandem_key_";
constexpr size_t kIdBytes = 5;
constexpr char kAdvice[] =
    ". Set TANDEM_KEY_FILE to a file that `tandem key make --key-file FILE` has made, or TANDEM_KEY to the "
    "text in such a file";

std::string Hkdf(absl::string_view key, absl::string_view purpose, absl::string_view name, size_t size) {
  // The length separates the two texts.
  return crypto::HkdfSha256(key, "tandem", absl::StrCat(purpose.size(), ":", purpose, ":", name), size);
}

// Returns the first bytes of a file. NotFound, PermissionDenied and FailedPrecondition as FromFile says.
absl::StatusOr<std::string> ReadOwnFile(const std::string& path) {
  // A key and a grant are shorter. Opening a pipe must not block.
  constexpr size_t kMostBytes = 16384;
  const ipc::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file.valid()) {
    const int error = errno;
    const absl::Status status = absl::ErrnoToStatus(error, absl::StrCat("cannot read the key ", path));
    return absl::Status(
        status.code(),
        absl::StrCat(status.message(),
                     error == ENOENT ? "; to make it: tandem key make --key-file " + path : kAdvice));
  }
  struct stat facts = {};
  if (::fstat(file.get(), &facts) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read the key ", path));
  }
  if (!S_ISREG(facts.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat("the key ", path, " is no regular file"));
  }
  if (facts.st_uid != ::geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat("the key ", path, " belongs to user ", facts.st_uid,
                                                    " and this process runs as user ", ::geteuid(),
                                                    "; copy the file, or: chown ", ::geteuid(), " ", path));
  }
  if ((facts.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::PermissionDeniedError(
        absl::StrFormat("other users have access to the key %s, whose mode is %04o; if none has read it: "
                        "chmod 600 %s. Otherwise make a new key",
                        path, facts.st_mode & 07777u, path));
  }
  std::string text(kMostBytes, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read the key ", path));
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  text.resize(size);
  return text;
}

absl::Status WriteAll(int file, absl::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t size = ::write(file, text.data(), text.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
    text.remove_prefix(static_cast<size_t>(size));
  }
  if (::fsync(file) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

std::optional<std::string> NotEmpty(const JobKey::Lookup& lookup, absl::string_view name) {
  std::optional<std::string> value = lookup(name);
  if (value.has_value() && value->empty()) value.reset();
  return value;
}

// Returns the text in `path`, and makes a key there if the file does not exist.
absl::StatusOr<std::string> ReadOrMake(const std::string& path) {
  absl::StatusOr<std::string> text = ReadOwnFile(path);
  if (!absl::IsNotFound(text.status())) return text;
  const absl::Status made = JobKey::Make().CreateFile(path);
  // Another process may have been faster; its key counts.
  if (made.ok() || absl::IsAlreadyExists(made)) return ReadOwnFile(path);
  return absl::FailedPreconditionError(absl::StrCat("this process has no key: ", kKeyFileVariable, " and ",
                                                    kKeyVariable, " are not set, and it ", made.message(),
                                                    kAdvice));
}

}  // namespace

JobKey JobKey::Make() { return JobKey(crypto::RandomBytes(kBytes), "a new key"); }

absl::StatusOr<JobKey::Text> JobKey::LoadText(const Lookup& lookup) {
  Text found;
  if (const std::optional<std::string> path = NotEmpty(lookup, kKeyFileVariable)) {
    found.source = *path;
    TANDEM_ASSIGN_OR_RETURN(found.text, ReadOwnFile(*path));
  } else if (const std::optional<std::string> text = NotEmpty(lookup, kKeyVariable)) {
    found = {.text = *text, .source = kKeyVariable};
  } else {
    TANDEM_ASSIGN_OR_RETURN(found.source, DefaultFile(lookup));
    TANDEM_ASSIGN_OR_RETURN(found.text, ReadOrMake(found.source));
  }
  found.text = std::string(absl::StripAsciiWhitespace(found.text));
  return found;
}

absl::StatusOr<JobKey> JobKey::Load(const Lookup& lookup) {
  TANDEM_ASSIGN_OR_RETURN(const Text found, LoadText(lookup));
  return FromText(found.text, found.source);
}

std::optional<std::string> JobKey::Variable(absl::string_view name) {
  const char* const value = std::getenv(std::string(name).c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

absl::StatusOr<JobKey> JobKey::FromFile(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadOwnFile(path));
  return FromText(text, path);
}

absl::StatusOr<JobKey> JobKey::FromText(absl::string_view text, absl::string_view source) {
  absl::string_view digits = absl::StripAsciiWhitespace(text);
  const bool hex = absl::ConsumePrefix(&digits, kPrefix) && digits.size() == 2 * kBytes &&
                   std::all_of(digits.begin(), digits.end(),
                               [](char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); });
  if (hex) return JobKey(absl::HexStringToBytes(digits), std::string(source));
  if (absl::StartsWith(absl::StripAsciiWhitespace(text), Grant::kPrefix)) {
    return absl::InvalidArgumentError(absl::StrCat(
        source, " has a grant, with which a process can call servers; this needs the job's key"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(source, " has no key: expected one line of ", kPrefix, " and ", 2 * kBytes,
                   " hexadecimal digits, as `tandem key make --key-file FILE` writes it"));
}

absl::StatusOr<std::string> JobKey::DefaultFile(const Lookup& lookup) {
  std::string home = NotEmpty(lookup, "HOME").value_or("");
  if (home.empty()) {
    std::array<char, 4096> buffer;
    struct passwd entry = {}, *found = nullptr;
    if (::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr) {
      home = found->pw_dir;
    }
  }
  if (!home.empty()) return absl::StrCat(home, "/.tandem/key");
  return absl::FailedPreconditionError(absl::StrCat("this process has no key: ", kKeyFileVariable, ", ",
                                                    kKeyVariable, " and HOME are not set, and user ",
                                                    ::geteuid(), " has no home directory", kAdvice));
}

absl::Status JobKey::CreateFile(const std::string& path) const {
  const size_t name = path.rfind('/');
  if (name != std::string::npos && name > 0) {
    const std::string directory = path.substr(0, name);
    if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", directory));
    }
  }
  std::string fresh = absl::StrCat(path, ".XXXXXX");
  const ipc::Descriptor file(::mkostemp(fresh.data(), O_CLOEXEC));  // of mode 0600
  if (!file.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", path));
  const absl::Cleanup remove = [&fresh] { ::unlink(fresh.c_str()); };
  TANDEM_RETURN_IF_ERROR(WriteAll(file.get(), absl::StrCat(ToText(), "\n"), path));
  // Unlike rename(2), link(2) replaces nothing.
  if (::link(fresh.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", path));
}

std::string JobKey::ToText() const { return absl::StrCat(kPrefix, absl::BytesToHexString(bytes_)); }

JobKey JobKey::ForJob(absl::string_view run_id) const {
  return JobKey(Hkdf(bytes_, "job", run_id, kBytes), absl::StrCat(source_, " for job ", run_id));
}

std::string JobKey::Derive(absl::string_view label, size_t size) const {
  return Hkdf(bytes_, "label", label, size);
}

std::string JobKey::Id() const { return absl::BytesToHexString(Derive("id", kIdBytes)); }

Caller JobKey::Identify(Caller caller) const {
  caller.token = Token();
  caller.key_id = Id();
  return caller;
}

}  // namespace tandem::rpc
