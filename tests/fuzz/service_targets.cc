// SPDX-License-Identifier: Apache-2.0
// The handlers of the services that processes outside of a job may reach, and of the link between copies of a
// shard. An input is the number of a method and a request.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/membership/local_membership.h"
#include "cluster/store/store_service.h"
#include "ps/failover/receiver.h"
#include "ps/log/record.h"
#include "replay/server/replay_server.h"
#include "replay/table/table_options.h"
#include "replay/wire/messages.h"
#include "rpc/diagnostics/trace_codec.h"
#include "rpc/service.h"
#include "rpc/wire/bulk_codec.h"
#include "tandem/v1/diagnostics.pb.h"
#include "tandem/v1/failover.pb.h"
#include "tandem/v1/replay.pb.h"
#include "tandem/v1/store.pb.h"
#include "tandem/v1/weights.pb.h"
#include "tests/fuzz/byte_source.h"
#include "weights/server/weight_server.h"
#include "weights/wire/messages.h"

namespace tandem::fuzz {
namespace {

namespace v1 = ::tandem::v1;

// A call whose answer nobody waits for.
class Call : public rpc::ServerCall {
 public:
  explicit Call(Bytes request) : request_(std::move(request)) {}
  const Bytes& request() const override { return request_; }
  const std::string& peer() const override { return peer_; }
  absl::Time deadline() const override { return deadline_; }
  bool IsCancelled() const override { return false; }
  void Finish(absl::StatusOr<Bytes>) override { TANDEM_CHECK(!finished_.exchange(true)); }

 private:
  const Bytes request_;
  const std::string peer_ = "fuzzer";
  const absl::Time deadline_ = MonotonicNow() + absl::Milliseconds(1);
  std::atomic<bool> finished_{false};
};

// A server for the inputs of a process. It is made anew now and then, so that what earlier inputs have left
// does not grow.
template <typename Server>
class Served {
 public:
  void Run(Input input) {
    if (calls_++ % kCallsOfAServer == 0) {
      server_.reset();
      server_ = std::make_unique<Server>();
    }
    ByteSource source(input);
    rpc::Service& service = server_->service;
    const rpc::Method& method = service.methods[source.Take<uint8_t>() % service.methods.size()];
    method.handler(std::make_shared<Call>(Bytes(ToString(source.Rest()))));
  }

 private:
  static constexpr uint64_t kCallsOfAServer = 200;
  uint64_t calls_ = 0;
  std::unique_ptr<Server> server_;
};
template <typename Server>
Served<Server>& ServedOf() {
  static Served<Server> served;
  return served;
}

// Makes seeds of requests to the methods of a service.
class Seeds {
 public:
  explicit Seeds(const rpc::Service& service) : service_(service) {}
  void Add(const std::string& method, const google::protobuf::MessageLite& request,
           std::string payload = "") {
    for (size_t i = 0; i < service_.methods.size(); ++i) {
      if (service_.methods[i].name != method) continue;
      const Bytes wire = payload.empty() ? Bytes(request.SerializeAsString())
                                         : rpc::EncodeBulk(request, Bytes(std::move(payload)));
      seeds_.push_back(absl::StrCat(std::string(1, static_cast<char>(i)), wire.Flatten()));
      return;
    }
    TANDEM_CHECK_MSG(false, method);
  }
  std::vector<std::string> seeds() const { return seeds_; }

 private:
  const rpc::Service& service_;
  std::vector<std::string> seeds_;
};

struct StoreUnderTest {
  cluster::MemoryStore store{{.keys = 1000, .bytes = 1 << 20, .waits = 100, .wait_bytes = 1 << 16}};
  cluster::LocalMembership membership{Clock::Real()};
  cluster::StoreService handlers{&store, &membership};
  rpc::Service service = handlers.MakeService();
};

struct WeightsUnderTest {
  weights::WeightServer server{{.store = {.max_bytes = 1 << 20, .max_models = 16, .max_watches = 100}}};
  rpc::Service service = server.service();
};

struct ReplayUnderTest {
  ReplayUnderTest() {
    TANDEM_CHECK(
        server->CreateTable(replay::ToProto(replay::TableOptions::Prioritized("first", 100, 1))).ok());
    TANDEM_CHECK(server->CreateTable(replay::ToProto(replay::TableOptions::Queue("second", 100))).ok());
    TANDEM_CHECK(server->CreateTable(replay::ToProto(replay::TableOptions::PacedQueue("paced", 4, 2))).ok());
  }
  std::unique_ptr<replay::ReplayServer> server =
      replay::ReplayServer::Make(
          {.max_memory_bytes = 1 << 20, .max_parked_bytes = 1 << 16, .max_message_bytes = 1 << 16})
          .value();
  rpc::Service service = server->service();
};

// Takes records and does nothing with them.
class NoRecords : public ps::ReceivedRecords {
 public:
  absl::Status Apply(const ps::Record&, const std::shared_ptr<const void>&) override {
    return absl::OkStatus();
  }
  absl::Status Complete() override { return absl::OkStatus(); }
};

std::string RecordOf(ps::RecordKind kind, uint64_t position, const std::string& body) {
  std::string record;
  ps::AppendRecord(kind, position, 0, Bytes(body), &record);
  return record;
}

}  // namespace

void FuzzStore(Input input) { ServedOf<StoreUnderTest>().Run(input); }
std::vector<std::string> StoreSeeds() {
  StoreUnderTest server;
  Seeds seeds(server.service);
  v1::StoreSetRequest set;
  set.set_key("key");
  set.set_value("value");
  seeds.Add("Set", set);
  v1::StoreGetRequest get;
  get.set_key("key");
  seeds.Add("Get", get);
  v1::StoreAddRequest add;
  add.set_key("counter");
  add.set_delta(3);
  seeds.Add("Add", add);
  v1::StoreAppendRequest append;
  append.set_key("key");
  append.set_value("more");
  append.set_request_id("request");
  seeds.Add("Append", append);
  v1::StorePushRequest push;
  push.set_queue("queue");
  push.set_value("item");
  seeds.Add("Push", push);
  v1::StorePopRequest pop;
  pop.set_queue("queue");
  seeds.Add("Pop", pop);
  v1::JoinRequest join;
  join.set_member("worker/0");
  seeds.Add("Join", join);
  v1::HeartbeatRequest beat;
  beat.set_member("worker/0");
  seeds.Add("Heartbeat", beat);
  seeds.Add("Members", v1::MembersRequest());
  seeds.Add("List", v1::StoreListRequest());
  return seeds.seeds();
}

void FuzzWeights(Input input) { ServedOf<WeightsUnderTest>().Run(input); }
std::vector<std::string> WeightsSeeds() {
  WeightsUnderTest server;
  Seeds seeds(server.service);
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const auto model = weights::MakeModel({{"weight", {2, 3}, values}}).value();
  model->info.model = "policy";
  model->info.version = {.epoch = 1, .number = 1};
  v1::StartWeightsEpochRequest start;
  start.set_model("policy");
  start.set_publisher("learner/0");
  start.set_token(7);
  seeds.Add("StartEpoch", start);
  v1::PublishWeightsRequest publish;
  *publish.mutable_info() = weights::ToProto(model->info);
  const std::string payload = weights::PayloadOf(model).Flatten();
  seeds.Add("Publish", publish, payload);
  v1::BeginWeightsUploadRequest begin;
  begin.set_upload(7);
  *begin.mutable_info() = publish.info();
  seeds.Add("BeginUpload", begin);
  v1::PutWeightsPieceRequest piece;
  piece.set_upload(7);
  seeds.Add("PutPiece", piece, payload);
  publish.set_upload(7);
  publish.mutable_info()->clear_tensors();
  seeds.Add("Publish", publish);
  v1::WeightsHeadRequest head;
  head.set_model("policy");
  seeds.Add("Head", head);
  v1::PullWeightsRequest pull;
  pull.set_model("policy");
  seeds.Add("Pull", pull);
  seeds.Add("ListModels", v1::ListWeightsRequest());
  return seeds.seeds();
}

void FuzzReplayService(Input input) { ServedOf<ReplayUnderTest>().Run(input); }
std::vector<std::string> ReplayServiceSeeds() {
  ReplayUnderTest server;
  Seeds seeds(server.service);
  v1::CreateReplayTableRequest create;
  *create.mutable_options() = replay::ToProto(replay::TableOptions::Queue("third", 10));
  seeds.Add("CreateTable", create);
  v1::ReplayInsertRequest insert;
  insert.set_table("first");
  insert.set_writer("actor/0");
  insert.set_incarnation(1);
  insert.set_sequence(1);
  v1::ReplayColumn& column = *insert.add_step_columns();
  column.set_name("id");
  column.set_dtype(static_cast<decltype(column.dtype())>(DType::kI64));
  v1::ReplayItemColumn& of_item = *insert.add_item_columns();
  of_item.set_name("id");
  v1::ReplayChunk& chunk = *insert.add_chunks();
  chunk.set_key(1);
  chunk.set_steps(2);
  insert.add_chunk_keys(1);
  v1::ReplayItem& item = *insert.add_items();
  for (const uint32_t n : {0, 0, 2}) item.add_slices(n);
  item.add_slices_end(1);
  seeds.Add("Insert", insert, std::string(16, '\x01'));
  insert.set_table("paced");
  seeds.Add("Insert", insert, std::string(16, '\x01'));
  v1::ReplaySampleRequest sample;
  sample.set_table("first");
  sample.set_batch(2);
  seeds.Add("Sample", sample);
  v1::ReplayAdmitRequest admit;
  admit.set_table("paced");
  seeds.Add("Admit", admit);
  v1::ReplayCommitRequest commit;
  commit.set_table("paced");
  seeds.Add("Commit", commit);
  v1::ReplayUpdatePrioritiesRequest update;
  update.set_table("first");
  seeds.Add("UpdatePriorities", update);
  v1::ReplayPeekRequest peek;
  peek.set_table("first");
  seeds.Add("Peek", peek);
  seeds.Add("ListTables", v1::ListReplayTablesRequest());
  return seeds.seeds();
}

// An input is one message from a primary to a copy: the copy has a first message, and takes this one as the
// second.
void FuzzAppend(Input input) {
  v1::AppendRequest header;
  Bytes payload;
  if (!rpc::DecodeBulk(Bytes(ToString(input)), &header, &payload).ok()) return;
  NoRecords records;
  ps::Receiver receiver({.shard = 1, .max_unapplied_bytes = 1 << 16, .window = 4}, &records);
  receiver.Open(/*term=*/3, "p", "f");
  const auto send = [&](const v1::AppendRequest& request, Bytes bytes) {
    receiver.Append(request, std::move(bytes), [](absl::StatusOr<v1::AppendResponse>) {});
  };
  v1::AppendRequest first;
  first.set_shard(1);
  first.set_term(3);
  first.set_primary("p");
  first.set_follower("f");
  first.set_number(1);
  send(first, Bytes(RecordOf(ps::RecordKind::kState, 10, "state")));
  send(header, std::move(payload));
  receiver.Close("the end of the test");
  absl::Notification applied;
  receiver.ApplyAll([&](const absl::Status&) { applied.Notify(); });
  applied.WaitForNotification();
}
std::vector<std::string> AppendSeeds() {
  v1::AppendRequest header;
  header.set_shard(1);
  header.set_term(3);
  header.set_primary("p");
  header.set_follower("f");
  header.set_number(2);
  std::vector<std::string> seeds;
  for (const std::string& payload :
       {RecordOf(ps::RecordKind::kPush, 11, "push"),
        RecordOf(ps::RecordKind::kPush, 11, "push") + RecordOf(ps::RecordKind::kFlush, 12, "")}) {
    seeds.push_back(rpc::EncodeBulk(header, Bytes(payload)).Flatten());
  }
  return seeds;
}

// An input is the answer of a process that was asked for a recording.
void FuzzRecording(Input input) {
  v1::TraceRecording recording;
  if (recording.ParseFromArray(input.data(), static_cast<int>(input.size())))
    (void)rpc::DecodeTrace(recording);
}
std::vector<std::string> RecordingSeeds() {
  static constexpr trace::Kind kPull{"pull", "ps", {"bytes", "rows"}, /*may_overlap=*/true};
  static constexpr trace::Kind kGather{"gather", "train"};
  trace::Recording recording{.from_ns = 1000, .to_ns = 9000};
  recording.threads.push_back({.id = 7, .name = "compute", .lost = 3});
  recording.threads.back().events = {{&kGather, 1500, 1600, {}, {}},
                                     {&kPull, 1100, 1700, {99, trace::Flow::End::kSends}, {-5, 6, 7}}};
  return {rpc::EncodeTrace(recording, 0).SerializeAsString()};
}

}  // namespace tandem::fuzz
