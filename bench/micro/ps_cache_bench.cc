// SPDX-License-Identifier: Apache-2.0
// Measures what the hot-row cache saves and costs. Prints one JSON object to stdout.
//
//   build/bench/ps_cache_bench --dim 16 --max-uses 8
//
// Workers (threads, each with its own client) pull the distinct ids of batches of Zipf-distributed lookups
// from servers in this process, and push gradients for them. The channels count the bytes of whole messages.
// `--bytes 0` measures the same without a cache. If there is a cache, the program then measures its hits per
// second, in turn with a plain prefetched gather of the same rows.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "base/random.h"
#include "base/status.h"
#include "bench/micro/ps_cache_flags.h"
#include "nlohmann/json.hpp"
#include "ps/client/cache/row_cache.h"
#include "ps/client/client.h"
#include "ps/dedupe.h"
#include "ps/server/parameter_server.h"
#include "ps/table.h"
#include "rpc/forwarding_channel.h"
#include "rpc/transport/loopback.h"

namespace tandem::ps {
namespace {

// Draws Zipf-distributed ids from cumulative probabilities.
class Zipf {
 public:
  Zipf(uint64_t n, double exponent) : sums_(n) {
    double sum = 0;
    for (uint64_t i = 0; i < n; ++i) sums_[i] = sum += std::pow(static_cast<double>(i + 1), -exponent);
  }
  uint64_t Draw(CounterRandom& random) const {
    const double at = random.UniformDouble() * sums_.back();
    return std::min<uint64_t>(std::upper_bound(sums_.begin(), sums_.end(), at) - sums_.begin(),
                              sums_.size() - 1);
  }

 private:
  std::vector<double> sums_;
};

// Counts the bytes of messages. Claims to be a socket, so that ids are packed as for a socket.
class CountingChannel : public rpc::ForwardingChannel {
 public:
  struct Counts {
    std::atomic<uint64_t> pull_request{0}, pull_response{0}, push_request{0};
    void Clear() { pull_request = pull_response = push_request = 0; }
  };
  CountingChannel(std::unique_ptr<rpc::Channel> channel, Counts* counts)
      : ForwardingChannel(std::move(channel)), counts_(counts) {}
  void CallAsync(absl::string_view method, Bytes request, const rpc::CallOptions& options,
                 Done done) override {
    if (absl::EndsWith(method, "/Push")) counts_->push_request += request.size();
    if (!absl::EndsWith(method, "/Pull"))
      return ForwardingChannel::CallAsync(method, std::move(request), options, std::move(done));
    counts_->pull_request += request.size();
    ForwardingChannel::CallAsync(
        method, std::move(request), options,
        [counts = counts_, done = std::move(done)](absl::StatusOr<Bytes> response) mutable {
          if (response.ok()) counts->pull_response += response->size();
          std::move(done)(std::move(response));
        });
  }
  absl::string_view transport() const override { return "counted"; }

 private:
  Counts* const counts_;
};

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

double Seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// Gathers rows from an array that is indexed by id, with prefetching.
void PlainGather(const std::vector<float>& rows, uint32_t dim, const std::vector<uint64_t>& ids, float* out) {
  constexpr size_t kAhead = 24;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i + kAhead < ids.size()) {
      const char* const row = reinterpret_cast<const char*>(rows.data() + ids[i + kAhead] * dim);
      for (size_t b = 0; b < dim * sizeof(float); b += 64) __builtin_prefetch(row + b, 0, 2);
    }
    std::memcpy(out + i * dim, rows.data() + ids[i] * dim, dim * sizeof(float));
  }
}

// Measures hits per second of the cache and rows per second of a plain gather: medians of alternated runs.
void TimeHits(const CacheBenchFlags& options, const Zipf& zipf, nlohmann::ordered_json* result) {
  const ShardMap map = ShardMap::Even(1);
  CacheOptions cache_options = options.cache;
  cache_options.bytes = std::max<size_t>(cache_options.bytes, options.ids * (options.dim * 4 + 64));
  RowCache cache(EmbeddingTable("t", options.dim, Sgd(1), Zeros()), cache_options, &map);
  std::vector<float> rows(options.ids * options.dim, 1.0f);
  {
    std::vector<uint64_t> all(options.ids);
    std::vector<uint32_t> positions(options.ids), requested(options.ids, 0);
    const std::vector<uint8_t> sent(options.ids, 1);
    for (uint64_t i = 0; i < options.ids; ++i) all[i] = positions[i] = static_cast<uint32_t>(i);
    const uint64_t one[] = {1};
    cache.Accept({.ids = all,
                  .requested = requested.data(),
                  .sent = sent.data(),
                  .positions = positions.data(),
                  .rows = rows.data(),
                  .versions = one,
                  .applied = one,
                  .generations = one});
  }
  std::vector<std::vector<uint64_t>> batches(8);
  Deduper deduper;
  CounterRandom random(5, 5);
  for (std::vector<uint64_t>& batch : batches) {
    std::vector<uint64_t> ids(options.lookups);
    for (uint64_t& id : ids) id = zipf.Draw(random);
    std::vector<uint32_t> index;
    deduper.Run(ids, &batch, &index);
  }
  std::vector<float> out(options.lookups * options.dim);
  std::vector<uint32_t> versions(options.lookups);
  std::vector<RowCache::Copy> copies(options.lookups);
  std::vector<double> hits, gathers;
  for (int run = 0; run < 15; ++run) {
    size_t count = 0;
    auto begin = std::chrono::steady_clock::now();
    for (const std::vector<uint64_t>& batch : batches) {
      cache.Find(batch, out.data(), versions.data(), copies.data());
      count += batch.size();
    }
    hits.push_back(count / Seconds(std::chrono::steady_clock::now() - begin));
    begin = std::chrono::steady_clock::now();
    for (const std::vector<uint64_t>& batch : batches) PlainGather(rows, options.dim, batch, out.data());
    gathers.push_back(count / Seconds(std::chrono::steady_clock::now() - begin));
  }
  std::sort(hits.begin(), hits.end());
  std::sort(gathers.begin(), gathers.end());
  (*result)["cache_hits_per_s"] = hits[hits.size() / 2];
  (*result)["plain_gather_rows_per_s"] = gathers[gathers.size() / 2];
}

int Run(const CacheBenchFlags& options) {
  std::vector<std::unique_ptr<ParameterServer>> servers;
  std::vector<std::shared_ptr<const std::vector<rpc::Service>>> services;
  for (int s = 0; s < options.servers; ++s) {
    servers.push_back(std::make_unique<ParameterServer>(ParameterServerOptions{
        .index = static_cast<uint32_t>(s), .num_servers = static_cast<uint32_t>(options.servers)}));
    services.push_back(std::make_shared<const std::vector<rpc::Service>>(
        std::vector<rpc::Service>{servers.back()->service()}));
  }
  CountingChannel::Counts counts;
  v1::TableConfig table = EmbeddingTable("t", options.dim, Adagrad(0.01f), Uniform(-0.01f, 0.01f));
  *table.mutable_update_mode() = Async();
  table.set_num_workers(options.workers);
  std::vector<std::unique_ptr<Client>> clients;
  for (int w = 0; w < options.workers; ++w) {
    std::vector<std::unique_ptr<rpc::Channel>> channels;
    for (const auto& service : services) {
      channels.push_back(std::make_unique<CountingChannel>(rpc::ConnectLoopback(service), &counts));
    }
    auto client = Client::Connect(std::move(channels), {.worker = static_cast<uint32_t>(w)});
    Check(client.status());
    clients.push_back(*std::move(client));
    Check(clients[w]->CreateTable(table));
    WireOptions wire;
    if (options.wire == "f16") wire.pull_values = v1::VALUES_F16;
    if (options.wire == "bf16") wire.pull_values = v1::VALUES_BF16;
    if (options.wire == "int8") wire.pull_values = v1::VALUES_INT8;
    Check(clients[w]->SetWire("t", wire));
    Check(clients[w]->SetCache("t", options.cache));
  }
  const Zipf zipf(options.ids, options.zipf);
  std::atomic<uint64_t> rows_pulled{0};
  std::vector<CacheStatistics> before(options.workers);
  double pull_seconds = 0;
  const auto pass = [&](int first, int last) {
    std::vector<std::thread> threads;
    std::vector<double> seconds(options.workers, 0);
    for (int w = 0; w < options.workers; ++w) {
      threads.emplace_back([&, w] {
        Deduper deduper;
        std::vector<uint64_t> lookups(options.lookups), ids;
        std::vector<uint32_t> index;
        std::vector<float> rows(options.lookups * options.dim),
            gradients(options.lookups * options.dim, 1e-3f);
        for (int step = first; step < last; ++step) {
          CounterRandom random(w, step);
          for (uint64_t& id : lookups) id = zipf.Draw(random);
          deduper.Run(lookups, &ids, &index);
          const auto begin = std::chrono::steady_clock::now();
          const auto versions =
              clients[w]->Pull(step, false, {{.table = "t", .ids = ids, .rows = rows.data()}});
          seconds[w] += Seconds(std::chrono::steady_clock::now() - begin);
          Check(versions.status());
          rows_pulled += ids.size();
          Check(clients[w]->Push(step, {{.table = "t",
                                         .ids = ids,
                                         .gradients = gradients.data(),
                                         .pulled_versions = (*versions)[0],
                                         .repeats = false}}));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const double s : seconds) pull_seconds += s;
  };
  pass(0, options.warmup);
  rows_pulled = 0;
  pull_seconds = 0;
  counts.Clear();
  CacheStatistics warm;
  for (auto& client : clients) warm.Add(client->CacheStatisticsOf("t").value());
  pass(options.warmup, options.warmup + options.steps);
  for (auto& client : clients) Check(client->PushDeferred());
  CacheStatistics cache;
  for (auto& client : clients) cache.Add(client->CacheStatisticsOf("t").value());
  const double rows = static_cast<double>(rows_pulled);
  const double lookups = static_cast<double>(cache.lookups - warm.lookups);
  nlohmann::ordered_json result = {
      {"ids", options.ids},
      {"zipf", options.zipf},
      {"lookups_per_step", options.lookups},
      {"dim", options.dim},
      {"wire", options.wire},
      {"workers", options.workers},
      {"servers", options.servers},
      {"steps", options.steps},
      {"cache_bytes", options.cache.bytes},
      {"max_age", options.cache.max_age},
      {"max_uses", options.cache.max_uses},
      {"push_bound", options.cache.push_bound},
      {"rows_per_step", rows / options.steps / options.workers},
      {"request_bytes_per_row", counts.pull_request / rows},
      {"answer_bytes_per_row", counts.pull_response / rows},
      {"pull_bytes_per_row", (counts.pull_request + counts.pull_response) / rows},
      {"push_bytes_per_row", counts.push_request / rows},
      {"pull_us_per_step", pull_seconds * 1e6 / options.steps / options.workers}};
  if (options.cache.bytes > 0) {
    const double ages = cache.age_mean * static_cast<double>(cache.lookups) -
                        warm.age_mean * static_cast<double>(warm.lookups);
    result["hit_rate"] = static_cast<double>(cache.hits() - warm.hits()) / lookups;
    result["unasked_rate"] = static_cast<double>(cache.locally_served - warm.locally_served) / lookups;
    result["refreshed_rate"] = static_cast<double>(cache.refreshed - warm.refreshed) / lookups;
    result["missed_rate"] = static_cast<double>(cache.missed - warm.missed) / lookups;
    result["cached_rows"] = cache.rows;
    result["age_mean"] = ages / lookups;
    result["age_max"] = cache.age_max;
    TimeHits(options, zipf, &result);
  }
  std::printf("%s\n", result.dump().c_str());
  clients.clear();
  for (auto& server : servers) server->Stop();
  return 0;
}

}  // namespace
}  // namespace tandem::ps

int main(int argc, char** argv) {
  tandem::ps::CacheBenchFlags flags;
  if (const std::optional<int> code = tandem::ps::ParseCacheBenchFlags(argc, argv, &flags)) return *code;
  return tandem::ps::Run(flags);
}
