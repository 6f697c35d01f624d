// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/ps_under_test.h"

#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status.h"
#include "ps/table.h"
#include "ps/wire/id_codec.h"
#include "ps/wire/value_codec.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::fuzz {
namespace {

namespace v1 = ::tandem::v1;

class FuzzCall : public rpc::ServerCall {
 public:
  FuzzCall(Bytes request, bool has_response_memory)
      : request_(std::move(request)), has_response_memory_(has_response_memory) {}
  const Bytes& request() const override { return request_; }
  const std::string& peer() const override { return peer_; }
  absl::Time deadline() const override { return absl::InfiniteFuture(); }
  bool IsCancelled() const override { return false; }
  void Finish(absl::StatusOr<Bytes> response) override {
    TANDEM_CHECK(!done_.HasBeenNotified());  // exactly once
    response_ = std::move(response);
    done_.Notify();
  }
  // Memory of exactly that size, so that a sanitizer detects a write past it.
  std::shared_ptr<char> ResponseMemory(size_t bytes) override {
    constexpr std::align_val_t kAligned{64};
    if (!has_response_memory_) return nullptr;
    return {static_cast<char*>(::operator new(bytes, kAligned)),
            [](char* memory) { ::operator delete(memory, kAligned); }};
  }
  absl::StatusOr<Bytes> Wait() {
    TANDEM_CHECK_MSG(done_.WaitForNotificationWithTimeout(absl::Seconds(20)), "no answer");
    return response_;
  }

 private:
  const Bytes request_;
  const bool has_response_memory_;
  const std::string peer_ = "fuzz";
  absl::StatusOr<Bytes> response_ = absl::UnknownError("not answered");
  absl::Notification done_;
};

v1::TableConfig Async(v1::TableConfig config) {
  *config.mutable_update_mode() = ps::Async();
  config.set_num_workers(PsUnderTest::kWorkers);
  return config;
}

std::vector<v1::TableConfig> Configs() {
  std::vector<v1::TableConfig> configs;
  configs.push_back(Async(ps::EmbeddingTable("sgd", 4, ps::Sgd(0.01f), ps::Uniform(-1, 1))));
  configs.push_back(Async(ps::EmbeddingTable("half", 3, ps::Adagrad(0.1f), ps::Normal(0, 1))));
  configs.back().set_row_type(v1::TableConfig::F16);
  configs.push_back(Async(ps::EmbeddingTable("adam", 1, ps::Adam(0.01f), ps::Zeros())));
  *configs.back().mutable_admission() = ps::AdmitAfter(2, 1024);
  configs.push_back(Async(ps::DenseTable("dense", 18, ps::Momentum(0.1f), ps::Constant(1))));
  configs.back().set_dim(5);
  return configs;
}

// The check is slow with many ids; the server is created again before.
constexpr size_t kMostIds = 300;

bool AllFinite(const std::string& floats) {
  for (size_t at = 0; at < floats.size(); at += sizeof(float)) {
    float value;
    std::memcpy(&value, floats.data() + at, sizeof(value));
    if (!std::isfinite(value)) return false;
  }
  return true;
}

}  // namespace

const std::vector<std::string>& PsUnderTest::Tables() {
  static const auto* const names = new std::vector<std::string>{"sgd", "half", "adam", "dense", "none"};
  return *names;
}

uint32_t PsUnderTest::DimOf(const std::string& table) {
  for (const v1::TableConfig& config : Configs()) {
    if (config.name() == table) return config.dim();
  }
  return 1;
}

void PsUnderTest::Restart() {
  if (server_ != nullptr) server_->Stop();
  server_ = std::make_unique<ps::ParameterServer>(
      ps::ParameterServerOptions{.num_buckets = 16, .max_message_bytes = size_t{1} << 22});
  handlers_.clear();
  const rpc::Service service = server_->service();
  for (const rpc::Method& method : service.methods) handlers_[method.name] = method.handler;
  seen_.clear();
  for (uint64_t& sequence : sequences_) sequence = 1;
  for (const v1::TableConfig& config : Configs()) {
    v1::CreateTableRequest request;
    *request.mutable_config() = config;
    TANDEM_CHECK(Send("CreateTable", Bytes(request.SerializeAsString())).ok());
    seen_[config.name()] = {0, 1, 2, 3};
  }
  before_ = Look();
}

absl::StatusOr<Bytes> PsUnderTest::Send(const std::string& method, Bytes request, bool has_response_memory) {
  auto call = std::make_shared<FuzzCall>(std::move(request), has_response_memory);
  handlers_.at(method)(call);
  return call->Wait();
}

std::map<std::string, PsUnderTest::Snapshot> PsUnderTest::Look() {
  std::map<std::string, Snapshot> tables;
  v1::PullRequest pull;
  pull.set_read_only(true);
  std::string payload;
  for (const auto& [name, ids] : seen_) {
    v1::PullSlice* slice = pull.add_slices();
    slice->set_table(name);
    slice->set_num_ids(ids.size());
    for (const uint64_t id : ids) payload.append(reinterpret_cast<const char*>(&id), sizeof(id));
  }
  const absl::StatusOr<Bytes> rows = Send("Pull", rpc::EncodeBulk(pull, Bytes(std::move(payload))));
  TANDEM_CHECK_MSG(rows.ok(), rows.status().message());
  v1::PullResponse header;
  Bytes values;
  TANDEM_CHECK(rpc::DecodeBulk(*rows, &header, &values).ok());
  const std::string flat = values.Flatten();
  size_t at = 0;
  for (int s = 0; s < header.slices_size(); ++s) {
    const v1::PullSliceResult& slice = header.slices(s);
    Snapshot& snapshot = tables[pull.slices(s).table()];
    const size_t bytes = slice.num_rows() * slice.dim() * sizeof(float);
    snapshot.values = flat.substr(at, bytes);
    snapshot.version = slice.version();
    at += bytes;
  }
  const absl::StatusOr<Bytes> listed = Send("ListTables", Bytes(v1::ListTablesRequest().SerializeAsString()));
  v1::ListTablesResponse list;
  TANDEM_CHECK(listed.ok() && list.ParseFromString(listed->Flatten()));
  for (const v1::TableInfo& info : list.tables()) {
    tables[info.config().name()].rows = info.statistics().rows();
  }
  return tables;
}

template <typename Request>
void PsUnderTest::NoteIds(const Bytes& wire) {
  Request header;
  Bytes payload;
  TANDEM_CHECK(rpc::DecodeBulk(wire, &header, &payload).ok());
  const std::string flat = payload.Flatten();
  size_t at = 0;
  for (const auto& slice : header.slices()) {
    std::vector<uint64_t> ids(slice.num_ids());
    const size_t id_bytes = slice.ids() == v1::IDS_RAW ? ids.size() * sizeof(uint64_t) : slice.id_bytes();
    TANDEM_CHECK(id_bytes <= flat.size() - at);
    if (ids.empty()) {
      // Neither the vector nor the payload need to have memory.
    } else if (slice.ids() == v1::IDS_RAW) {
      std::memcpy(ids.data(), flat.data() + at, id_bytes);
    } else {
      TANDEM_CHECK(ps::UnpackIds({flat.data() + at, id_bytes}, ids.size(), ids.data()).ok());
    }
    at += id_bytes;
    if (slice.pooling() != v1::NONE) at += (slice.num_bags() + 1) * sizeof(uint32_t);
    if constexpr (std::is_same_v<Request, v1::PushRequest>) {
      at += (slice.pooling() == v1::NONE ? ids.size() : slice.num_bags()) *
            ps::RowBytes(slice.values(), slice.dim());
    } else if (slice.conditional()) {
      at += (ids.size() * slice.version_bits() + 7) / 8;
    }
    seen_[slice.table()].insert(ids.begin(), ids.end());
  }
  TANDEM_CHECK(at == flat.size());
}

bool PsUnderTest::Call(const std::string& method, const Bytes& request, bool has_response_memory) {
  const absl::StatusOr<Bytes> answer = Send(method, request, has_response_memory);
  if (!answer.ok()) {
    TANDEM_CHECK_MSG(answer.status().code() != absl::StatusCode::kInternal, answer.status().message());
    TANDEM_CHECK_MSG(Look() == before_, absl::StrCat("refused, but changed: ", answer.status().message()));
    return false;
  }
  if (method == "Push") {
    v1::PushResponse response;
    TANDEM_CHECK(response.ParseFromString(answer->Flatten()));
    v1::PushRequest header;
    Bytes payload;
    TANDEM_CHECK(rpc::DecodeBulk(request, &header, &payload).ok());
    if (!response.duplicate()) sequences_[header.worker()] = header.sequence() + 1;
    NoteIds<v1::PushRequest>(request);
  } else {
    NoteIds<v1::PullRequest>(request);
  }
  before_ = Look();
  size_t ids = 0;
  for (const auto& [name, snapshot] : before_) {
    TANDEM_CHECK_MSG(AllFinite(snapshot.values),
                     absl::StrCat("table ", name, " has a row that is not finite"));
    ids += seen_[name].size();
  }
  if (ids > kMostIds) Restart();
  return true;
}

}  // namespace tandem::fuzz
