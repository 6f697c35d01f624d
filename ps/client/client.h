#ifndef TANDEM_PS_CLIENT_CLIENT_H_
#define TANDEM_PS_CLIENT_CLIENT_H_

// A worker's view of the parameter servers: tables it pulls rows from and pushes gradients to, whatever
// server they are on. Ids are split by bucket, one request goes to each server for all tables of a call,
// answers are put back in order.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "ps/client/cache/cache_options.h"
#include "ps/client/error_feedback.h"
#include "ps/client/parts.h"
#include "ps/client/wire_options.h"
#include "rpc/channel.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// What a call does that would go beyond ClientOptions::max_bytes_in_flight.
enum class WhenFull {
  kWait,  // in its caller, for calls before it to end, as long as a call may take: not for RPC threads
  kFail,  // ResourceExhausted, at once
};

struct ClientOptions {
  uint32_t worker = 0;  // this worker's rank: 0 <= worker < num_workers of every table it pushes to
  uint64_t epoch =
      1;  // of this worker's life; a restarted worker uses a higher one (fences its older self's pushes)
  absl::Duration timeout = absl::Seconds(60);  // of each pull and push, waiting for other workers included
  absl::Duration checkpoint_timeout = absl::Minutes(10);  // of SaveCheckpoint and LoadCheckpoint
  // Of the ids and rows of all pulls under way together, and as much again of the ids and gradients of all
  // pushes (apart, since a pull may wait for this worker's own push). A call that alone is larger goes alone.
  // A worker that starts calls faster than servers answer them is held up, or told, here.
  uint64_t max_bytes_in_flight = uint64_t{1} << 30;
  WhenFull when_full = WhenFull::kWait;
};

// Thread-safe. Owns its channels. One client per worker process.
class Client {
 public:
  // Talks to every server in `channels` (index = server index), checks that they are one job's servers and
  // agree on the shard map. Blocks, bounded by options.timeout. Errors name the server.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(std::vector<std::unique_ptr<rpc::Channel>> channels,
                                                         const ClientOptions& options);
  virtual ~Client() = default;

  virtual int num_servers() const = 0;

  // Makes the table known on all servers (idempotent; AlreadyExists names the field that differs).
  virtual absl::Status CreateTable(const v1::TableConfig& config) = 0;
  virtual absl::Status SetUpdateMode(const std::string& table, const v1::UpdateMode& mode) = 0;
  // How this client's later pulls and pushes of the table travel; until then, as WireOptions' defaults say.
  // What error feedback held of the table is forgotten. NotFound: CreateTable has not been called for it.
  virtual absl::Status SetWire(const std::string& table, const WireOptions& options) = 0;
  // What error feedback holds and has dropped; zeros for a table without it.
  virtual absl::StatusOr<ErrorFeedbackStatistics> FeedbackStatistics(const std::string& table) = 0;
  // Keeps hot rows of the table here, from now on, and perhaps their gradients back: what pulls and pushes
  // then mean is told in ps/client/cache/cache_options.h. Read-only pulls (evaluation) and pooled ones go
  // around the cache: they see the servers' rows as they are. In bounded mode pulls wait as without one. A
  // cache that the table had is given up, its held-back gradients pushed before (blocks, if there are any);
  // bytes 0: no cache. InvalidArgument: the options or the table's mode. No pull or push of the table may be
  // under way.
  virtual absl::Status SetCache(const std::string& table, const CacheOptions& options) = 0;
  // Of a table without a cache: zeros.
  virtual absl::StatusOr<CacheStatistics> CacheStatisticsOf(const std::string& table) = 0;
  // Pushes the gradients that caches hold back, and waits until they are acknowledged. To be called, on every
  // worker, when no push of this client is under way: at the end of a pass, before an evaluation and before
  // any client's SaveCheckpoint. Nothing is held back after it, nor pushed twice; on an error what was on its
  // way is lost, as a push's gradients are. The destructor calls it, too.
  virtual absl::Status PushDeferred() = 0;
  // Has what a GBA table keeps applied, though the update is not full. Does nothing to others.
  virtual absl::Status Flush(const std::string& table) = 0;
  // All tables, statistics summed over servers (ps/client/statistics.h), with the `hottest` most pulled ids.
  absl::StatusOr<std::vector<v1::TableInfo>> ListTables(uint32_t hottest = 0);
  // The same per server: [server][table].
  virtual absl::StatusOr<std::vector<std::vector<v1::TableInfo>>> ListTablesPerServer(uint32_t hottest) = 0;
  // How each server fares.
  virtual absl::StatusOr<std::vector<v1::ServerStatistics>> ListServers() = 0;

  // Starts reading rows for training step `step`; `done` runs once, on an RPC thread, and must not block. On
  // an error the rows' contents are unspecified. `read_only`: evaluation (creates no row). A pull may wait on
  // the server for other workers' pushes, as the table's update mode demands; DeadlineExceeded then names
  // them.
  virtual void PullAsync(uint64_t step, bool read_only, std::vector<PullPart> parts, PullDone done) = 0;
  // Starts applying gradients of `step`. Retried until acknowledged or timed out; applied exactly once. One
  // push per step carries all tables that are SYNC or BOUNDED: a server counts a worker's step as done when
  // its push of that step arrives (a push is sent to every server, even when it holds no rows of it).
  // `learning_rate_factor` (> 0, at most 2^20) multiplies the tables' learning rates for this push. Gradients
  // of a table whose optimizer has a clip_global_norm are scaled down to it here, before they are split over
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
  // Every server reads the rows it owns. On an error no table has changed on the servers that report it. This
  // client's caches forget rows and held-back gradients; those of others forget rows as soon as a server
  // answers them.
  virtual absl::Status LoadCheckpoint(const std::string& directory) = 0;

 private:
  virtual void PrepareInlinePoll() {}
  // For a thread that has said PrepareInlinePoll, has started a call and does nothing but wait for it:
  // receives answers itself where that spares a hand-over between threads, until `over`, or returns at once.
  virtual void InlinePoll(absl::FunctionRef<bool()> over) {}
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_CLIENT_H_
