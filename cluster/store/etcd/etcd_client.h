// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_ETCD_ETCD_CLIENT_H_
#define TANDEM_CLUSTER_STORE_ETCD_ETCD_CLIENT_H_

// A client of an etcd cluster (v3 API), which calls whichever member responds.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "google/protobuf/message_lite.h"
#include "rpc/grpc/client/generic_grpc_client.h"

namespace tandem::cluster {

struct EtcdOptions {
  std::vector<std::string> endpoints;        // "host:port" of members of one cluster, at least one
  absl::optional<rpc::TlsCredentials> tls;   // none: plain text
  std::string user, password;                // empty: etcd's authentication is off
  std::string prefix = "tandem";             // of all keys of the job
  absl::Duration lease = absl::Seconds(30);  // etcd removes the job's keys when no process lived for so long
  // Bounds a call without a time-out of its own.
  absl::Duration call_timeout = absl::Seconds(30);
  absl::Duration open_timeout = absl::Seconds(30);  // of the first call: etcd may be starting as well
  // Set by tools that inspect a job from outside: the client neither creates nor keeps the job's lease, and
  // must not change anything.
  bool read_only = false;
};

// Parses
// "etcd://[user@]host:port[,host:port...]/prefix[?ca=FILE&cert=FILE&key=FILE&name=NAME&lease=SECONDS]". Any
// of ca, cert and key turns TLS on, as `etcds://` does with the system's authorities. The password is read
// from TANDEM_ETCD_PASSWORD, because `ps` would show a URL. InvalidArgument says what is wrong; NotFound
// names a file that cannot be read.
absl::StatusOr<EtcdOptions> ParseEtcdUrl(absl::string_view url);

// Thread-safe.
class EtcdClient {
 public:
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Connect(EtcdOptions options);

  // Makes a call. Tries one member after the other, each for a fraction of `timeout`, while the error is one
  // that another attempt may resolve. So the call may arrive more than once: then *repeated becomes true, and
  // a copy may arrive even after the response, from a member that was stopped meanwhile. Errors: Unavailable
  // naming the endpoints; otherwise etcd's.
  absl::Status Call(absl::string_view method, const google::protobuf::MessageLite& request,
                    google::protobuf::MessageLite* response, absl::Duration timeout,
                    bool* repeated = nullptr);

  // Watches the keys in [key, range_end), through the member that responded last.
  absl::StatusOr<std::unique_ptr<rpc::ResponseStream>> Watch(const std::string& key,
                                                             const std::string& range_end,
                                                             std::function<void(std::string)> on_response,
                                                             std::function<void(absl::Status)> on_end);
  // Ends calls that are under way, after at most one attempt of theirs, and all later ones: they get
  // Cancelled.
  void Stop();
  // Makes the next call start with another member than `member`.
  void AvoidMember(size_t member);

  const EtcdOptions& options() const { return options_; }
  const std::string& address() const { return address_; }  // "etcd://host:port,host:port/prefix"

 private:
  explicit EtcdClient(EtcdOptions options);
  absl::StatusOr<rpc::Headers> Authenticated(size_t member, bool renew);

  const EtcdOptions options_;
  std::string address_;
  std::vector<std::unique_ptr<rpc::GenericGrpcClient>> members_;

  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  size_t current_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string token_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_ETCD_ETCD_CLIENT_H_
