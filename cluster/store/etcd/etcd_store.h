// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_ETCD_ETCD_STORE_H_
#define TANDEM_CLUSTER_STORE_ETCD_ETCD_STORE_H_

// A store in an etcd cluster. It survives the death of any process of the job and of a minority of etcd's
// members. Its etcd keys, under the job's prefix:
//
//   k/<key>              a key
//   q/<length>:<queue>/  items of a queue, each under a name of its own, in the order of their creation
//   o/<client>/<n>       created together with a change, so that a client which repeats the change after
//                        a lost response detects that it was made
//   lease                the number of the lease to which all of them are attached, except keys of Beat
//
// The lease belongs to the job. Every process of the job keeps it alive. When none has for
// EtcdOptions::lease, etcd removes everything.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "cluster/store/etcd/etcd_client.h"
#include "cluster/store/etcd/watcher.h"
#include "cluster/store/store.h"

namespace etcdserverpb {
class RequestOp;
class TxnResponse;
}  // namespace etcdserverpb

namespace tandem::cluster {

// Thread-safe. Owns one thread, which keeps the lease alive. Changes are applied once, even if a response was
// lost. Waiting calls may take EtcdOptions::call_timeout longer than their time-out to detect that etcd is
// silent.
//
// Errors in addition to those of Store:
//
//   - Unavailable naming the endpoints
//   - FailedPrecondition if the lease has run out because no process could reach etcd for so long; the job's
//     keys are gone
//   - InvalidArgument beyond etcd's limits: a value of more than its --max-request-bytes (1.5 MiB by
//     default), or more than about 120 keys in one MultiSet (--max-txn-ops)
class EtcdStore final : public Store {
 public:
  // Blocks until etcd responds, at most options.open_timeout.
  static absl::StatusOr<std::unique_ptr<EtcdStore>> Open(EtcdOptions options);
  ~EtcdStore() override;

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override;
  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override;
  absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) override;
  absl::StatusOr<bool> Check(absl::Span<const std::string> keys) override;
  absl::StatusOr<int64_t> Append(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string> keys,
                                                    absl::Duration timeout) override;
  absl::Status MultiSet(absl::Span<const std::string> keys, absl::Span<const std::string> values) override;
  absl::StatusOr<bool> Delete(absl::string_view key) override;
  absl::StatusOr<std::vector<std::string>> List(absl::string_view prefix) override;
  absl::StatusOr<int64_t> NumKeys() override;
  absl::Status Push(absl::string_view queue, absl::string_view value) override;
  absl::StatusOr<std::string> Pop(absl::string_view queue, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Length(absl::string_view queue) override;
  // A key of Beat is attached to a lease of its own, which Beat keeps alive. etcd stores nothing for that: a
  // job that only beats does not add to its history. etcd's shortest lease is longer than some tests', which
  // count.
  absl::Status Beat(absl::string_view key, absl::Duration lease) override;
  bool BeatsExpire(absl::Duration lease) const override { return lease >= absl::Seconds(2); }
  std::string address() const override { return client_->address(); }

  // Ends calls and waits that are under way, and all later ones, with Cancelled. Does not block.
  void Stop();
  // Makes changes from now on only while the key `etcd_key` of etcd has `value`. Otherwise they return
  // AlreadyExists. Beat is no such change.
  void SetFence(std::string etcd_key, std::string value);
  // Returns the name of `key` in etcd.
  std::string EtcdKey(absl::string_view key) const { return Key(key); }

 private:
  struct Versioned {
    absl::optional<std::string> value;
    int64_t revision = 0;  // of the last change; 0: the key does not exist
  };

  explicit EtcdStore(std::unique_ptr<EtcdClient> client);
  absl::Status JoinLease();
  void KeepAlive();
  // Returns OK unless the lease is known to be lost.
  absl::Status Usable() const;
  absl::Status Call(absl::string_view method, const google::protobuf::MessageLite& request,
                    google::protobuf::MessageLite* response, bool* repeated = nullptr);
  absl::StatusOr<Versioned> Read(const std::string& etcd_key);
  // Returns a new lease of at least `length`.
  absl::StatusOr<int64_t> GrantLease(absl::Duration length, absl::Duration* granted);
  void RevokeLease(int64_t lease);
  // Applies `ops` once, if `guard` (an etcd key; empty: always) still has `revision`; returns false if it has
  // not.
  absl::StatusOr<bool> Apply(const std::string& guard, int64_t revision,
                             std::vector<etcdserverpb::RequestOp> ops);
  // Reads, computes and applies until no other client changes the key in between. `compute` returns the new
  // value, or nullopt to change nothing.
  absl::Status Modify(
      absl::string_view key,
      const std::function<absl::StatusOr<absl::optional<std::string>>(const Versioned&)>& compute);
  // Reads the keys at one moment. `*missing` gets the absent keys; `*values`, unless nullptr, the values of
  // the others.
  absl::Status ReadKeys(absl::Span<const std::string> keys, std::vector<std::string>* missing,
                        std::vector<std::string>* values);
  absl::Status WaitForKeys(absl::Span<const std::string> keys, absl::Duration timeout,
                           std::vector<std::string>* values);
  etcdserverpb::RequestOp Put(const std::string& etcd_key, absl::string_view value) const;
  std::string Key(absl::string_view key) const { return base_ + "k/" + std::string(key); }
  std::string QueuePrefix(absl::string_view queue) const;

  const std::unique_ptr<EtcdClient> client_;
  const std::string base_;       // "<prefix>/"
  const std::string client_id_;  // random
  EtcdWatcher watcher_;
  absl::Duration timeout_;       // of a call; constant once opened
  int64_t lease_ = 0;            // likewise
  absl::Duration lease_length_;  // as granted to the process that opened the job's store first

  mutable absl::Mutex mutex_;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string fence_key_ ABSL_GUARDED_BY(mutex_), fence_value_ ABSL_GUARDED_BY(mutex_);  // "": none
  // Numbers of changes whose keys under o/ are no longer needed: each is deleted together with a later
  // change.
  std::vector<int64_t> slots_ ABSL_GUARDED_BY(mutex_);
  int64_t next_change_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<std::string, int64_t> beats_ ABSL_GUARDED_BY(mutex_);  // the lease of each key of Beat
  std::thread keeper_;
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_ETCD_ETCD_STORE_H_
