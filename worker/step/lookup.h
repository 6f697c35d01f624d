// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_STEP_LOOKUP_H_
#define TANDEM_WORKER_STEP_LOOKUP_H_

// Looks up the embedding rows of one batch: determines the ids to pull, converts rows to the model's input,
// and converts the model's gradients to row gradients.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "ps/client/client.h"
#include "ps/dedupe.h"
#include "ps/replicated/replicated_tables.h"
#include "worker/data/batch.h"
#include "worker/models/model.h"

namespace tandem::worker {

// A table and the features that it embeds.
struct LookupTable {
  std::string name;
  int dim = 0;
  bool wide = false;          // true: feeds ModelInput::wide (dim 1); false: ModelInput::embeddings
  std::vector<int> features;  // indices into Batch::sparse
  // [features]: where the rows of each feature live. Empty: kAuto for all. Features that share ids are
  // sharded if one of them is, else replicated if one of them is.
  std::vector<ps::Placement> placements;
  bool counts_occurrences = false;  // the table's eviction does: pushes say how often each id occurs
};

// The configuration that all lookups of a job share. Must not change while in use.
struct LookupPlan {
  std::vector<LookupTable> tables;
  int num_features = 0;      // sparse features of the data
  int dim = 0;               // of every embedding table
  bool mean = false;         // a bag is the mean of its rows instead of their sum
  bool square_sums = false;  // the model wants ModelInput::square_sums
  // Sums bags on the servers instead of sending every row; this saves bytes if bags are long. Not supported
  // for square sums or weighted ids. If the rows of a bag lie on several servers, the last bit of its sum
  // depends on their number.
  bool server_pooling = false;
  // Sets of features (indices) that share ids. Ids of features in different sets never collide. Empty: no
  // features share ids.
  std::vector<std::vector<int>> shared_features;
};

// Returns the segments of a table's features: the positions in `table.features` of features that share ids,
// in the order in which a lookup lists their ids.
std::vector<std::vector<size_t>> SegmentsOf(const LookupPlan& plan, const LookupTable& table);

// Returns where the rows of the features of a segment live.
ps::Placement PlacementOf(const LookupTable& table, absl::Span<const size_t> segment);

// The ids of a segment by the side that serves their rows.
struct SegmentCounts {
  uint64_t ids = 0;             // looked up, repetitions included
  uint64_t replicated_ids = 0;  // those of them that replicas serve
  uint64_t replicated = 0;      // distinct ids of each batch that replicas serve
  uint64_t pulled = 0;          // distinct ids of each batch that are pulled
  void Add(const SegmentCounts& other) {
    ids += other.ids;
    replicated_ids += other.replicated_ids;
    replicated += other.replicated;
    pulled += other.pulled;
  }
};
using ServedCounts = std::vector<std::vector<SegmentCounts>>;
// Returns zeros for each segment of each table.
ServedCounts NoneServed(const LookupPlan& plan);
// Adds `other`, which belongs to the same plan, to `sum`.
void AddServed(const ServedCounts& other, ServedCounts* sum);

// The lookup of one batch. Objects are reused for later batches and then allocate nothing. Used by one thread
// at a time (the pipeline passes it between threads). The calls for a batch come in the order of their
// declaration.
//
// With `replicas`, rows that are replicated are not pulled: Gather reads the replicas, and ScatterReplicated
// adds to their gradients. PullParts and Scatter then have the other rows only. The set of replicated
// rows must not change between Prepare and the last call for a batch.
class Lookup {
 public:
  // `plan` and `replicas` outlive the object. `replicas` may be nullptr; otherwise it has the plan's tables,
  // none with replicated rows if the plan has server pooling.
  explicit Lookup(const LookupPlan* plan, ps::ReplicatedTables* replicas = nullptr);

  // Deduplicates the ids of `batch` and sizes all arrays. `batch` must stay valid and unchanged until the
  // last call for it.
  absl::Status Prepare(const Batch* batch);
  // Counts the batch's ids for the choice of rows that ends a synchronous start
  // (ps::ReplicatedTables::CountBatch). For batches of training only. No effect after the start.
  void CountForChoice();
  // Returns the pull request. The rows are written into this object, which must not move or change until the
  // pull is done.
  std::vector<ps::PullPart> PullParts();
  // Stores the row versions that this pull returned; Scatter passes them on.
  void set_versions(ps::PullVersions versions) { versions_ = std::move(versions); }

  // Fills the model's input from the rows. The pointers in `input` refer to this object.
  void Gather(ModelInput* input);
  // Returns the buffers into which the model must write its input gradients.
  InputGradients GradientBuffers();
  // Adds the gradients of replicated rows to the replicas. Called by the thread that updates the replicas,
  // always if there are `replicas`, before Scatter.
  void ScatterReplicated();
  // Returns the push request with the gradients of the other rows. It refers to this object.
  std::vector<ps::PushPart> Scatter();

  uint64_t ids() const { return num_ids_; }            // looked up, repetitions included
  uint64_t unique_ids() const { return num_unique_; }  // sent to the servers
  // Returns what replicas and servers serve of this batch, [tables][SegmentsOf]. Zeros with server pooling.
  const ServedCounts& served() const { return served_; }

 private:
  // The ids of a set of features, shared by all tables that look up the same set.
  struct Group {
    std::vector<int> features;
    // Positions in `features` of the features of each segment: those that share ids.
    std::vector<std::vector<size_t>> segments;
    std::vector<size_t> start;  // [features]: position of the feature's first id in `index`
    // Worker pooling: the end of each segment in `unique`.
    std::vector<uint32_t> segment_ends;
    // The distinct ids with worker pooling; all ids, bag after bag, with server pooling.
    std::vector<uint64_t> unique;
    std::vector<uint32_t> index;    // worker pooling: position of each id in `unique`
    std::vector<uint32_t> offsets;  // server pooling: bags in [example][feature] order
  };
  struct Rows {
    int group = 0;
    std::vector<ps::Placement> placements;  // by segment
    std::vector<float> values;          // of the pulled rows, [ids x dim]; [bags x dim] with server pooling
    std::vector<float> gradients;       // the same shape
    std::vector<uint32_t> occurrences;  // of the pulled ids, in tables that count them
    bool split = false;            // some distinct ids of the batch are replicated; what follows is used then
    std::vector<uint64_t> pulled;  // distinct ids to pull
    std::vector<uint32_t> pulled_ends;  // the end of each segment in `pulled`
    std::vector<uint32_t> slots;        // of the replicated rows
    std::vector<uint32_t> index;        // of each id: its row in `values`, or the replica's slot and a mark
  };

  void SplitRows(size_t t);
  absl::Span<const uint64_t> PulledIds(const Rows& rows) const;
  const uint32_t* IndexOf(const Rows& rows, size_t feature) const;
  void DedupeGroup(Group* group);
  void FlattenGroup(Group* group);
  float Weight(const SparseColumn& column, size_t begin, size_t end, size_t i) const;
  // The model's input of table t from its rows, and the rows' gradients from the model's. With server pooling
  // the rows are bags.
  void GatherTable(size_t t);
  void CopyBags(size_t t);
  void ScatterTable(size_t t);
  void CountOccurrences(size_t t);
  void ScatterBags(size_t t);

  const LookupPlan* plan_;
  ps::ReplicatedTables* const replicas_;
  const Batch* batch_ = nullptr;
  std::vector<Group> groups_;
  std::vector<Rows> rows_;  // one per table
  ps::PullVersions versions_;
  ps::Deduper deduper_;
  std::vector<uint64_t> ids_;  // scratch of DedupeGroup
  std::vector<uint64_t> set_unique_;
  std::vector<uint32_t> set_index_;
  std::vector<uint32_t> places_;      // scratch of SplitRows
  std::vector<uint64_t> remembered_;  // likewise
  ServedCounts served_;
  std::vector<float> embeddings_, d_embeddings_;    // [B x F x dim]
  std::vector<float> square_sums_, d_square_sums_;  // [B x dim]
  std::vector<float> wide_, d_wide_;                // [B x F]
  bool has_embeddings_ = false;
  bool has_wide_ = false;
  uint64_t num_ids_ = 0;
  uint64_t num_unique_ = 0;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_STEP_LOOKUP_H_
