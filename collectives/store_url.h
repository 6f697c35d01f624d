#ifndef TANDEM_COLLECTIVES_STORE_URL_H_
#define TANDEM_COLLECTIVES_STORE_URL_H_

// Stores by address, as torch.distributed's init_method names them.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/environment.h"
#include "collectives/store/file_store.h"
#include "collectives/store/store.h"

namespace tandem::collectives {

// A store and what it lives on: the connection and, at rank 0, the server; the file, or the way to etcd.
// store() is thread-safe. Its end is JobStore's or FileStore's: rank 0 serves on until all ranks have gone,
// at most 5 s; the last rank removes the file.
class OpenedStore {
 public:
  Store* store() const { return job_ != nullptr ? job_->store() : own_.get(); }
  // What was asked for, or, where that was -1, what the URL or the environment says.
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
//   tcp://host:port   rank 0 serves it on that port, the others wait for it; port 0 for a world of one
//   file:///path      a file that all ranks can reach (FileStore); what a killed job left in it is discarded
//   etcd://host:port[,host:port...]/prefix   an etcd cluster, over TLS with ?ca=FILE&cert=FILE&key=FILE
//   (EtcdStore) env://            RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as `tandem run` and torchrun
//   set them
//
// -1 for rank or world_size takes them from the URL ("tcp://host:port?rank=0&world_size=4") or, for env://,
// from the environment. Blocks until the store answers, at most `timeout`, which later calls without a
// time-out of their own are bounded by, too (or 30 s, if that is less).
//
// Errors name the URL: InvalidArgument (malformed, rank or world size missing or out of range, port 0 in a
// world of several); at rank 0 Unavailable if the port is in use; elsewhere Unavailable if nobody serves the
// store, saying what to check; FileStore's.
absl::StatusOr<std::unique_ptr<OpenedStore>> OpenStoreUrl(absl::string_view url, int rank, int world_size,
                                                          absl::Duration timeout);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_STORE_URL_H_
