// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SECURITY_AUDIT_LOG_H_
#define TANDEM_RPC_SECURITY_AUDIT_LOG_H_

// The record of who was refused, and who administered, for people who look for misuse later.

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/ipc/descriptor.h"
#include "rpc/caller.h"

namespace tandem::rpc {

// Names the file to which the processes of a job append (`tandem run` sets it: audit.jsonl in the log
// directory). Not set: nothing is recorded.
inline constexpr char kAuditVariable[] = "TANDEM_AUDIT_FILE";

// Appends lines of JSON to a file, which only its owner can read. Several processes may append to one file.
// Thread-safe.
//
//   {"time": "2030-01-02T03:04:05.678Z", "server": "ps/0", "verdict": "refused", "method":
//   "tandem.v1.Store/Set",
//    "caller": "worker/3", "credential": "key 0123456789", "peer": "ipv4:10.0.0.7:4711", "reason": "..."}
class AuditLog {
 public:
  struct Event {
    std::string server;
    std::string method;
    std::string credential;  // "key 0123456789", "grant 0123456789abcdef (serving), reader", "no key"
    std::string caller;      // the name that the caller gives, which nobody has proven
    std::string peer;        // its address
    absl::Status verdict;    // OK: allowed
  };
  // A stranger cannot fill the disk: of more refusals in a second than this, only the number is recorded.
  static constexpr int kRefusalsPerSecond = 10;

  // Opens or makes the file. Errors are the system's, with the path.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const std::string& path);
  // Returns that of this process, or nullptr if kAuditVariable is not set. A file that cannot be opened is
  // logged once.
  static AuditLog* OfProcess();
  // Makes `path` the file of this process unless kAuditVariable names one. Call it before the first call of
  // OfProcess, at most once.
  static void UseFile(const std::string& path);

  // A line that cannot be written is lost; the first such error is logged.
  void Record(const Event& event);

 private:
  AuditLog(std::string path, ipc::Descriptor file) : path_(std::move(path)), file_(std::move(file)) {}
  void Write(const std::string& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  absl::Mutex mutex_;
  ipc::Descriptor file_ ABSL_GUARDED_BY(mutex_);
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time second_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // monotonic: when `refusals_` began
  int refusals_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_SECURITY_AUDIT_LOG_H_
