// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_CLIENT_H_
#define TANDEM_PS_CLIENT_CLIENT_H_

// The client of the parameter servers: a worker pulls rows of tables and pushes gradients to them. The client
// splits the ids over the servers by bucket and sends one request to each server for all tables of a call. It
// puts the rows of the responses in the order of the ids.

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "ps/client/cache/cache_options.h"
#include "ps/client/cache/read_cache_options.h"
#include "ps/client/error_feedback.h"
#include "ps/client/follower_reads.h"
#include "ps/client/parts.h"
#include "ps/client/push_handle.h"
#include "ps/client/row_states.h"
#include "ps/client/wire_options.h"
#include "ps/row_staleness.h"
#include "rpc/channel.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::cuda {
class CudaApi;
}

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// The behaviour of a call that would exceed ClientOptions::max_bytes_in_flight.
enum class WhenFull {
  // Blocks the caller until earlier calls have ended. ResourceExhausted after ClientOptions::timeout. Not for
  // RPC threads.
  kWait,
  // Fails at once with ResourceExhausted.
  kFail,
};

// Says how SaveCheckpoint builds on the checkpoint before.
struct SaveOptions {
  // The name that the checkpoint will have (CheckpointName), so that the next one can build on it; empty:
  // none will. Servers then keep the ids of rows that are evicted, and a copy of admission counters.
  std::string name;
  // The checkpoint on which this one may build, the last that was saved with a name; it must be committed, in
  // the same directory. Servers that cannot build on it write complete files. Empty: all files are complete.
  std::string base;
  // True: writes what BeginCheckpoint has fixed, while pushes go on; `name` and `base` are ignored.
  bool begun = false;
  // When a stop is requested, SaveCheckpoint ends with Cancelled. Servers go on with what they write.
  std::stop_token cancel = {};
};

struct ClientOptions {
  // This worker's rank. 0 <= worker < num_workers of every table to which it pushes.
  uint32_t worker = 0;
  // The push epoch, which tells this process from earlier ones of the same worker. A restarted worker must
  // use a larger one; the servers then refuse pushes of the earlier process. Client::StartPushEpoch asks the
  // servers for one.
  uint64_t epoch = 1;
  // The timeout of each pull and push, including the wait for other workers.
  absl::Duration timeout = absl::Seconds(60);
  // If it is not zero, followers of the servers may answer read-only pulls (docs/durability.md). Such a pull
  // returns rows that contain every update that the server's log had `max_lag` before the pull began, and
  // perhaps later ones; as at the primary, some may not be acknowledged yet. The pulls are spread over the
  // copies of each server. A follower that cannot promise the bound, or does not answer, costs a pull some
  // time, at most RoutedChannelOptions::follower_patience, after which the primary answers it.
  //
  // Two pulls may be answered by different copies. So a pull may return an older row than a pull before it
  // did, by max_lag at most. Pulls that need the newest rows, or that never go back, need a client without
  // max_lag. Channels must be those of ConnectShard or ConnectRouted; servers without followers ignore the
  // option. At least 1 ms. The clocks of two machines are never compared.
  absl::Duration max_lag = absl::ZeroDuration();
  // The timeout of SaveCheckpoint and LoadCheckpoint.
  absl::Duration checkpoint_timeout = absl::Minutes(10);
  // Limits the memory of the calls under way: the ids and rows of all pulls together, and separately the ids
  // and gradients of all pushes (a pull may wait for a push of the same worker). A call that is larger than
  // the limit runs when it is the only one. `when_full` says what happens to a call that starts while the
  // limit is reached, because this worker starts calls faster than the servers respond.
  uint64_t max_bytes_in_flight = uint64_t{1} << 30;
  WhenFull when_full = WhenFull::kWait;
  // Called about every 100 ms by a thread that waits as `when_full` says, or for gradients on a GPU, without
  // locks. If it returns false, the call ends with Cancelled, and nothing is sent. Null: only the timeout
  // ends the wait.
  std::function<bool()> go_on_waiting;
  // The pinned host memory for parts on GPUs, in bytes: so much for pulls, and as much for pushes. Each is
  // allocated by the first part on a GPU; a client without such parts has none. Calls that find no room, or
  // are larger, go through it in pieces, which costs a copy within host memory. At least 64 KiB, at most 16
  // GiB.
  uint64_t pinned_bytes = uint64_t{64} << 20;
  // Tests set this CUDA runtime. Null: the first part on a GPU loads that of this machine
  // (base/cuda/library_search.h).
  std::shared_ptr<cuda::CudaApi> cuda;
};

// A client of all parameter servers of a job. Use one client per worker process. Owns its channels. The
// destructor pushes deferred gradients (PushDeferred) and logs an error if that fails. If the client had
// parts on GPUs, the destructor may block until the GPUs have carried out all work that the process has
// queued on them. Thread-safe.
class Client {
 public:
  // Connects to the servers behind `channels` (index = server index). Checks that they are the servers of one
  // job and have the same shard map. Blocks for at most options.timeout for each server. Errors name the
  // server.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(std::vector<std::unique_ptr<rpc::Channel>> channels,
                                                         const ClientOptions& options);
  virtual ~Client() = default;

  virtual int num_servers() const = 0;

  // Returns who has answered the read-only pulls of this client since it connected; zeros without
  // ClientOptions::max_lag. Does not block.
  virtual FollowerReadStatistics FollowerReads() const = 0;

  // Creates the table on all servers. Idempotent. AlreadyExists: the table exists with another configuration;
  // the message names the field that differs.
  //
  // `first_step`: the step of the workers' first pushes to a new table, for tables that are created while a
  // job runs: SYNC and BOUNDED tables do not wait for earlier steps. All workers must give the same.
  virtual absl::Status CreateTable(const v1::TableConfig& config, uint64_t first_step = 0) = 0;
  // Removes the table from all servers, with its rows, its waiting pushes and its clocks, and this client's
  // caches and deferred gradients of it. Calls for the table that are under way, and later ones, fail with
  // NotFound, also those of other clients, until the table is created again; it then starts anew. After an
  // error some servers may have dropped the table: call again. NotFound: no server has the table, and this
  // client does not know it any more either; lists the tables.
  virtual absl::Status DropTable(const std::string& table) = 0;
  // Makes a table that another client has created known to this one, with the configuration that the servers
  // have. Changes nothing on the servers, so that clients which only read may call it. NotFound: a server has
  // no such table; the message lists the tables.
  virtual absl::Status OpenTable(const std::string& table) = 0;
  // Changes the update mode of the table on all servers. InvalidArgument: the mode is invalid, or this
  // client's cache of the table does not allow it (ValidateCacheOptions).
  virtual absl::Status SetUpdateMode(const std::string& table, const v1::UpdateMode& mode) = 0;
  // Sets how later pulls and pushes of this client encode the table's ids and values. Before the first call
  // the defaults of WireOptions hold. Drops the residuals of the table's error feedback. NotFound: this
  // client has not called CreateTable for the table.
  virtual absl::Status SetWire(const std::string& table, const WireOptions& options) = 0;
  // Returns whether the table's eviction counts how often ids occur in pushes (PushPart::occurrences). False
  // for tables for which this client has not called CreateTable.
  virtual bool CountsOccurrences(const std::string& table) = 0;
  // Returns what error feedback of the table holds and has dropped; zeros if the table has none.
  virtual absl::StatusOr<ErrorFeedbackStatistics> FeedbackStatistics(const std::string& table) = 0;
  // Gives the table a cache of hot rows in this worker, which may also defer gradients.
  // ps/client/cache/cache_options.h defines what pulls and pushes then mean. Read-only pulls (evaluation) and
  // pooled pulls bypass the cache and see the servers' rows. In bounded mode pulls wait as without a cache.
  //
  // Replaces an earlier cache of the table. If that one defers gradients, the call blocks until they are
  // pushed. options.bytes == 0 removes the cache. No pull or push of the table may be under way.
  // InvalidArgument: the options or the table's update mode are not allowed.
  virtual absl::Status SetCache(const std::string& table, const CacheOptions& options) = 0;
  // Returns the statistics of the table's cache; zeros if it has none.
  virtual absl::StatusOr<CacheStatistics> CacheStatisticsOf(const std::string& table) = 0;
  // Gives the table a cache for read-only pulls without pooling, for processes that serve a model.
  // ps/client/cache/read_cache_options.h defines which rows they then return. Their versions are 0 if a copy
  // was among them. Replaces an earlier one; pulls under way keep using that. options.bytes == 0 removes it.
  // InvalidArgument: the options are not allowed.
  virtual absl::Status SetReadCache(const std::string& table, const ReadCacheOptions& options) = 0;
  // Drops the copies of the table's read cache. Pulls that begin later see the servers' rows of now. No
  // effect without one. Does not block.
  virtual absl::Status ClearReadCache(const std::string& table) = 0;
  // Returns the statistics of the table's read cache; zeros if it has none. Does not block.
  virtual absl::StatusOr<ReadCacheStatistics> ReadCacheStatisticsOf(const std::string& table) = 0;
  // Pushes the gradients that caches have deferred, and blocks until they are acknowledged. Call it on every
  // worker when no push of this client is under way: at the end of a pass, before an evaluation, and before
  // any client's SaveCheckpoint. Afterwards no gradient is deferred, and none is pushed twice. After an error
  // the gradients that were on their way are lost, like those of a push. The destructor calls it too.
  virtual absl::Status PushDeferred() = 0;
  // Has what a GBA table keeps applied, though the update is not full. Does nothing to others.
  virtual absl::Status Flush(const std::string& table) = 0;
  // Returns all tables, with statistics summed over the servers (ps/client/statistics.h) and the `hottest`
  // most frequently pulled ids of each.
  absl::StatusOr<std::vector<v1::TableInfo>> ListTables(uint32_t hottest = 0);
  // Returns the same for each server: [server][table].
  virtual absl::StatusOr<std::vector<std::vector<v1::TableInfo>>> ListTablesPerServer(uint32_t hottest) = 0;
  // Returns the statistics of each server.
  virtual absl::StatusOr<std::vector<v1::ServerStatistics>> ListServers() = 0;

  // Starts to read rows for training step `step`. May block as ClientOptions::when_full says. Runs `done`
  // once, usually on an RPC thread, so it must not block; if the call cannot start, or if a read cache has
  // all rows, `done` runs in this thread before the return. After an error the contents of the rows are
  // unspecified. `read_only` is for evaluation: the pull creates no row.
  //
  // Under the table's update mode a pull may wait on the server for pushes of other workers. If it waits too
  // long it ends with DeadlineExceeded, naming those workers. NotFound: this client has not called
  // CreateTable for a table. InvalidArgument: the offsets of a part are wrong.
  //
  // Parts on GPUs (PullPart::device): `done` runs on a thread of the client, which must not block either.
  // InvalidArgument: there is no such GPU, the rows are not in its memory, or the stream is a stream of
  // another GPU; FailedPrecondition: there is no CUDA runtime, or the stream is being captured into a CUDA
  // graph; ResourceExhausted: there is no pinned memory (ClientOptions::pinned_bytes). Nothing was sent then.
  // Internal, naming the call: CUDA failed. DeadlineExceeded also if the GPU has not got to the rows in time.
  // The client stays usable after each.
  virtual void PullAsync(uint64_t step, bool read_only, std::vector<PullPart> parts, PullDone done) = 0;
  // Starts to apply gradients of `step`. Blocks and runs `done` like PullAsync, with the same errors. The
  // push is repeated until it is acknowledged or its time has passed. Each server applies an acknowledged
  // push exactly once, and any other at most once. At most as many pushes are under way as the servers can
  // tell apart (v1::ServerInfo.push_window); the next one waits as ClientOptions::when_full says. One push
  // per step must carry all tables that are SYNC or BOUNDED: a server counts the step of a worker as done
  // when the worker's push of that step arrives. A push goes to every server, even to those that own none of
  // its rows.
  //
  // The gradients of a table whose optimizer has a clip_global_norm are scaled down to that norm before they
  // are split over the servers; the norm covers all entries of the table's parts.
  //
  // Parts on GPUs (PushPart::device): the call blocks until their gradients are in host memory, at most for
  // ClientOptions::timeout. If it fails before, with the errors of PullAsync for such parts, nothing was
  // pushed.
  //
  // InvalidArgument: more than 1024 parts, or a gradient is NaN, infinite or absurd (2^60 and more; 2^59 if
  // not sent as f32). The message names its id. Nothing was sent to any server; it says if gradients that a
  // cache had deferred are lost. Other errors tell of each server: applied, refused, unknown or not sent.
  virtual void PushAsync(uint64_t step, std::vector<PushPart> parts, const PushOptions& options,
                         PushDone done) = 0;
  // Like PushAsync. Returns a handle by which the push can be repeated under the same sequences if it fails,
  // also after its timeout: a push whose fate is unknown is then applied exactly once. Returns null if the
  // push was not started; `done` has then run with the error.
  virtual std::shared_ptr<PushHandle> StartPush(uint64_t step, std::vector<PushPart> parts,
                                                const PushOptions& options, PushDone done) = 0;

  // Blocking forms of PullAsync and PushAsync. Must not be called on RPC threads, nor in a `done`.
  absl::StatusOr<PullVersions> Pull(uint64_t step, bool read_only, std::vector<PullPart> parts);
  absl::Status Push(uint64_t step, std::vector<PushPart> parts, const PushOptions& options = {});

  // Blocking pull and push of a DENSE table as one array of `elements` floats. InvalidArgument: the table is
  // not DENSE or has another number of elements.
  virtual absl::Status PullDense(const std::string& table, uint64_t step, absl::Span<float> values) = 0;
  virtual absl::Status PushDense(const std::string& table, uint64_t step,
                                 absl::Span<const float> gradients) = 0;

  // Row staleness and replication of rows (docs/parameter_server.md). The calls block, as ListTables does.
  // NotFound: this client has not called CreateTable for the table.

  // Returns the row staleness of the table's pushes by this client since the last reset, by segment
  // (PushPart::segments). If a push has several parts of the table, the segments of the second follow those
  // of the first, and so on. Servers measure a part of the pushes; SYNC tables and pushes that are
  // acknowledged before they are applied (GBA) have no counts. Empty until something was measured. Does not
  // block.
  virtual absl::StatusOr<std::vector<RowStalenessCounts>> RowStalenessStatistics(
      const std::string& table) = 0;
  // Sets these counts to zero.
  virtual absl::Status ResetRowStalenessStatistics(const std::string& table) = 0;

  // Returns the rows that are updated often while a gradient is on its way: at most `limit` rows whose
  // row_staleness is at least `min_row_staleness`, over all servers, highest first. Rows are counted from the
  // first 32 updates of a measuring period on; before, the list is empty, or that of earlier periods.
  virtual absl::StatusOr<std::vector<FrequentRow>> FrequentlyUpdatedRows(const std::string& table,
                                                                         double min_row_staleness,
                                                                         size_t limit) = 0;

  // Reads whole rows with their optimizer state. Creates none: an absent row reads as it would be created.
  // While a worker holds replicas, the servers keep their copies, which other readers see. Drops this
  // client's cached copies of the rows; every client that holds replicas reads the rows itself. Deferred
  // gradients of these rows must have been pushed (PushDeferred).
  virtual absl::StatusOr<RowStates> ReadRowStates(const std::string& table,
                                                  absl::Span<const uint64_t> ids) = 0;
  // Creates or replaces rows of any number of tables. A row that was evicted meanwhile is created again;
  // admission is not asked. Embeddings of f16 and bf16 tables are rounded to nearest. Drops this client's
  // cached copies of the rows, also after an error; in caches of other clients they count as older. The rows
  // are sent in messages of a few MiB, those of small tables at the same time; each is repeated until it is
  // acknowledged or ClientOptions::timeout has passed, and is applied once, so that it never overwrites a
  // later push. After an error some rows may have been written; the caller may call again. Blocks until the
  // servers have written the rows.
  //
  // The caller must ensure that no push of these rows is under way (Flush for GBA tables), and that one
  // worker writes. InvalidArgument: sizes do not fit the table, or a value is not finite.
  virtual absl::Status WriteRowStates(absl::Span<const TableRowStates> tables) = 0;
  absl::Status WriteRowStates(const std::string& table, absl::Span<const uint64_t> ids,
                              const RowStates& states) {
    const TableRowStates rows{.table = table, .ids = ids, .states = &states};
    return WriteRowStates(absl::MakeConstSpan(&rows, 1));
  }
  // Reads the rows of a table that exist, at most `max_rows` (and some MiB) at a time: the first call passes
  // a default position, each further one `next` of the one before, until `at_end`. A row that exists
  // throughout the scan is returned once; of rows that are created or evicted meanwhile, some are. Rows are
  // read at different times. The order does not depend on the number of servers. Blocks, at most
  // ClientOptions::timeout for each request.
  virtual absl::StatusOr<ScannedRows> ScanRows(const std::string& table, const ScanPosition& from,
                                               size_t max_rows) = 0;

  // Takes a new push epoch, larger than all that the servers know of this worker, also from a checkpoint that
  // they have loaded. From then on the servers refuse pushes of the worker's earlier processes. A worker
  // calls it before its first push, and again after a LoadCheckpoint of any client, because the checkpoint
  // may hold pushes of this epoch. No push of this client may be under way, and failed ones of earlier epochs
  // cannot be retried any more.
  //
  // Aborted: another process takes epochs of the same worker at the same time. Unimplemented: a server of an
  // older version.
  virtual absl::Status StartPushEpoch() = 0;

  // Makes every server write its part of a checkpoint to `directory`, which all processes must see. Pushes
  // this client's deferred gradients first. Returns the files as the servers wrote them; those of servers of
  // an older version have a name only. The caller must ensure that no push is under way (barrier), and must
  // commit the checkpoint (ps/checkpoint).
  virtual absl::StatusOr<std::vector<v1::SavedFile>> SaveCheckpoint(const std::string& directory,
                                                                    const SaveOptions& options) = 0;
  // Makes every server fix the contents of its part of a checkpoint, and returns. Pushes may go on at once.
  // SaveCheckpoint with the same directory and SaveOptions::begun then writes the files meanwhile. It must be
  // called within 30 s; the directory need not exist before. In all other respects as SaveCheckpoint;
  // options.begun must be false. Unimplemented: a server of an older version; others may have begun.
  // AlreadyExists: a server is still writing a checkpoint that was begun before.
  virtual absl::Status BeginCheckpoint(const std::string& directory, const SaveOptions& options) = 0;
  absl::StatusOr<std::vector<v1::SavedFile>> SaveCheckpoint(const std::string& directory) {
    return SaveCheckpoint(directory, SaveOptions());
  }
  // Drops the copies and the deferred gradients of all caches of this client. To be called on every worker
  // when another one has loaded a checkpoint: LoadCheckpoint does it for its own client. Does not block.
  virtual void DropCached() = 0;
  // Makes every server load its rows from a checkpoint. After an error, no table has changed on the servers
  // that report one. This client's caches drop their rows and deferred gradients, even after an error. Caches
  // of other clients drop their rows at the next response of a server.
  virtual absl::Status LoadCheckpoint(const std::string& directory) = 0;

  // These two receive the responses of a call in the thread that waits for it, which saves a hand-over
  // between threads. The thread calls PrepareInlinePoll, starts the call, and calls InlinePoll once, which
  // returns when `over` returns true, or earlier. Then it waits for the call. Pull and Push do all that.
  virtual void PrepareInlinePoll() {}
  virtual void InlinePoll(absl::FunctionRef<bool()> over) {}
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_CLIENT_H_
