// SPDX-License-Identifier: Apache-2.0
// Redis as a parameter server: a row is a string value, a pull is MGET and a push MSET (without an optimizer:
// the client would have to compute the new rows). Calls in flight are pipelined on one connection. Timed as
// `tandem bench ps` times Tandem's, with a redis-server that this program starts:
//
//   bench/peers/redis_ps --op pull,push --ids 16384 --dim 64 --in-flight 1,4 --transport unix --json

#include <hiredis/hiredis.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/peers/ps_peer.h"

namespace tandem::bench {
namespace {

int Serve(const PsPeerSetup& setup, const std::function<void(std::string)>& announce) {
  const bool local = setup.transport == "unix";
  const std::string port = local ? "0" : std::to_string(FreePort());
  const std::string path = "/tmp/redis-ps-" + std::to_string(::getpid());
  announce(local ? path : port);
  if (std::freopen("/dev/null", "w", stdout) == nullptr) return 1;
  ::execlp("redis-server", "redis-server", "--port", port.c_str(), "--bind", "127.0.0.1", "--unixsocket",
           path.c_str(), "--save", "", "--appendonly", "no", static_cast<char*>(nullptr));
  return 1;
}

class RedisClient : public PsPeer {
 public:
  RedisClient(redisContext* context, size_t dim) : context_(context), dim_(dim) {}
  ~RedisClient() override { redisFree(context_); }

  bool Fill(uint64_t rows) {
    std::vector<uint64_t> ids;
    std::vector<float> values;
    for (uint64_t first = 0; first < rows; first += kFillIds) {
      ids.clear();
      for (uint64_t id = first; id < std::min(first + kFillIds, rows); ++id) ids.push_back(id);
      values.resize(ids.size() * dim_);
      for (size_t i = 0; i < values.size(); ++i) values[i] = FirstValue(ids[i / dim_]);
      Append(/*pull=*/false, ids, values.data());
      if (!Receive(/*pull=*/false, ids)) return false;
    }
    pushed_ = false;
    return true;
  }

  std::vector<double> Run(const PsCase& c, const IdBatches& batches, size_t next, double end) override {
    const bool pull = c.op == PsOp::kPull;
    values_.assign(c.ids * dim_, 0.5f);
    struct Outstanding {
      size_t batch;
      double begin;
    };
    std::deque<Outstanding> outstanding;
    std::vector<double> latencies_us;
    const auto start = [&] {
      outstanding.push_back({next++ % batches.size(), Now()});
      Append(pull, batches[outstanding.back().batch], values_.data());
      for (int done = 0; done == 0 && context_->err == 0;) redisBufferWrite(context_, &done);
    };
    for (int i = 0; i < c.in_flight; ++i) start();
    while (!outstanding.empty()) {
      if (!Receive(pull, batches[outstanding.front().batch])) return {};
      latencies_us.push_back((Now() - outstanding.front().begin) * 1e6);
      outstanding.pop_front();
      if (Now() < end) start();
    }
    return latencies_us;
  }

 private:
  static constexpr uint64_t kFillIds = 4096;

  void Append(bool pull, const std::vector<uint64_t>& ids, const float* values) {
    const size_t row_bytes = dim_ * sizeof(float);
    words_.assign(1, pull ? "MGET" : "MSET");
    sizes_.assign(1, 4);
    for (size_t i = 0; i < ids.size(); ++i) {
      words_.push_back(reinterpret_cast<const char*>(&ids[i]));
      sizes_.push_back(sizeof(uint64_t));
      if (pull) continue;
      words_.push_back(reinterpret_cast<const char*>(values + i * dim_));
      sizes_.push_back(row_bytes);
    }
    if (!pull) pushed_ = true;
    redisAppendCommandArgv(context_, static_cast<int>(words_.size()), words_.data(), sizes_.data());
  }

  bool Receive(bool pull, const std::vector<uint64_t>& ids) {
    void* raw = nullptr;
    if (redisGetReply(context_, &raw) != REDIS_OK) {
      std::fprintf(stderr, "redis_ps: %s\n", context_->errstr);
      return false;
    }
    const std::unique_ptr<redisReply, void (*)(void*)> reply(static_cast<redisReply*>(raw), freeReplyObject);
    if (!pull) return reply->type == REDIS_REPLY_STATUS;
    rows_.resize(ids.size() * dim_);
    const size_t row_bytes = dim_ * sizeof(float);
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != ids.size()) return Wrong();
    for (size_t i = 0; i < ids.size(); ++i) {
      const redisReply& row = *reply->element[i];
      if (row.type != REDIS_REPLY_STRING || row.len != row_bytes) return Wrong();
      std::memcpy(&rows_[i * dim_], row.str, row_bytes);
      if (!pushed_ && rows_[i * dim_] != FirstValue(ids[i])) return Wrong();
    }
    return true;
  }
  static bool Wrong() {
    std::fprintf(stderr, "redis_ps: an answer is not what was stored\n");
    return false;
  }

  redisContext* const context_;
  const size_t dim_;
  bool pushed_ = false;
  std::vector<const char*> words_;
  std::vector<size_t> sizes_;
  std::vector<float> values_, rows_;
};

PsPeer* Connect(const PsPeerSetup& setup, const std::string& address) {
  for (int attempt = 0; attempt < 100; ++attempt) {  // the server may still be starting
    redisContext* const context = setup.transport == "unix" ? redisConnectUnix(address.c_str())
                                                            : redisConnect("127.0.0.1", std::stoi(address));
    if (context != nullptr && context->err == 0) {
      auto client = std::make_unique<RedisClient>(context, setup.dim);
      return client->Fill(setup.rows) ? client.release() : nullptr;
    }
    if (context != nullptr) redisFree(context);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return nullptr;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  return tandem::bench::RunPsPeer(argc, argv, "redis_ps", tandem::bench::Serve, tandem::bench::Connect);
}
