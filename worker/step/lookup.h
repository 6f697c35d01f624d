#ifndef TANDEM_WORKER_STEP_LOOKUP_H_
#define TANDEM_WORKER_STEP_LOOKUP_H_

// One batch's embedding rows: which ids to ask for, how rows become the model's input, how the model's
// gradients become the rows' gradients.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "ps/client/client.h"
#include "ps/dedupe.h"
#include "worker/data/batch.h"
#include "worker/models/model.h"

namespace tandem::worker {

// A table and the features that look into it.
struct LookupTable {
  std::string name;
  int dim = 0;
  bool wide = false;          // feeds ModelInput::wide (dim 1), else ModelInput::embeddings
  std::vector<int> features;  // indices into Batch::sparse
};

// What every lookup of a job has in common. Immutable while in use.
struct LookupPlan {
  std::vector<LookupTable> tables;
  int num_features = 0;      // sparse features of the data
  int dim = 0;               // of the embedding tables, all alike
  bool mean = false;         // a bag is the mean of its rows, not their sum
  bool square_sums = false;  // the model wants ModelInput::square_sums
  // Sum bags on the servers instead of sending every row: fewer bytes when bags are long. Not for square sums
  // or weighted ids, and sums of a bag that lies on several servers depend, in the last bit, on their number.
  bool server_pooling = false;
  // Features that share ids, by index; ids of features in different sets never collide. Empty: none share.
  std::vector<std::vector<int>> shared_features;
};

// Reused from batch to batch: a steady state allocates nothing. Used by one thread at a time (the pipeline
// hands it on).
class Lookup {
 public:
  explicit Lookup(const LookupPlan* plan);

  // Ids are deduplicated and arrays made ready. `batch` must stay unchanged until the lookup is done with.
  absl::Status Prepare(const Batch* batch);
  // What to pull. Rows land in this object, which must not move or change until the pull is done.
  std::vector<ps::PullPart> PullParts();
  // Hand over the answer of that pull.
  void set_versions(ps::PullVersions versions) { versions_ = std::move(versions); }

  // Fills the model's input from the rows: the pointers of `input` refer to this object.
  void Gather(ModelInput* input);
  // Where the model should write its input gradients.
  InputGradients GradientBuffers();
  // Turns those into row gradients. The parts refer to this object.
  std::vector<ps::PushPart> Scatter();

  uint64_t ids() const { return num_ids_; }            // looked up, repeats included
  uint64_t unique_ids() const { return num_unique_; }  // asked for

 private:
  // The ids of a set of features, shared by all tables that look up the same set.
  struct Group {
    std::vector<int> features;
    std::vector<size_t> start;      // [features]: where feature's ids start in `index`
    std::vector<uint64_t> unique;   // worker pooling: distinct ids; server pooling: all ids, bag after bag
    std::vector<uint32_t> index;    // worker pooling: each id's place in `unique`
    std::vector<uint32_t> offsets;  // server pooling: bags in [example][feature] order
  };
  struct Rows {
    int group = 0;
    std::vector<float> values;     // [unique x dim], or [bags x dim] with server pooling
    std::vector<float> gradients;  // the same shape
  };

  void DedupeGroup(Group* group);
  void FlattenGroup(Group* group);
  float Weight(const SparseColumn& column, size_t begin, size_t end, size_t i) const;
  void GatherTable(const LookupTable& table, const Rows& rows, float* out, int dim);
  void ScatterTable(const LookupTable& table, Rows* rows, const float* d_out, int dim);

  const LookupPlan* plan_;
  const Batch* batch_ = nullptr;
  std::vector<Group> groups_;
  std::vector<Rows> rows_;  // one per table
  ps::PullVersions versions_;
  ps::Deduper deduper_;
  std::vector<uint64_t> ids_;  // scratch of DedupeGroup
  std::vector<uint64_t> set_unique_;
  std::vector<uint32_t> set_index_;
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
