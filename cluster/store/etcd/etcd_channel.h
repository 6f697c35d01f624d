// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_ETCD_ETCD_CHANNEL_H_
#define TANDEM_CLUSTER_STORE_ETCD_ETCD_CHANNEL_H_

// A job's store in etcd behind the interface of a connection: the service tandem.v1.Store without a server.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/membership/membership.h"
#include "cluster/store/store.h"
#include "rpc/caller.h"
#include "rpc/channel.h"

namespace tandem::cluster {

// Returns whether `address` is the URL of a store in etcd: "etcd://..." or "etcds://...".
bool IsEtcdAddress(absl::string_view address);

// Returns a channel whose calls of tandem.v1.Store are answered from the store at `url` (ParseEtcdUrl) by
// threads of this process. Returns at once and reaches etcd with the first call. Thread-safe, as channels
// are. Under the URL's prefix are
//
//   job/      the keys of the job (EtcdStore)
//   members/  its members (StoreMembership)
//
// Both stay until no process of the job has reached etcd for a day, or for the `lease=` of the URL.
//
// etcd itself decides which processes may use its keys. The channel stops mistakes:
//
//   - PermissionDenied if the first process of the job had another key than `caller` (Caller::key_id)
//   - PermissionDenied for keys that belong to others (key_owners.h)
//   - FailedPrecondition for changes in a member's name before the process has joined
//   - AlreadyExists, in the same transaction as the change, if another process has its name since it joined
//
// A `caller` that has no member name, and calls only methods that read, changes nothing in etcd if
// `read_only` is true; NotFound then if no job has been there. InvalidArgument and NotFound as for
// ParseEtcdUrl.
absl::StatusOr<std::unique_ptr<rpc::Channel>> ConnectEtcd(const std::string& url, rpc::Caller caller,
                                                          bool read_only);

// Returns the members of a job whose store is in etcd, for a launcher: `name` takes part in the search for
// silent members (StoreMembership). Blocks until etcd has answered, at most 10 s.
absl::StatusOr<std::unique_ptr<Membership>> OpenEtcdMembership(const std::string& url,
                                                               const std::string& name);

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_ETCD_ETCD_CHANNEL_H_
