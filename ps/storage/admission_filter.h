// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_ADMISSION_FILTER_H_
#define TANDEM_PS_STORAGE_ADMISSION_FILTER_H_

// AdmissionFilter applies a table's admission policy and keeps the policy's counters, bucket by bucket. It
// also tells how the counters have changed since a moment, as a patch:
//
//   for each block of 64 counters that has changed, in ascending order: u32 number of the block, 64 bytes
//
// The last block is padded with zeros.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ps/policies/admission.h"

namespace tandem::ps {

// Functions with a `bucket` require its lock, exclusively unless they are const.
class AdmissionFilter {
 public:
  // `pulls_create` false: pulls create no rows, whatever the policy says.
  AdmissionFilter(std::unique_ptr<Admission> policy, uint64_t seed, uint32_t num_buckets, bool pulls_create)
      : policy_(std::move(policy)),
        seed_(seed),
        at_pull_(pulls_create && policy_->at_pull()),
        counter_bytes_(policy_->counter_bytes(num_buckets)),
        counters_(counter_bytes_ > 0 ? num_buckets : 0),
        at_cut_(counters_.size()),
        new_cut_(counters_.size()) {}

  // Returns true if pulls create rows. Otherwise pushes ask Admit for every entry without a row.
  bool at_pull() const { return at_pull_; }
  // Returns true if `id` gets its row in update `now`, and counts this attempt.
  bool Admit(uint32_t bucket, uint64_t id, uint64_t now) {
    absl::Span<uint8_t> counters;
    if (!counters_.empty()) {
      // Counters are allocated when they are first needed: a server needs only those of its own buckets.
      if (counters_[bucket].empty()) counters_[bucket].resize(counter_bytes_);
      if (new_cut_[bucket].open) KeepForCut(bucket);
      counters = absl::MakeSpan(counters_[bucket]);
    }
    return policy_->Admit({seed_, id, now}, counters);
  }

  // TableStorage::SaveFilter and RestoreFilter.
  std::string Save(uint32_t bucket) const {
    if (counters_.empty()) return {};
    return std::string(counters_[bucket].begin(), counters_[bucket].end());
  }
  bool Restore(uint32_t bucket, absl::string_view saved) {
    if (counters_.empty() || saved.size() != counter_bytes_) return false;
    counters_[bucket].assign(saved.begin(), saved.end());
    return true;
  }
  void Clear(uint32_t bucket) {
    if (!counters_.empty()) counters_[bucket] = {};
  }
  // Makes this the moment from which Changes counts. Copies the bucket's counters.
  void MarkCut(uint32_t bucket) {
    if (!counters_.empty()) at_cut_[bucket] = counters_[bucket];
  }
  // Makes this the moment of which SaveOfCut and ChangesUntilCut tell, until EndCut.
  void BeginCut(uint32_t bucket) {
    if (!counters_.empty()) new_cut_[bucket] = {.open = true};
  }
  // Ends it. With `keep` it becomes the moment from which Changes counts.
  void EndCut(uint32_t bucket, bool keep) {
    if (counters_.empty() || !new_cut_[bucket].open) return;
    KeepForCut(bucket);
    if (keep) at_cut_[bucket] = std::move(new_cut_[bucket].counters);
    new_cut_[bucket] = {};
  }
  // Returns the counters at BeginCut.
  std::string SaveOfCut(uint32_t bucket) const {
    if (counters_.empty()) return {};
    const std::vector<uint8_t>& counters = OfCut(bucket);
    return std::string(counters.begin(), counters.end());
  }
  // Returns the changes from MarkCut to BeginCut as a patch.
  std::string ChangesUntilCut(uint32_t bucket) const {
    return counters_.empty() ? std::string() : Patch(at_cut_[bucket], OfCut(bucket));
  }
  // Returns the changes since MarkCut as a patch.
  std::string Changes(uint32_t bucket) const {
    return counters_.empty() ? std::string() : Patch(at_cut_[bucket], counters_[bucket]);
  }
  // Returns the size of what Save returns.
  size_t saved_bytes(uint32_t bucket) const { return counters_.empty() ? 0 : counters_[bucket].size(); }
  // Returns the memory of a bucket's counters.
  size_t bytes(uint32_t bucket) const {
    if (counters_.empty()) return 0;
    return 2 * sizeof(counters_[bucket]) + counters_[bucket].capacity() + at_cut_[bucket].capacity() +
           sizeof(NewCut) + new_cut_[bucket].counters.capacity();
  }

 private:
  // The counters of a moment; a copy is made before they change.
  struct NewCut {
    bool open = false;
    bool copied = false;
    std::vector<uint8_t> counters;
  };

  void KeepForCut(uint32_t bucket) {
    if (std::exchange(new_cut_[bucket].copied, true)) return;
    new_cut_[bucket].counters = counters_[bucket];
  }
  const std::vector<uint8_t>& OfCut(uint32_t bucket) const {
    return new_cut_[bucket].copied ? new_cut_[bucket].counters : counters_[bucket];
  }
  static std::string Patch(std::vector<uint8_t> before, const std::vector<uint8_t>& now);

  const std::unique_ptr<Admission> policy_;
  const uint64_t seed_;
  const bool at_pull_;
  const size_t counter_bytes_;                  // of each bucket; 0: the policy has no counters
  std::vector<std::vector<uint8_t>> counters_;  // one for each bucket, or none
  std::vector<std::vector<uint8_t>> at_cut_;    // as they were at MarkCut
  std::vector<NewCut> new_cut_;                 // as they were at BeginCut
};

// Applies a patch that AdmissionFilter::Changes has returned to the counters `saved`, which become `bytes`
// bytes long. Returns false, with `saved` unspecified, if the patch does not fit them.
bool PatchFilter(absl::string_view patch, size_t bytes, std::string* saved);

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ADMISSION_FILTER_H_
