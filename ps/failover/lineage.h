// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_LINEAGE_H_
#define TANDEM_PS_FAILOVER_LINEAGE_H_

#include <cstdint>
#include <utility>

namespace tandem::ps {

// Says what the tables of a copy contain: every record up to `position` of the log of the primary of `term`,
// and no other record. Term 0: the tables are not whole.
struct Lineage {
  uint64_t term = 0;
  uint64_t position = 0;
  bool operator==(const Lineage&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const Lineage& l) {
    return H::combine(std::move(h), l.term, l.position);
  }
};

// Returns whether a copy with `held` can follow a primary that had `base` when it took over, by storing the
// records behind held.position: then both have the same records up to there (I1 of protocol.h). A copy that
// is ahead of `base` has records that the primary lacks, and must be copied anew. So must a copy of another
// term, because its log may have taken another course.
inline bool CanContinue(const Lineage& base, const Lineage& held) {
  return held.term != 0 && held.term == base.term && held.position <= base.position;
}

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_LINEAGE_H_
