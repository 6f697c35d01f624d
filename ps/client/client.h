#ifndef TANDEM_PS_CLIENT_CLIENT_H_
#define TANDEM_PS_CLIENT_CLIENT_H_

// A worker's view of the parameter servers: tables it pulls rows from and pushes gradients to, whatever
// server they are on. Ids are split by bucket, one request goes to each server for all tables of a call,
// answers are put back in order.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "rpc/channel.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

struct ClientOptions {
  uint32_t worker = 0;  // this worker's rank: 0 <= worker < num_workers of every table it pushes to
  uint64_t epoch =
      1;  // of this worker's life; a restarted worker uses a higher one (fences its older self's pushes)
  absl::Duration timeout = absl::Seconds(60);  // of each pull and push, waiting for other workers included
  absl::Duration checkpoint_timeout = absl::Minutes(10);  // of SaveCheckpoint and LoadCheckpoint
};

// Rows of one table asked for in a pull. `ids` must stay alive and unchanged until the pull is done.
// Without pooling: ids should be unique (ps/dedupe.h); rows is [ids.size() x dim]. With pooling: offsets has
// bags + 1 entries, bag b is ids[offsets[b], offsets[b+1]), rows is [bags x dim] (an empty bag gives zeros).
struct PullPart {
  std::string table;
  absl::Span<const uint64_t> ids;
  float* rows = nullptr;  // written before the pull is done; owned by the caller
  v1::Pooling pooling = v1::NONE;
  absl::Span<const uint32_t> offsets;
};

// Gradients of one table to be applied. Same shapes as PullPart. An id may repeat; its gradients add up.
// `ids`, `gradients` and `offsets` are copied before PushAsync returns.
struct PushPart {
  std::string table;
  absl::Span<const uint64_t> ids;
  const float* gradients = nullptr;
  v1::Pooling pooling = v1::NONE;
  absl::Span<const uint32_t> offsets;
  // From PullVersions of the pull the gradients come from: one version per server.
  absl::Span<const uint64_t> pulled_versions;
  // Multiplies the learning rate for these ids (finite, > 0): a feature with a rate of its own is a part of
  // its own.
  float learning_rate_factor = 1.0f;
};

// Per part, per server: the table's version when its rows were read.
using PullVersions = std::vector<std::vector<uint64_t>>;

// Thread-safe. Owns its channels. One client per worker process.
class Client {
 public:
  using PullDone = absl::AnyInvocable<void(absl::StatusOr<PullVersions>) &&>;
  using PushDone = absl::AnyInvocable<void(absl::Status) &&>;

  // Talks to every server in `channels` (index = server index), checks that they are one job's servers and
  // agree on the shard map. Blocks, bounded by options.timeout. Errors name the server.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(std::vector<std::unique_ptr<rpc::Channel>> channels,
                                                         const ClientOptions& options);
  virtual ~Client() = default;

  virtual int num_servers() const = 0;

  // Makes the table known on all servers (idempotent; AlreadyExists names the field that differs).
  virtual absl::Status CreateTable(const v1::TableConfig& config) = 0;
  virtual absl::Status SetUpdateMode(const std::string& table, const v1::UpdateMode& mode) = 0;
  // All tables, statistics summed over servers.
  virtual absl::StatusOr<std::vector<v1::TableInfo>> ListTables() = 0;
  // The same per server: [server][table].
  virtual absl::StatusOr<std::vector<std::vector<v1::TableInfo>>> ListTablesPerServer() = 0;

  // Starts reading rows for training step `step`; `done` runs once, on an RPC thread, and must not block. On
  // an error the rows' contents are unspecified. `read_only`: evaluation (creates no row). A pull may wait on
  // the server for other workers' pushes, as the table's update mode demands; DeadlineExceeded then names
  // them.
  virtual void PullAsync(uint64_t step, bool read_only, std::vector<PullPart> parts, PullDone done) = 0;
  // Starts applying gradients of `step`. Retried until acknowledged or timed out; applied exactly once. One
  // push per step carries all tables that are SYNC or BOUNDED: a server counts a worker's step as done when
  // its push of that step arrives (a push is sent to every server, even when it holds no rows of it).
  // `learning_rate_factor` (finite, > 0) multiplies the tables' learning rates for this push. Gradients of a
  // table whose optimizer has a clip_global_norm are scaled down to it here, before they are split over
  // servers; their norm is that of all entries of the table's parts.
  virtual void PushAsync(uint64_t step, std::vector<PushPart> parts, float learning_rate_factor,
                         PushDone done) = 0;

  // Blocking forms.
  absl::StatusOr<PullVersions> Pull(uint64_t step, bool read_only, std::vector<PullPart> parts);
  absl::Status Push(uint64_t step, std::vector<PushPart> parts, float learning_rate_factor = 1.0f);

  // A DENSE table as one array of `elements` floats.
  virtual absl::Status PullDense(const std::string& table, uint64_t step, absl::Span<float> values) = 0;
  virtual absl::Status PushDense(const std::string& table, uint64_t step,
                                 absl::Span<const float> gradients) = 0;

  // Every server writes its part of a checkpoint to `directory` (seen by all processes). Returns the file
  // names. The caller makes sure that no push is under way (barrier) and commits the whole (see
  // ps/checkpoint).
  virtual absl::StatusOr<std::vector<std::string>> SaveCheckpoint(const std::string& directory) = 0;
  // Every server reads the rows it owns. On an error no table has changed on the servers that report it.
  virtual absl::Status LoadCheckpoint(const std::string& directory) = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_CLIENT_H_
