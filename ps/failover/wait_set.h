// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_WAIT_SET_H_
#define TANDEM_PS_FAILOVER_WAIT_SET_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace tandem::ps {

// Decides which records of a primary's log are durable: those that every follower has stored which may take
// over. The protocol (protocol.h) says which followers these are; the log calls SetStored as they answer.
// Not thread-safe.
class WaitSet {
 public:
  // Nothing becomes durable while fewer than min_copies - 1 followers are in sync (Confirm).
  explicit WaitSet(int min_copies = 1) : min_copies_(min_copies) {}

  // Adds a follower that has stored all records up to `stored`. From now on records are durable only if it
  // has them. Records that were durable before remain so, see HasCaughtUp. No effect if it is in the set.
  void Require(const std::string& id, uint64_t stored) {
    members_.try_emplace(id, Member{.stored = stored, .barrier = durable_});
  }
  // Removes a follower. No effect if it is not in the set.
  void Release(const std::string& id) { members_.erase(id); }
  bool IsRequired(const std::string& id) const { return members_.contains(id); }
  size_t size() const { return members_.size(); }

  // Records that the follower has stored all records up to `position`. No effect if it had more, or if it is
  // not in the set.
  void SetStored(const std::string& id, uint64_t position) {
    const auto found = members_.find(id);
    if (found != members_.end()) found->second.stored = std::max(found->second.stored, position);
  }
  // Returns whether the follower has every record that was durable when it was added. Only then may the
  // document name it: what was acknowledged before did not wait for it.
  bool HasCaughtUp(const std::string& id) const {
    const auto found = members_.find(id);
    return found != members_.end() && found->second.stored >= found->second.barrier;
  }
  // Sets how many followers the document names as in sync.
  void Confirm(size_t in_sync) { confirmed_ = in_sync; }

  // Returns the position up to which all records are durable, given that of the last one. Never decreases.
  uint64_t Durable(uint64_t last) {
    if (confirmed_ + 1 < static_cast<size_t>(min_copies_)) return durable_;
    uint64_t stored = last;
    for (const auto& [id, member] : members_) stored = std::min(stored, member.stored);
    return durable_ = std::max(durable_, stored);
  }

  template <typename H>
  friend H AbslHashValue(H h, const WaitSet& w) {
    return H::combine(std::move(h), w.members_, w.confirmed_, w.durable_);
  }

 private:
  struct Member {
    uint64_t stored = 0;
    uint64_t barrier = 0;
    template <typename H>
    friend H AbslHashValue(H h, const Member& m) {
      return H::combine(std::move(h), m.stored, m.barrier);
    }
  };
  int min_copies_;
  std::map<std::string, Member> members_;
  size_t confirmed_ = 0;
  uint64_t durable_ = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_WAIT_SET_H_
