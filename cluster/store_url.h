// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_URL_H_
#define TANDEM_CLUSTER_STORE_URL_H_

// Opens stores by URL, in the syntax of torch.distributed's init_method.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/environment.h"
#include "cluster/store/file_store.h"
#include "cluster/store/store.h"

namespace tandem::cluster {

// A store together with the resource behind it: the connection and, at rank 0, the server; the file; or the
// etcd client. store() is thread-safe. The destructor ends it as JobStore and FileStore do: rank 0 continues
// to serve until all ranks have gone, at most 5 s; the last rank removes the file.
class OpenedStore {
 public:
  Store* store() const { return job_ != nullptr ? job_->store() : own_.get(); }
  // The rank and world size that were requested or, if they were -1, those of the URL or the environment.
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  // The connection and server of tcp:// and env://; nullptr for file:// and etcd://.
  JobStore* job() const { return job_.get(); }

 private:
  friend absl::StatusOr<std::unique_ptr<OpenedStore>> OpenStoreUrl(absl::string_view, int, int,
                                                                   absl::Duration);
  std::unique_ptr<JobStore> job_;
  std::unique_ptr<Store> own_;
  int rank_ = 0, world_size_ = 1;
};

// Opens the store of a job of `world_size` ranks as rank `rank`:
//
//   tcp://host:port   rank 0 serves it on that port, the others wait for it; port 0 is for a world of one
//   file:///path      a file that all ranks can reach (FileStore); leftovers of a killed job are discarded
//   etcd://host:port[,host:port...]/prefix
//                     an etcd cluster (EtcdStore), over TLS with ?ca=FILE&cert=FILE&key=FILE
//   env://            RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as `tandem run` and torchrun set them
//
// If rank or world size is -1, it is taken from the URL ("tcp://host:port?rank=0&world_size=4") or, for
// env://, from the environment. Blocks until the store responds, at most `timeout`. Later calls that have no
// time-out of their own are bounded by `timeout` or 30 s, whichever is less.
//
// Errors name the URL:
//
//   - InvalidArgument if it is malformed, rank or world size is missing or out of range, or port 0 is given
//     in a world of several
//   - at rank 0: Unavailable if the port is in use
//   - elsewhere: Unavailable if the store is not served, saying what to check
//   - the errors of FileStore and EtcdStore
absl::StatusOr<std::unique_ptr<OpenedStore>> OpenStoreUrl(absl::string_view url, int rank, int world_size,
                                                          absl::Duration timeout);

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_URL_H_
