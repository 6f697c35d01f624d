// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_APPEND_FENCE_H_
#define TANDEM_PS_FAILOVER_APPEND_FENCE_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace tandem::ps {

// Decides whether a process stores a message of a primary's log. Not thread-safe: the receiver checks a
// message and stores it under one lock, under which it also closes the fence.
class AppendFence {
 public:
  enum class Verdict {
    kStore,      // of the primary and the link that this copy follows
    kDeposed,    // of an earlier term: refused, and answered with term(), which ends the sender
    kClosed,     // this copy takes over: refused with Unavailable
    kWrongCopy,  // for a copy that does not exist any more, or not of its primary: refused with NotFound
  };

  // Admits the messages of the primary `primary` of `term` to the copy `self`, and no others.
  void Open(uint64_t term, std::string primary, std::string self) {
    term_ = std::max(term_, term);
    open_term_ = term;
    primary_ = std::move(primary);
    self_ = std::move(self);
    open_ = true;
  }
  // Refuses all messages until Open. Must be called before the compare-and-set of a takeover.
  void Close() { open_ = false; }
  // Records that `term` has begun: senders of earlier terms are deposed.
  void Raise(uint64_t term) { term_ = std::max(term_, term); }

  Verdict Check(uint64_t term, absl::string_view primary, absl::string_view follower) const {
    if (term < term_) return Verdict::kDeposed;
    if (follower != self_ || primary != primary_ || term != open_term_) return Verdict::kWrongCopy;
    return open_ ? Verdict::kStore : Verdict::kClosed;
  }
  // Returns the largest term that this process knows.
  uint64_t term() const { return term_; }
  const std::string& self() const { return self_; }
  const std::string& primary() const { return primary_; }

  template <typename H>
  friend H AbslHashValue(H h, const AppendFence& f) {
    return H::combine(std::move(h), f.open_, f.term_, f.open_term_, f.primary_, f.self_);
  }

 private:
  bool open_ = false;
  uint64_t term_ = 0;
  uint64_t open_term_ = 0;
  std::string primary_;
  std::string self_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_APPEND_FENCE_H_
