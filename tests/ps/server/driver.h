// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_SERVER_DRIVER_H_
#define TANDEM_TESTS_PS_SERVER_DRIVER_H_

// Calls a parameter server's handlers without a network. The calls are objects of the test, which decides
// when each one starts, what its deadline is, and when to look at its response.

#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "base/status.h"
#include "ps/server/parameter_server.h"
#include "ps/table.h"
#include "rpc/service.h"
#include "rpc/wire/bulk_codec.h"
#include "tandem/v1/subscriptions.pb.h"

namespace tandem::ps::testing {

// A call that stores its response.
class TestCall : public rpc::ServerCall {
 public:
  TestCall(Bytes request, absl::Time deadline) : request_(std::move(request)), deadline_(deadline) {}
  const Bytes& request() const override { return request_; }
  const std::string& peer() const override { return peer_; }
  absl::Time deadline() const override { return deadline_; }
  bool IsCancelled() const override { return false; }
  void Finish(absl::StatusOr<Bytes> response) override {
    TANDEM_CHECK(!done_.HasBeenNotified());  // exactly once
    response_ = std::move(response);
    done_.Notify();
  }
  bool answered() const { return done_.HasBeenNotified(); }
  // Blocks until the call is finished, at most one minute, and returns the response.
  absl::StatusOr<Bytes> Wait() {
    if (!done_.WaitForNotificationWithTimeout(absl::Minutes(1)))
      return absl::UnknownError("no answer in a minute");
    return response_;
  }

 private:
  const Bytes request_;
  const absl::Time deadline_;
  const std::string peer_ = "test";
  absl::StatusOr<Bytes> response_ = absl::UnknownError("not answered");
  absl::Notification done_;
};

template <typename T>
void AppendArray(const std::vector<T>& values, std::string* payload) {
  payload->append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

struct PullOf {
  std::string table;
  std::vector<uint64_t> ids;
  v1::Pooling pooling = v1::NONE;
  std::vector<uint32_t> offsets;
};
struct PushOf {
  std::string table;
  uint32_t dim;
  std::vector<uint64_t> ids;
  std::vector<float> gradients;
  v1::Pooling pooling = v1::NONE;
  std::vector<uint32_t> offsets;
  uint64_t pulled_version = 0;
  float learning_rate_factor = 0.0f;
  v1::PushPlace place;
  std::vector<uint64_t> segment_ends;
  uint32_t occurrence_bytes = 0;
  std::string occurrences;  // as they are in the payload
};
struct PushTag {
  uint32_t worker = 0;
  uint64_t step = 0;
  uint64_t sequence = 0;  // 0: step + 1
  uint64_t epoch = 1;
  float learning_rate_factor = 0.0f;
  float batch_share = 0.0f;
};

struct Rows {
  std::vector<std::vector<float>> slices;
  std::vector<uint64_t> versions;
};

inline Bytes PullRequestBytes(uint32_t worker, uint64_t step, const std::vector<PullOf>& parts,
                              bool read_only = false) {
  v1::PullRequest header;
  header.set_worker(worker);
  header.set_step(step);
  header.set_read_only(read_only);
  std::string payload;
  for (const PullOf& part : parts) {
    v1::PullSlice* slice = header.add_slices();
    slice->set_table(part.table);
    slice->set_num_ids(part.ids.size());
    slice->set_pooling(part.pooling);
    AppendArray(part.ids, &payload);
    if (part.pooling != v1::NONE) {
      slice->set_num_bags(part.offsets.size() - 1);
      AppendArray(part.offsets, &payload);
    }
  }
  return rpc::EncodeBulk(header, Bytes(std::move(payload)));
}

inline Bytes PushRequestBytes(const PushTag& tag, const std::vector<PushOf>& parts) {
  v1::PushRequest header;
  header.set_worker(tag.worker);
  header.set_epoch(tag.epoch);
  header.set_sequence(tag.sequence == 0 ? tag.step + 1 : tag.sequence);
  header.set_step(tag.step);
  header.set_learning_rate_factor(tag.learning_rate_factor);
  header.set_batch_share(tag.batch_share);
  std::string payload;
  for (const PushOf& part : parts) {
    v1::PushSlice* slice = header.add_slices();
    slice->set_table(part.table);
    slice->set_num_ids(part.ids.size());
    slice->set_dim(part.dim);
    slice->set_pooling(part.pooling);
    slice->set_pulled_version(part.pulled_version);
    slice->set_learning_rate_factor(part.learning_rate_factor);
    if (part.place.update() != 0) *slice->mutable_place() = part.place;
    slice->mutable_segment_ends()->Add(part.segment_ends.begin(), part.segment_ends.end());
    AppendArray(part.ids, &payload);
    if (part.pooling != v1::NONE) {
      slice->set_num_bags(part.offsets.size() - 1);
      AppendArray(part.offsets, &payload);
    }
    AppendArray(part.gradients, &payload);
    slice->set_occurrence_bytes(part.occurrence_bytes);
    payload += part.occurrences;
  }
  return rpc::EncodeBulk(header, Bytes(std::move(payload)));
}

inline absl::StatusOr<Rows> ParseRows(const absl::StatusOr<Bytes>& response) {
  TANDEM_RETURN_IF_ERROR(response);
  v1::PullResponse header;
  Bytes payload;
  TANDEM_RETURN_IF_ERROR(rpc::DecodeBulk(*response, &header, &payload));
  Rows rows;
  BytesReader reader(payload);
  for (const v1::PullSliceResult& slice : header.slices()) {
    std::vector<float>& values = rows.slices.emplace_back(slice.num_rows() * slice.dim());
    TANDEM_CHECK(reader.Copy(values.data(), values.size() * sizeof(float)));
    rows.versions.push_back(slice.version());
  }
  TANDEM_CHECK(reader.remaining() == 0);
  return rows;
}

// Owns one server and calls its handlers.
class Driver {
 public:
  explicit Driver(const ParameterServerOptions& options = {}) : options_(options), server_(options) {
    service_ = server_.service();
    subscriptions_ = server_.subscriptions_service();
  }

  std::shared_ptr<TestCall> Start(absl::string_view method, Bytes request,
                                  absl::Time deadline = absl::InfiniteFuture()) {
    auto call = std::make_shared<TestCall>(std::move(request), deadline);
    for (const rpc::Method& candidate : service_.methods) {
      if (candidate.name != method) continue;
      candidate.handler(call);
      return call;
    }
    call->Finish(absl::UnimplementedError(method));
    return call;
  }
  std::shared_ptr<TestCall> StartChanges(const v1::GetChangesRequest& request,
                                         absl::Time deadline = absl::InfiniteFuture()) {
    auto call = std::make_shared<TestCall>(Bytes(request.SerializeAsString()), deadline);
    subscriptions_.methods.front().handler(call);
    return call;
  }
  template <typename Response, typename Request>
  absl::StatusOr<Response> Call(absl::string_view method, const Request& request) {
    absl::StatusOr<Bytes> answer = Start(method, Bytes(request.SerializeAsString()))->Wait();
    TANDEM_RETURN_IF_ERROR(answer);
    Response response;
    TANDEM_CHECK(response.ParseFromString(answer->Flatten()));
    return response;
  }

  absl::Status CreateTable(const v1::TableConfig& config, uint64_t first_step = 0) {
    v1::CreateTableRequest request;
    request.set_first_step(first_step);
    *request.mutable_config() = config;
    return Call<v1::CreateTableResponse>("CreateTable", request).status();
  }
  // Returns whether there was such a table.
  absl::StatusOr<bool> DropTable(const std::string& table) {
    v1::DropTableRequest request;
    request.set_table(table);
    TANDEM_ASSIGN_OR_RETURN(const auto response, Call<v1::DropTableResponse>("DropTable", request));
    return response.existed();
  }
  absl::Status SetUpdateMode(const std::string& table, const v1::UpdateMode& mode) {
    v1::SetUpdateModeRequest request;
    request.set_table(table);
    *request.mutable_update_mode() = mode;
    return Call<v1::SetUpdateModeResponse>("SetUpdateMode", request).status();
  }
  absl::Status Flush(const std::string& table) {
    v1::FlushRequest request;
    request.set_table(table);
    return Call<v1::FlushResponse>("Flush", request).status();
  }
  std::shared_ptr<TestCall> StartPull(uint32_t worker, uint64_t step, const std::vector<PullOf>& parts,
                                      bool read_only = false, absl::Time deadline = absl::InfiniteFuture()) {
    return Start("Pull", PullRequestBytes(worker, step, parts, read_only), deadline);
  }
  absl::StatusOr<Rows> Pull(uint32_t worker, uint64_t step, const std::vector<PullOf>& parts,
                            bool read_only = false) {
    return ParseRows(StartPull(worker, step, parts, read_only)->Wait());
  }
  std::shared_ptr<TestCall> StartPush(const PushTag& tag, const std::vector<PushOf>& parts) {
    return Start("Push", PushRequestBytes(tag, parts));
  }
  absl::StatusOr<v1::PushResponse> Push(const PushTag& tag, const std::vector<PushOf>& parts) {
    return ParsePushResponse(StartPush(tag, parts)->Wait());
  }
  static absl::StatusOr<v1::PushResponse> ParsePushResponse(const absl::StatusOr<Bytes>& answer) {
    TANDEM_RETURN_IF_ERROR(answer);
    v1::PushResponse response;
    TANDEM_CHECK(response.ParseFromString(answer->Flatten()));
    return response;
  }
  v1::TableInfo Table(const std::string& name) {
    absl::StatusOr<v1::ListTablesResponse> tables =
        Call<v1::ListTablesResponse>("ListTables", v1::ListTablesRequest());
    TANDEM_CHECK(tables.ok());
    for (const v1::TableInfo& table : tables->tables()) {
      if (table.config().name() == name) return table;
    }
    return {};
  }
  absl::StatusOr<v1::SaveCheckpointResponse> Save(const std::string& directory, const std::string& name = "",
                                                  const std::string& base = "") {
    v1::SaveCheckpointRequest request;
    request.set_directory(directory);
    request.set_name(name);
    request.set_base(base);
    return Call<v1::SaveCheckpointResponse>("SaveCheckpoint", request);
  }
  // Begins to save a checkpoint, which FinishSave waits for.
  absl::Status BeginSave(const std::string& directory, const std::string& name = "",
                         const std::string& base = "") {
    v1::BeginCheckpointRequest request;
    request.set_directory(directory);
    request.set_name(name);
    request.set_base(base);
    return Call<v1::BeginCheckpointResponse>("BeginCheckpoint", request).status();
  }
  absl::StatusOr<v1::SaveCheckpointResponse> FinishSave(const std::string& directory) {
    v1::SaveCheckpointRequest request;
    request.set_directory(directory);
    request.set_begun(true);
    return Call<v1::SaveCheckpointResponse>("SaveCheckpoint", request);
  }
  absl::StatusOr<v1::LoadCheckpointResponse> Load(const std::string& directory) {
    v1::LoadCheckpointRequest request;
    request.set_directory(directory);
    return Call<v1::LoadCheckpointResponse>("LoadCheckpoint", request);
  }

  ParameterServer& server() { return server_; }
  const ParameterServerOptions& options() const { return options_; }

 private:
  const ParameterServerOptions options_;
  ParameterServer server_;
  rpc::Service service_;
  rpc::Service subscriptions_;
};

inline v1::TableConfig TestTable(const std::string& name, uint32_t dim, uint32_t workers, v1::UpdateMode mode,
                                 v1::OptimizerConfig optimizer = Adagrad(0.1f, 0.1f)) {
  v1::TableConfig config = EmbeddingTable(name, dim, std::move(optimizer), Uniform(-0.5f, 0.5f));
  config.set_num_workers(workers);
  config.set_seed(7);
  *config.mutable_update_mode() = mode;
  return config;
}

}  // namespace tandem::ps::testing

#endif  // TANDEM_TESTS_PS_SERVER_DRIVER_H_
