// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_PY_CLIENT_H_
#define TANDEM_PYTHON_SRC_PY_CLIENT_H_

// The client of parameter servers, as Python sees it.

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nanobind/nanobind.h"
#include "ps/client/client.h"
#include "python/src/batch_lookup.h"
#include "python/src/call.h"
#include "python/src/connection.h"
#include "python/src/helper_thread.h"
#include "python/src/process.h"

namespace tandem::python {

// A connection that a call of Python uses: close() does not destroy it meanwhile. Destroyed with the GIL.
class ConnectionInUse {
 public:
  ConnectionInUse(std::shared_ptr<Connection> connection, CallCounter::Token call)
      : connection_(std::move(connection)), call_(std::move(call)) {}
  ConnectionInUse(ConnectionInUse&& other) = default;
  ~ConnectionInUse();

  ps::Client* client() const { return connection_->client(); }
  const std::shared_ptr<Connection>& connection() const { return connection_; }
  // Hands out the token by which close() waits for the call. Called once.
  CallCounter::Token TakeCall() { return std::move(call_); }

 private:
  std::shared_ptr<Connection> connection_;
  CallCounter::Token call_;
};

class InlineWait;

// A client. Its methods require the GIL, release it while they block, and throw the exceptions of errors.h;
// Ctrl-C ends their waits. python/tandem/client.py is the only caller.
class PyClient {
 public:
  explicit PyClient(std::unique_ptr<Connection> connection);
  ~PyClient();

  // Tells the job how the program ends (connection.h). Waits for calls under way, which end by their own
  // deadlines, unless the program fails. If a signal handler raises meanwhile, the calls are cancelled. While
  // another thread waits for such a call, that thread releases the connection.
  void Close(int ending, const std::string& reason);
  bool closed() const { return connection_ == nullptr; }

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  int num_servers() const { return num_servers_; }
  std::vector<std::string> addresses() { return Use().connection()->addresses(); }

  // ---- Pulls and pushes (client_calls.cc).

  // `keep` are the arrays of `parts` (client_parts.h). Pull returns the versions.
  std::shared_ptr<Call> StartPull(uint64_t step, bool read_only, nanobind::list parts, nanobind::object keep);
  nanobind::list Pull(uint64_t step, bool read_only, nanobind::list parts, nanobind::object keep);
  // The most common pull: ids without bags of one table. Returns the version, or None if an array is not as
  // C++ needs it and has to be checked and converted in Python. Calls SetPulled.
  nanobind::object PullRows(uint64_t step, bool read_only, const std::string& table, uint32_t dim,
                            nanobind::handle ids, nanobind::handle out);
  // The version of each table's latest pull, for pushes that name none. Pulls are numbered when they start,
  // because their results may be read in another order. The GIL guards what these functions use.
  uint64_t NextPull() { return next_pull_++; }
  void SetPulled(const std::string& table, uint64_t number, nanobind::tuple version);
  nanobind::tuple Pulled(const std::string& table) const;
  // Raises the error of a push that could not be started: then no server has seen anything of it.
  std::shared_ptr<Call> StartPush(uint64_t step, nanobind::list parts, float learning_rate_factor,
                                  float batch_share);
  // Calls `started` once the push has been started.
  void Push(uint64_t step, nanobind::list parts, float learning_rate_factor, float batch_share,
            nanobind::callable started);
  // These pull and push the embeddings of a batch (batch_lookup.h). StartGradients raises like StartPush.
  std::shared_ptr<Call> StartLookup(uint64_t step, bool read_only, std::shared_ptr<BatchLookup> lookup);
  void PullLookup(uint64_t step, bool read_only, std::shared_ptr<BatchLookup> lookup);
  std::shared_ptr<Call> StartGradients(uint64_t step, const std::vector<PushSource>& sources,
                                       float learning_rate_factor, float batch_share);

  // ---- Tables (client_tables.cc).

  void CreateTable(const std::string& json, uint64_t first_step);
  void DropTable(const std::string& table);
  void OpenTable(const std::string& table);
  void SetUpdateMode(const std::string& table, const std::string& text);
  void SetWire(const std::string& table, int pull_values, int push_values);
  void SetCache(const std::string& table, size_t bytes, uint32_t max_uses, uint64_t max_age,
                uint32_t push_bound);
  void SetReadCache(const std::string& table, size_t bytes, double seconds);
  void ClearReadCache(const std::string& table);
  nanobind::dict ReadCacheStatistics(const std::string& table);
  nanobind::dict FollowerReads();
  // Returns (ids [n], rows with their state [n, floats], next bucket, next id, whether the scan is at its
  // end).
  nanobind::tuple ScanRows(const std::string& table, uint32_t bucket, uint64_t first_id, size_t max_rows);
  // Writes the rows at `rows`, [count x dim]; the optimizer's state of each begins anew.
  void WriteRows(const std::string& config_json, uint64_t ids, size_t count, uint64_t rows);
  void Flush(const std::string& table);
  void PushDeferred();
  // Drops what belongs to rows that a checkpoint has replaced: copies, deferred gradients, the versions of
  // pulls.
  void DropCached();
  std::vector<std::string> ListTables(uint32_t hottest);
  std::vector<std::string> ListServers();
  std::vector<std::string> SaveCheckpoint(const std::string& directory);
  void LoadCheckpoint(const std::string& directory);
  void StartPushEpoch();

 private:
  struct StartedPush {
    std::shared_ptr<Call> call;
    bool started;  // false: the call has ended with the error, and no server has seen the push
  };

  // Returns the connection, or raises if the client was closed, if the process was forked, or if the job has
  // failed.
  ConnectionInUse Use();
  // Does the same for a call that pushes or writes rows: the connection is ready for it
  // (Connection::PreparePush).
  ConnectionInUse UseToPush();
  // Runs a call that blocks, and ends by its own deadline, on a helper thread; so `function` must own what it
  // uses.
  template <typename Function>
  auto Blocking(Function function) {
    ConnectionInUse in_use = Use();
    struct Held {
      CallCounter::Token call;
      std::shared_ptr<Connection>
          connection;  // released before the call ends: close() has the last reference
    };
    return OnHelperThread([held = Held{in_use.TakeCall(), in_use.connection()},
                           function = std::move(function)] { return function(*held.connection); });
  }

  // These start a call, and receive its responses if `wait` is not null.
  std::shared_ptr<Call> StartPull(ConnectionInUse* connection, uint64_t step, bool read_only,
                                  std::vector<ps::PullPart> parts, nanobind::object keep,
                                  InlineWait* wait = nullptr);
  StartedPush StartPush(ConnectionInUse* connection, uint64_t step, std::vector<ps::PushPart> parts,
                        const ps::PushOptions& options, InlineWait* wait = nullptr);
  std::shared_ptr<Call> StartLookup(ConnectionInUse* connection, uint64_t step, bool read_only,
                                    std::shared_ptr<BatchLookup> lookup, InlineWait* wait = nullptr);

  const uint64_t made_ = ForkGeneration();
  const int rank_;
  const int world_size_;
  const int num_servers_;
  std::shared_ptr<Connection> connection_;  // null: closed
  const std::shared_ptr<ReleasedObjects> released_;
  uint64_t next_pull_ = 0;
  std::unordered_map<std::string, std::pair<uint64_t, nanobind::tuple>> pulled_;
};

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_PY_CLIENT_H_
