// SPDX-License-Identifier: Apache-2.0
// Gloo's collectives over TCP on this machine, timed as `tandem bench` times Tandem's. One process per rank;
// the processes find each other through an empty directory:
//
//   for r in 0 1; do bench/peers/gloo_collectives --rank $r --ranks 2 --store DIR allreduce --json & done;
//   wait

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/peers/peer_flags.h"

namespace tandem::bench {
namespace {

constexpr char kRing[] = "ring", kBcube[] = "bcube", kHalvingDoubling[] = "halving_doubling";
constexpr auto kTimeout = std::chrono::seconds(120);

// Gloo throws exceptions; main prints them.
class GlooTarget : public BenchTarget {
 public:
  GlooTarget(std::shared_ptr<gloo::Context> context, std::string algorithm)
      : context_(std::move(context)), algorithm_(std::move(algorithm)) {}

  int rank() const override { return context_->rank; }
  std::string backend() const override { return "gloo-" + algorithm_; }

  absl::Status Prepare(const BenchCase& c, const BufferSets& buffers) override {
    if (c.dtype != DType::kF32 && c.op != BenchOp::kBarrier) return absl::UnimplementedError("only f32");
    case_ = c;
    buffers_ = &buffers;
    halving_doubling_.clear();
    if (c.op != BenchOp::kAllReduce || algorithm_ != kHalvingDoubling) return absl::OkStatus();
    for (size_t s = 0; s < buffers.size(); ++s) {
      halving_doubling_.push_back(std::make_unique<gloo::AllreduceHalvingDoubling<float>>(
          context_, std::vector<float*>{static_cast<float*>(buffers.out(s))}, static_cast<int>(c.count())));
    }
    return absl::OkStatus();
  }

  absl::Status Run(uint64_t first, uint64_t count) override {
    for (uint64_t i = first; i < first + count; ++i) {
      switch (case_.op) {
        case BenchOp::kAllReduce:
          AllReduce(i);
          break;
        case BenchOp::kBroadcast:
          Broadcast(i);
          break;
        case BenchOp::kAllGather:
          AllGather(i);
          break;
        case BenchOp::kAllToAll:
          AllToAll(i);
          break;
        case BenchOp::kBarrier:
          DoBarrier();
          break;
        default:
          return absl::UnimplementedError("Gloo has no such function");
      }
    }
    return absl::OkStatus();
  }

  absl::Status Barrier() override {
    DoBarrier();
    return absl::OkStatus();
  }

  absl::Status MaxOverRanks(absl::Span<double> values) override {
    gloo::AllreduceOptions options(context_);
    options.setOutput(values.data(), values.size());
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::max<double>));
    options.setTag(2);
    options.setTimeout(kTimeout);
    gloo::allreduce(options);
    return absl::OkStatus();
  }

 private:
  float* in(uint64_t i) const { return static_cast<float*>(buffers_->in(i)); }
  float* out(uint64_t i) const { return static_cast<float*>(buffers_->out(i)); }

  void AllReduce(uint64_t i) {
    if (!halving_doubling_.empty()) {
      // Gloo has this operation in place only; out of place, a program would copy first.
      if (!case_.in_place) std::memcpy(out(i), in(i), case_.actual_bytes());
      return halving_doubling_[i & (halving_doubling_.size() - 1)]->run();
    }
    gloo::AllreduceOptions options(context_);
    if (!case_.in_place) options.setInput(in(i), case_.count());
    options.setOutput(out(i), case_.count());
    options.setAlgorithm(algorithm_ == kBcube ? gloo::AllreduceOptions::Algorithm::BCUBE
                                              : gloo::AllreduceOptions::Algorithm::RING);
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    options.setTag(1);
    options.setTimeout(kTimeout);
    gloo::allreduce(options);
  }
  void Broadcast(uint64_t i) {
    gloo::BroadcastOptions options(context_);
    options.setOutput(out(i), case_.count());
    options.setRoot(0);
    options.setTag(1);
    options.setTimeout(kTimeout);
    gloo::broadcast(options);
  }
  void AllGather(uint64_t i) {
    gloo::AllgatherOptions options(context_);
    if (!case_.in_place) options.setInput(in(i), case_.part());
    options.setOutput(out(i), case_.count());
    options.setTag(1);
    options.setTimeout(kTimeout);
    gloo::allgather(options);
  }
  void AllToAll(uint64_t i) {
    gloo::AlltoallOptions options(context_);
    options.setInput(in(i), case_.count());
    options.setOutput(out(i), case_.count());
    options.setTag(1);
    options.setTimeout(kTimeout);
    gloo::alltoall(options);
  }
  void DoBarrier() {
    gloo::BarrierOptions options(context_);
    options.setTag(3);
    options.setTimeout(kTimeout);
    gloo::barrier(options);
  }

  const std::shared_ptr<gloo::Context> context_;
  const std::string algorithm_;
  BenchCase case_;
  const BufferSets* buffers_ = nullptr;
  std::vector<std::unique_ptr<gloo::Algorithm>> halving_doubling_;  // one per set of buffers
};

int Main(int argc, char** argv) {
  PeerFlags flags;
  int rank = 0, ranks = 1;
  std::string store, algorithm = kRing;
  const std::vector<ExtraFlag> own = {
      {"--rank", "Of this process", &rank},
      {"--ranks", "How many there are", &ranks},
      {"--store", "A directory that all ranks see, empty at the start", &store},
      {"--algorithm", "Of allreduce", &algorithm, /*required=*/false, {kRing, kBcube, kHalvingDoubling}}};
  if (const std::optional<int> code =
          ParsePeerFlags("Gloo's collectives, timed; start one for each rank", argc, argv, &flags, own)) {
    return *code;
  }

  gloo::transport::tcp::attr attributes;
  attributes.hostname = "127.0.0.1";
  const auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  gloo::rendezvous::FileStore file_store(store);
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  context->setTimeout(kTimeout);
  context->connectFullMesh(file_store, device);
  GlooTarget bench_target(context, algorithm);
  const int code = MeasurePeer(&bench_target, flags, ranks);
  (void)bench_target.Barrier();  // a rank that leaves early would fail the others
  return code;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  try {
    return tandem::bench::Main(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gloo: %s\n", e.what());
    return 1;
  }
}
