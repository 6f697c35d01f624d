// SPDX-License-Identifier: Apache-2.0
// Compares all_reduce of a process group with plain NCCL calls, on GPUs. scripts/gpu_check runs it.
//
//   nccl_all_reduce                      one rank
//   nccl_all_reduce RANK WORLD FILE      one of WORLD ranks, which meet in a store in FILE
//
// Prints one JSON object for each size. `*_us` is the median time from the call until the sum is there,
// `*_issue_us` the median time for which the call itself keeps the thread. Exit code 77: no GPU, or no NCCL.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/store/file_store.h"
#include "cluster/store/memory_store.h"
#include "collectives/backends/nccl/dlopen_api.h"
#include "collectives/backends/nccl/nccl_backend.h"
#include "collectives/process_group.h"

namespace tandem::collectives::nccl {
namespace {

constexpr int kWarmUp = 5;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

absl::Status Ok(absl::string_view what, int error) {
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(what, " fails with ", error));
}

// A communicator of plain NCCL calls, and a stream.
class Plain {
 public:
  static absl::StatusOr<std::unique_ptr<Plain>> Make(const Apis& apis, cluster::Store* store, int rank,
                                                     int world) {
    auto plain = std::make_unique<Plain>();
    plain->apis_ = apis;
    UniqueId id;
    if (rank == 0) {
      TANDEM_RETURN_IF_ERROR(Ok("ncclGetUniqueId", static_cast<int>(apis.nccl->GetUniqueId(&id))));
      TANDEM_RETURN_IF_ERROR(store->Set("plain", absl::string_view(id.bytes, sizeof(id.bytes))));
    } else {
      TANDEM_ASSIGN_OR_RETURN(const std::string text, store->Get("plain", absl::Seconds(60)));
      std::memcpy(id.bytes, text.data(), std::min(text.size(), sizeof(id.bytes)));
    }
    int version = 0;
    TANDEM_RETURN_IF_ERROR(Ok("ncclGetVersion", static_cast<int>(apis.nccl->GetVersion(&version))));
    Config config = ConfigFor(version);
    config.blocking = 1;
    TANDEM_RETURN_IF_ERROR(Ok("ncclCommInitRankConfig", static_cast<int>(apis.nccl->CommInitRankConfig(
                                                            &plain->comm_, world, id, rank, &config))));
    TANDEM_RETURN_IF_ERROR(Ok("cudaStreamCreate", apis.cuda->StreamCreateNonBlocking(&plain->stream_)));
    TANDEM_RETURN_IF_ERROR(Ok("cudaEventCreate", apis.cuda->EventCreate(&plain->event_)));
    return plain;
  }
  ~Plain() {
    if (comm_ != nullptr) apis_.nccl->CommDestroy(comm_);
    if (event_ != nullptr) apis_.cuda->EventDestroy(event_);
    if (stream_ != nullptr) apis_.cuda->StreamDestroy(stream_);
  }
  absl::Status Issue(float* data, size_t count) {
    return Ok("ncclAllReduce", static_cast<int>(apis_.nccl->AllReduce(data, data, count, Type::kF32,
                                                                      RedOp::kSum, comm_, stream_)));
  }
  absl::Status Finish() {
    TANDEM_RETURN_IF_ERROR(Ok("cudaEventRecord", apis_.cuda->EventRecord(event_, stream_)));
    int state;
    while ((state = apis_.cuda->EventQuery(event_)) == cuda::kCudaNotReady) {
    }
    apis_.cuda->GetLastError();
    return Ok("cudaEventQuery", state);
  }

 private:
  Apis apis_;
  Comm comm_ = nullptr;
  void *stream_ = nullptr, *event_ = nullptr;
};

struct Times {
  std::vector<double> whole, issue;
};

template <typename Issue, typename Finish>
absl::Status Measure(int rounds, const Issue& issue, const Finish& finish, Times* times) {
  for (int i = -kWarmUp; i < rounds; ++i) {
    const absl::Time begin = MonotonicNow();
    TANDEM_RETURN_IF_ERROR(issue());
    const absl::Time issued = MonotonicNow();
    TANDEM_RETURN_IF_ERROR(finish());
    if (i < 0) continue;
    times->issue.push_back(absl::ToDoubleMicroseconds(issued - begin));
    times->whole.push_back(absl::ToDoubleMicroseconds(MonotonicNow() - begin));
  }
  return absl::OkStatus();
}

absl::Status Run(int rank, int world, cluster::Store* store) {
  TANDEM_ASSIGN_OR_RETURN(const Apis apis, LoadApis());
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Plain> plain, Plain::Make(apis, store, rank, world));
  ProcessGroupOptions options;
  options.backend = "cuda:nccl";
  options.rank = rank;
  options.world_size = world;
  options.interface_address = "127.0.0.1";
  TANDEM_ASSIGN_OR_RETURN(const auto group, InitProcessGroup(store, options));
  constexpr size_t kLargest = size_t{1} << 30;
  for (size_t bytes = 1 << 10; bytes <= kLargest; bytes *= 4) {
    void* memory = nullptr;
    TANDEM_RETURN_IF_ERROR(Ok("cudaMalloc", apis.cuda->Malloc(&memory, bytes)));
    float* const data = static_cast<float*>(memory);
    const size_t count = bytes / sizeof(float);
    const int rounds = bytes >= (size_t{1} << 26) ? 20 : 200;
    Times theirs, ours;
    TANDEM_RETURN_IF_ERROR(Measure(
        rounds, [&] { return plain->Issue(data, count); }, [&] { return plain->Finish(); }, &theirs));
    Work work;
    TANDEM_RETURN_IF_ERROR(Measure(
        rounds,
        [&] {
          work = group->AllReduce(TensorView(data, count, DType::kF32, Device::Cuda(0)), {.async = true});
          return absl::OkStatus();
        },
        [&] { return work.Wait(); }, &ours));
    Times blocking;
    TANDEM_RETURN_IF_ERROR(Measure(
        rounds,
        [&] { return group->AllReduce(TensorView(data, count, DType::kF32, Device::Cuda(0))).Wait(); },
        [] { return absl::OkStatus(); }, &blocking));
    apis.cuda->Free(memory);
    if (rank != 0) continue;
    const double plain_us = Median(theirs.whole), tandem_us = Median(blocking.whole);
    std::printf(
        "{\"bytes\": %zu, \"ranks\": %d, \"plain_us\": %.2f, \"tandem_us\": %.2f, \"ratio\": %.3f, "
        "\"tandem_async_us\": %.2f, \"plain_issue_us\": %.2f, \"tandem_issue_us\": %.2f}\n",
        bytes, world, plain_us, tandem_us, tandem_us / plain_us, Median(ours.whole), Median(theirs.issue),
        Median(ours.issue));
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  int rank = 0, world = 1;
  if (argc != 1 && (argc != 4 || !absl::SimpleAtoi(argv[1], &rank) || !absl::SimpleAtoi(argv[2], &world))) {
    std::fprintf(stderr, "usage: nccl_all_reduce [RANK WORLD FILE]\n");
    return 2;
  }
  const absl::Status viable = NcclBackendFactory().viable(BackendOptions());
  if (!viable.ok()) {
    std::printf("nccl_all_reduce: skipped: %s\n", std::string(viable.message()).c_str());
    return 77;
  }
  std::unique_ptr<cluster::Store> store = std::make_unique<cluster::MemoryStore>();
  if (argc == 4) {
    auto opened = cluster::FileStore::Open(argv[3]);
    if (!opened.ok()) {
      std::fprintf(stderr, "nccl_all_reduce: %s\n", opened.status().ToString().c_str());
      return 1;
    }
    store = *std::move(opened);
  }
  const absl::Status status = Run(rank, world, store.get());
  if (!status.ok()) std::fprintf(stderr, "nccl_all_reduce: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace tandem::collectives::nccl

int main(int argc, char** argv) { return tandem::collectives::nccl::Main(argc, argv); }
