// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_BATCH_LOOKUP_H_
#define TANDEM_PYTHON_SRC_BATCH_LOOKUP_H_

// Looks up the embeddings of one batch for tandem.nn: which rows to pull, the pooled outputs that follow from
// them, and the gradients of rows that follow from gradients of outputs.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "ps/client/parts.h"
#include "ps/dedupe.h"

namespace tandem::python {

namespace v1 = ::tandem::v1;

// A feature: ids, in bags or one by one, of the rows of a table.
struct LookupFeature {
  std::string name;
  v1::Pooling pooling = v1::NONE;
  int64_t padding = -1;  // this id has no row: it reads as zeros and belongs to no bag; -1: none
};

struct LookupTable {
  std::string name;
  uint32_t dim = 0;
  bool negative_ids = false;  // a negative id is the unsigned number of the same bits; else it is refused
  std::vector<LookupFeature> features;
};

// The tables of a module and their features. Immutable.
struct LookupPlan {
  std::vector<LookupTable> tables;
  size_t num_features() const {
    size_t count = 0;
    for (const LookupTable& table : tables) count += table.features.size();
    return count;
  }
};

// The ids of one feature in a batch. The arrays belong to the caller.
struct FeatureIds {
  absl::Span<const int64_t> ids;
  // Bag b is ids[offsets[b] - base, offsets[b + 1] - base). The last bag ends with the last id if
  // `ends_are_given` is false. Null: there are `bags` bags of `length` ids.
  const int64_t* offsets = nullptr;
  size_t num_offsets = 0;
  int64_t base = 0;
  bool ends_are_given = true;
  size_t bags = 0;
  size_t length = 1;
  const float* weights = nullptr;  // [ids.size()], of a SUM; null: 1
};

// Returns 16 bytes that differ, for all practical purposes, between batches with different ids, bags or
// weights.
std::string ContentKey(const LookupPlan& plan, absl::Span<const FeatureIds> features);

// The lookup of one batch: Prepare, then a pull of PullParts, then Gather, then Scatter any number of times.
// An object is used again for other batches, and then allocates little. Thread-safe, except that Prepare must
// not run at the same time as another call.
class BatchLookup : public std::enable_shared_from_this<BatchLookup> {
 public:
  explicit BatchLookup(std::shared_ptr<const LookupPlan> plan) : plan_(std::move(plan)) {}

  // Reads the ids, in the order of the plan's features, and keeps what it needs of them. InvalidArgument
  // names the feature: a negative id, offsets that are no bags.
  absl::Status Prepare(absl::Span<const FeatureIds> features);

  // Returns the request for the distinct rows of each table. They are written into this object.
  std::vector<ps::PullPart> PullParts();
  // Says that the eviction of tables for which `counts(name)` returns true counts how often ids occur: their
  // gradients then come with occurrences. Call it after Prepare; nothing is counted without it.
  void SetCounted(absl::FunctionRef<bool(const std::string& table)> counts);
  void SetVersions(ps::PullVersions versions) { versions_ = std::move(versions); }

  // The rows of a feature's output: its bags, or its ids if it is not pooled.
  size_t OutputRows(size_t feature) const;
  // The OutputRows of one feature, or their gradients: row i is data[i * stride, i * stride + dim).
  struct OutputArray {
    float* data = nullptr;
    size_t stride = 0;
  };
  // Writes the output of each feature.
  void Gather(absl::Span<const OutputArray> outputs) const;
  struct OutputGradients {
    const float* data = nullptr;  // null: zeros
    size_t stride = 0;
  };
  // Adds gradients of outputs, multiplied by `scale`, to the gradients of rows. `weight_gradients` has an
  // array for each feature, [ids], or null; it receives the gradients of the feature's weights, which `scale`
  // does not multiply. `trains` says of each table whether its rows get gradients; without, only those of
  // weights are computed.
  void Scatter(absl::Span<const OutputGradients> gradients, float scale,
               absl::Span<float* const> weight_gradients, const std::vector<bool>& trains);
  // Returns whether there are gradients of any table, or of the table of this name.
  bool HasGradients() const;
  bool HasGradients(const std::string& table) const;

  // The gradients of one table's rows.
  struct RowGradients {
    absl::Span<const uint64_t> ids;                  // distinct; valid while the lookup is not prepared again
    absl::Span<const uint64_t> versions;             // by server
    std::shared_ptr<const std::vector<float>> rows;  // [ids x dim]; null: none
    // [ids]: how often each id was looked up; empty: not counted. Valid as long as `ids`.
    absl::Span<const uint32_t> occurrences;
  };
  // Hands out the gradients of the table of this name and forgets them.
  RowGradients TakeGradients(const std::string& table);
  // Forgets the gradients of all tables, or of the table of this name.
  void DropGradients();
  void DropGradients(const std::string& table);

  uint64_t num_ids() const;     // looked up, repetitions included
  uint64_t num_unique() const;  // pulled
  uint64_t bytes() const;       // of ids and pulled rows

 private:
  static constexpr uint32_t kPadding = ~uint32_t{0};

  struct Feature {
    size_t first = 0;  // position of its first id in `Rows::index`
    size_t ids = 0;
    std::vector<uint32_t> ends;  // of bags, counted from its first id; empty: each `length` ids are a bag
    size_t bags = 0;
    size_t length = 1;
    std::vector<float> weights;  // empty: 1

    std::pair<size_t, size_t> bag(size_t b) const {
      if (ends.empty()) return {b * length, (b + 1) * length};
      return {b == 0 ? 0 : ends[b - 1], ends[b]};
    }
  };
  struct Rows {
    std::vector<uint64_t> unique;
    std::vector<uint32_t> index;  // of each id of the table's features among `unique`, or kPadding
    std::vector<float> values;    // [unique x dim]
    bool counted = false;
    std::vector<uint32_t> occurrences;              // [unique], if `counted` and there are gradients to take
    std::shared_ptr<std::vector<float>> gradients;  // null: none
    std::shared_ptr<std::vector<float>> recycled;   // pushed before, perhaps still being sent
  };

  absl::Status PrepareTable(const LookupTable& table, absl::Span<const FeatureIds> features, Rows* rows,
                            absl::Span<Feature> prepared);
  void GatherFeature(const LookupFeature& info, size_t dim, const Rows& rows, const Feature& feature,
                     const OutputArray& out) const;
  void ScatterFeature(const LookupFeature& info, size_t dim, const Rows& rows, const Feature& feature,
                      const OutputGradients& d_out, float scale, float* d_rows, float* d_weights) const;

  const std::shared_ptr<const LookupPlan> plan_;
  std::vector<Rows> rows_;         // by table
  std::vector<Feature> features_;  // in the order of the plan
  ps::PullVersions versions_;
  ps::Deduper deduper_;
  std::vector<uint64_t> ids_;  // scratch of PrepareTable
  std::vector<uint32_t> kept_index_;
  mutable absl::Mutex mutex_;  // guards the gradients
};

// The gradients of one table's rows that wait for a push, as Python sees and changes them.
struct TableGradients {
  std::vector<uint64_t> ids;                 // distinct
  std::vector<uint64_t> versions;            // by server, the oldest ones
  std::shared_ptr<std::vector<float>> rows;  // [ids x dim]
  std::vector<uint32_t> occurrences;         // [ids]; empty: not counted
};

// Takes the gradients that `lookups` have of a table, and adds those of `earlier`, which may be null.
// Gradients of an id add up in this order: `earlier`, then the lookups in theirs. Returns null if there are
// none.
std::shared_ptr<TableGradients> TakeGradients(const std::string& table, uint32_t dim,
                                              absl::Span<const std::shared_ptr<BatchLookup>> lookups,
                                              std::shared_ptr<TableGradients> earlier);

// What one table contributes to a push.
struct PushSource {
  std::string table;
  uint32_t dim = 0;
  float learning_rate_factor = 1.0f;  // > 0
  std::vector<std::shared_ptr<BatchLookup>> lookups;
  std::vector<std::shared_ptr<TableGradients>> gathered;
};

// The gradients of a push, ready to be passed to ps::Client::PushAsync. Each table has one part. Several
// sources' gradients of a row are added up, and the part has the oldest of their versions.
struct GradientPush {
  std::vector<ps::PushPart> parts;
  std::vector<std::vector<uint64_t>> ids;
  std::vector<std::vector<uint64_t>> versions;
  std::vector<std::vector<uint32_t>> occurrences;
};

// Takes the gradients of `sources`. A table without gradients gets an empty part, because a push without it
// would not be the worker's step for that table. The result refers to the sources; their lookups must not be
// prepared again before PushAsync has returned.
GradientPush TakePush(absl::Span<const PushSource> sources);

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_BATCH_LOOKUP_H_
