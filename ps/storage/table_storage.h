#ifndef TANDEM_PS_STORAGE_TABLE_STORAGE_H_
#define TANDEM_PS_STORAGE_TABLE_STORAGE_H_

// The rows of one table on one server. Knows nothing of workers, steps or the wire.
//
// A table is a set of buckets (ps/partition), each an open-addressing index from id to a row in slabs, under
// a lock of its own. A row is [header | embedding: dim floats | optimizer state], so that one prefetch serves
// both. Rows are never allocated one by one. Reads of a bucket share its lock; creating and updating rows
// take it alone. A call takes its ids bucket by bucket: what it does to one row is atomic, what it does to
// several is not.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// Thread-safe: calls that touch different buckets run in parallel.
class TableStorage {
 public:
  // `config` has passed ValidateTableConfig. A DENSE table's rows (those of buckets for which `owns` is true)
  // are made at once; an EMBEDDING table starts empty.
  static std::unique_ptr<TableStorage> Create(const v1::TableConfig& config, uint32_t num_buckets,
                                              absl::FunctionRef<bool(uint32_t bucket)> owns);
  virtual ~TableStorage() = default;

  // out[i * dim, (i+1) * dim) = row ids[i]. An absent row has its initial value, a function of (seed, id);
  // with `create` it also comes into being (EMBEDDING only; a DENSE id out of range reads as zeros). Ids may
  // repeat.
  virtual void Gather(absl::Span<const uint64_t> ids, bool create, float* out) = 0;

  // Applies the optimizer once to each distinct id, with the sum of its gradients (added in the order given);
  // gradients is [ids.size() x dim]. The optimizer's learning rate is multiplied by `learning_rate_factor`
  // (finite, >= 0). Ids without a row are skipped; returns how many entries were.
  virtual uint64_t Apply(absl::Span<const uint64_t> ids, const float* gradients,
                         float learning_rate_factor) = 0;

  virtual uint64_t rows() const = 0;
  virtual uint64_t bytes() const = 0;  // everything held: rows, index, slack

  // For checkpoints. A stored row is [dim embedding floats, then the optimizer state], row_floats in all (a
  // step count the optimizer keeps per row is one of the state floats).
  virtual uint32_t row_floats() const = 0;
  // Calls visit(id, row) for each row of `bucket`, under its lock, in ascending order of id (so that files do
  // not depend on arrival order). row is [row_floats].
  virtual void VisitBucket(uint32_t bucket, absl::FunctionRef<void(uint64_t id, const float* row)> visit) = 0;
  // Puts a row there ([row_floats]), replacing what the id had. A DENSE table takes only ids in range; others
  // are ignored.
  virtual void Restore(uint64_t id, const float* row) = 0;
  // Forgets all rows (a DENSE table's too; Restore brings them back).
  virtual void Clear() = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_TABLE_STORAGE_H_
