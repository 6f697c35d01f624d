// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SECURITY_JOB_KEY_H_
#define TANDEM_RPC_SECURITY_JOB_KEY_H_

// The secret that the processes of a job share. All other secrets are derived from it.

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rpc/caller.h"

namespace tandem::rpc {

inline constexpr char kKeyFileVariable[] = "TANDEM_KEY_FILE";
inline constexpr char kKeyVariable[] = "TANDEM_KEY";

// A key of 32 random bytes. A value; no message and no log has its bytes.
//
// A process finds its key in this order:
//
//   1. the file that the variable TANDEM_KEY_FILE names (`--key-file` sets it)
//   2. the variable TANDEM_KEY, which has the text of such a file
//   3. the file ~/.tandem/key, which the first process that needs it makes
//
// A file of a key has one line, ToText(). Only its owner may have access to it, and it must belong to the
// user of this process; this also holds for the file that a symbolic link names.
class JobKey {
 public:
  static constexpr size_t kBytes = 32;
  // Looks an environment variable up; returns nullopt if it is not set.
  using Lookup = std::function<std::optional<std::string>(absl::string_view name)>;

  // Looks a variable of this process up.
  static std::optional<std::string> Variable(absl::string_view name);

  // What Load finds: the text, and the path of its file or the variable.
  struct Text {
    std::string text;
    std::string source;
  };

  // Returns a new random key.
  static JobKey Make();
  // Returns the key of a process with the given variables. Makes ~/.tandem/key if that is what is asked for
  // and it does not exist: processes that do so at the same time get the same key. An empty variable counts
  // as not set. HOME, or else the user database, has the home directory. Blocks on the file system. Errors
  // say which file or variable is wrong and what to set: those of FromFile and FromText; FailedPrecondition
  // if ~/.tandem/key cannot be made.
  static absl::StatusOr<JobKey> Load(const Lookup& lookup = Variable);
  // Returns the text in which Load looks for a key, without blanks around it. Errors: those of Load, except
  // for FromText's.
  static absl::StatusOr<Text> LoadText(const Lookup& lookup = Variable);
  // Reads the file of a key. Errors name the file: PermissionDenied if other users may have access to it or
  // it is not this user's, with the command that helps; InvalidArgument if its content is no key; NotFound;
  // FailedPrecondition if it is no regular file.
  static absl::StatusOr<JobKey> FromFile(const std::string& path);
  // Parses ToText(), with or without blanks around it. InvalidArgument, which names `source` and does not
  // repeat the text, if it is no key.
  static absl::StatusOr<JobKey> FromText(absl::string_view text, absl::string_view source);
  // Returns the path of ~/.tandem/key. FailedPrecondition if there is no home directory.
  static absl::StatusOr<std::string> DefaultFile(const Lookup& lookup = Variable);

  // Creates the file `path` for this user only, and its directory if that is missing. Atomic: another process
  // sees no file or the whole one. AlreadyExists if there is one, which is unchanged. Other errors are the
  // system's.
  absl::Status CreateFile(const std::string& path) const;
  // Returns the text of the key: "tandem_key_" and 64 hexadecimal digits. It is the secret itself.
  std::string ToText() const;

  // Returns the key of the job `run_id`, whose processes cannot compute this key from it.
  JobKey ForJob(absl::string_view run_id) const;
  // Returns `size` bytes for one purpose, which `label` names. Bytes of different labels are independent.
  std::string Derive(absl::string_view label, size_t size) const;
  // Returns what the members of a job present in their calls (Caller::token), 32 bytes.
  std::string Token() const { return Derive("token", kBytes); }
  // Returns 10 hexadecimal digits that tell keys apart in messages. Public: the key cannot be computed from
  // them.
  std::string Id() const;
  // Returns `caller` with the token and the id of this key.
  Caller Identify(Caller caller) const;
  // Returns where the key was found: the path of a file, "TANDEM_KEY", or what it was derived from.
  const std::string& source() const { return source_; }

 private:
  JobKey(std::string bytes, std::string source) : bytes_(std::move(bytes)), source_(std::move(source)) {}
  std::string bytes_;
  std::string source_;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_SECURITY_JOB_KEY_H_
