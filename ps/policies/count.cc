// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "base/random.h"
#include "ps/policies/registry.h"

namespace tandem::ps {
namespace {

constexpr uint32_t kMaxThreshold = 255;
constexpr uint64_t kMaxCounters = uint64_t{1} << 40;
constexpr size_t kMinCells = 64;
constexpr int kHashes = 3;
// All cells of a bucket are halved when each has been incremented this many times on average. The counts of
// ids that are no longer seen fade, and the filter does not fill up (TinyLFU, Einziger, Friedman and Manes,
// ACM TOS 2017).
constexpr uint64_t kAgeAfter = 4;

// Admits an id with the push that brings its count to the threshold. Counts are stored in a counting Bloom
// filter (Fan et al., SIGCOMM 1998), read as a count-min sketch: each id has kHashes cells, and the smallest
// one is its count. Except for ageing, a count is never too low. It is too high if other ids share all cells
// of the id, which is then admitted too early.
//
// Layout of the counters: [ additions since the last halving: u64 | cells: u8 ... ]
class Count : public Admission {
 public:
  Count(uint32_t threshold, uint64_t counters) : threshold_(threshold), counters_(counters) {}
  absl::string_view kind() const override { return "count"; }
  bool at_pull() const override { return false; }
  size_t counter_bytes(uint32_t num_buckets) const override {
    return sizeof(uint64_t) + std::max<size_t>(kMinCells, counters_ / num_buckets);
  }
  bool Admit(const Candidate& candidate, absl::Span<uint8_t> counters) const override {
    const absl::Span<uint8_t> cells = counters.subspan(sizeof(uint64_t));
    // Any number of hashes can be computed from two (Kirsch and Mitzenmacher, ESA 2006).
    const uint64_t hash = Mix64(candidate.id, 0x5eed);
    uint32_t count = kMaxThreshold;
    for (uint32_t k = 0; k < kHashes; ++k) {
      const uint32_t mixed = static_cast<uint32_t>(hash) + k * (static_cast<uint32_t>(hash >> 32) | 1);
      uint8_t& cell = cells[(uint64_t{mixed} * cells.size()) >> 32];
      if (cell < kMaxThreshold) ++cell;
      count = std::min<uint32_t>(count, cell);
    }
    Age(counters, cells);
    return count >= threshold_;
  }

 private:
  static void Age(absl::Span<uint8_t> counters, absl::Span<uint8_t> cells) {
    uint64_t additions;
    std::memcpy(&additions, counters.data(), sizeof(additions));
    additions += kHashes;
    if (additions > kAgeAfter * cells.size()) {
      for (uint8_t& cell : cells) cell /= 2;
      additions /= 2;
    }
    std::memcpy(counters.data(), &additions, sizeof(additions));
  }

  const uint32_t threshold_;
  const uint64_t counters_;
};

}  // namespace

AdmissionKind CountKind() {
  using Config = v1::AdmissionConfig;
  return {
      .name = "count",
      .summary = "the `threshold`th push of an id admits it",
      .reference =
          "counting Bloom filter (Fan et al., SIGCOMM 1998), aged as in TinyLFU (Einziger, Friedman and "
          "Manes, ACM TOS 2017)",
      .fields =
          {MessageField<&Config::threshold, &Config::set_threshold>({.name = "threshold",
                                                                     .help = "number of pushes of the id",
                                                                     .range = Between(2, kMaxThreshold),
                                                                     .default_value = 2}),
           MessageField<&Config::counters, &Config::set_counters>(
               {.name = "counters",
                .help = "bytes of counters over all servers, a few for each id that is seen now and then; "
                        "with few, counts may be a little high; they fade",
                .range = Between(1, kMaxCounters),
                .default_value = 1 << 24,
                .allowed = ", a few for each id that is seen now and then"})},
      .build = [](const v1::AdmissionConfig& config) -> std::unique_ptr<Admission> {
        return std::make_unique<Count>(config.threshold(), config.counters());
      }};
}

}  // namespace tandem::ps
