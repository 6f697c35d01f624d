// SPDX-License-Identifier: Apache-2.0
// ps-lite with a server that keeps rows in a flat array: a pull copies them, a push adds to them. There is no
// index and no optimizer, so it is an upper bound on the speed of ps-lite. Timed as `tandem bench ps` times
// Tandem's, over ZeroMQ's TCP, with ids sorted beforehand (ps-lite requires that):
//
//   bench/peers/pslite_ps --op pull,push --ids 16384 --dim 64 --in-flight 1,4 --json

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "bench/peers/ps_peer.h"
#include "ps/ps.h"

namespace tandem::bench {
namespace {

// Joins the group of one server, one worker and one scheduler at `port`; returns when all have joined.
void Join(const char* role, const std::string& port) {
  ::setenv("DMLC_ROLE", role, 1);
  ::setenv("DMLC_PS_ROOT_URI", "127.0.0.1", 1);
  ::setenv("DMLC_PS_ROOT_PORT", port.c_str(), 1);
  ::setenv("DMLC_NODE_HOST", "127.0.0.1", 1);
  ::setenv("DMLC_NUM_SERVER", "1", 1);
  ::setenv("DMLC_NUM_WORKER", "1", 1);
  ps::Start(0);
}

class FlatRows {
 public:
  explicit FlatRows(const PsPeerSetup& setup) : dim_(setup.dim), values_(setup.rows * setup.dim) {
    for (uint64_t id = 0; id < setup.rows; ++id) {
      std::fill_n(values_.data() + id * dim_, dim_, FirstValue(id));
    }
  }

  void Respond(const ps::KVMeta& meta, const ps::KVPairs<float>& request, ps::KVServer<float>* server) {
    ps::KVPairs<float> response;
    const size_t ids = request.keys.size();
    if (meta.push) {
      for (size_t i = 0; i < ids; ++i) {
        float* const row = values_.data() + request.keys[i] * dim_;
        const float* const gradient = request.vals.data() + i * dim_;
        for (size_t d = 0; d < dim_; ++d) row[d] += gradient[d];
      }
    } else {
      // Not resize(), because it would write zeros first.
      float* const rows = new float[ids * dim_];
      response.keys = request.keys;
      response.vals = ps::SArray<float>(rows, ids * dim_, /*deletable=*/true);
      for (size_t i = 0; i < ids; ++i) {
        std::memcpy(rows + i * dim_, values_.data() + request.keys[i] * dim_, dim_ * sizeof(float));
      }
    }
    server->Response(meta, response);
  }

 private:
  const size_t dim_;
  std::vector<float> values_;
};

int Serve(const PsPeerSetup& setup, const std::function<void(std::string)>& announce) {
  const std::string port = std::to_string(FreePort());
  announce(port);  // closes its pipe too, before a child process could keep it open
  if (::fork() == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    Join("scheduler", port);
    for (;;) ::pause();
  }
  // Created after the fork: pages shared with the scheduler would be copied on the first write.
  FlatRows rows(setup);
  Join("server", port);
  ps::KVServer<float> server(0);
  server.set_request_handle([&rows](const ps::KVMeta& meta, const ps::KVPairs<float>& request,
                                    ps::KVServer<float>* self) { rows.Respond(meta, request, self); });
  for (;;) ::pause();
}

class PsLiteClient : public PsPeer {
 public:
  explicit PsLiteClient(size_t dim) : dim_(dim), worker_(0, 0) {}

  std::vector<double> Run(const PsCase& c, const IdBatches& batches, size_t next, double end) override {
    if (next == 0) Sort(batches);  // the warm-up run comes first
    const bool pull = c.op == PsOp::kPull;
    std::vector<std::vector<float>> pulled(static_cast<size_t>(c.in_flight));
    const std::vector<float> gradients(c.ids * dim_, 0.0625f);
    struct Outstanding {
      size_t batch;
      std::vector<float>* rows;
      int call;
      double begin;
    };
    std::deque<Outstanding> outstanding;
    std::vector<double> latencies_us;
    const auto start = [&](std::vector<float>* rows) {
      const size_t batch = next++ % batches.size();
      const double begin = Now();
      const int call = pull ? worker_.Pull(sorted_[batch], rows) : worker_.Push(sorted_[batch], gradients);
      outstanding.push_back({batch, rows, call, begin});
    };
    if (!pull) pushed_ = true;
    for (std::vector<float>& rows : pulled) start(&rows);
    while (!outstanding.empty()) {
      const Outstanding done = outstanding.front();
      outstanding.pop_front();
      worker_.Wait(done.call);
      latencies_us.push_back((Now() - done.begin) * 1e6);
      if (pull && !Right(sorted_[done.batch], *done.rows)) return {};
      if (Now() < end) start(done.rows);
    }
    return latencies_us;
  }

 private:
  void Sort(const IdBatches& batches) {
    sorted_.assign(batches.begin(), batches.end());
    for (std::vector<uint64_t>& ids : sorted_) std::sort(ids.begin(), ids.end());
  }

  bool Right(const std::vector<uint64_t>& ids, const std::vector<float>& rows) const {
    bool right = rows.size() == ids.size() * dim_;
    for (size_t i = 0; right && !pushed_ && i < ids.size(); i += 251)
      right = rows[i * dim_] == FirstValue(ids[i]);
    if (!right) std::fprintf(stderr, "pslite_ps: a wrong row\n");
    return right;
  }

  const size_t dim_;
  ps::KVWorker<float> worker_;
  IdBatches sorted_;
  bool pushed_ = false;
};

PsPeer* Connect(const PsPeerSetup& setup, const std::string& port) {
  Join("worker", port);
  return new PsLiteClient(setup.dim);
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  const int code =
      tandem::bench::RunPsPeer(argc, argv, "pslite_ps", tandem::bench::Serve, tandem::bench::Connect);
  // ps-lite's finalization would wait for the server, which has ended.
  std::fflush(stdout);
  ::_exit(code);
}
