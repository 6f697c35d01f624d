// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_STORE_BOARD_H_
#define TANDEM_PS_FAILOVER_STORE_BOARD_H_

// The placement documents of a job in its store (ps/failover/placement_text.h has keys and values).

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cluster/store/store.h"
#include "ps/failover/board.h"
#include "rpc/channel.h"

namespace tandem::ps {

// Thread-safe.
class StoreBoard final : public Board {
 public:
  // `store` is borrowed. The calls of a remote store have a limit of their own, which may be longer than the
  // time-outs given here.
  explicit StoreBoard(cluster::Store* store);
  // The board in the store that a StoreServer serves at the other end of `store`. Each message to it is
  // bounded by the call's time-out; a call sends two or three.
  explicit StoreBoard(std::shared_ptr<rpc::Channel> store);
  ~StoreBoard() override;

  absl::StatusOr<tandem::v1::ShardPlacement> Read(uint32_t shard, absl::Duration timeout) override;
  absl::StatusOr<CompareAndSetResult> CompareAndSet(uint32_t shard, uint64_t expected_version,
                                                    const tandem::v1::ShardPlacement& desired,
                                                    absl::Duration timeout) override;
  // Looks at the store every 100 ms.
  absl::StatusOr<tandem::v1::ShardPlacement> AwaitChange(uint32_t shard, uint64_t known_version,
                                                         absl::Duration timeout) override;
  // Unimplemented for a board over a store whose server is not known.
  absl::StatusOr<bool> IsAlive(const std::string& address, absl::Duration timeout) override;
  void Cancel() override;

 private:
  // A store for one call of at most `timeout`.
  class Bounded;
  absl::StatusOr<std::string> ReadText(uint32_t shard, absl::Duration timeout);
  absl::Status CheckNotCancelled() const;

  cluster::Store* const store_;  // nullptr: channel_ leads to the store
  const std::shared_ptr<rpc::Channel> channel_;
  mutable absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

// Sets the key "ps/<shard>" of `store` to `address`, at which the shard's primary of `term` serves. Changes
// nothing if `board` has another term: another copy has taken over, and writes its own address, which this
// call does not replace, however late it arrives. Blocks for three calls of at most `timeout`. Errors are
// those of the store and the board.
absl::Status AnnouncePrimary(cluster::Store& store, Board& board, uint32_t shard, uint64_t term,
                             const std::string& address, absl::Duration timeout);

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_STORE_BOARD_H_
