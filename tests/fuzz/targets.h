// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_FUZZ_TARGETS_H_
#define TANDEM_TESTS_FUZZ_TARGETS_H_

// The fuzz targets: code that reads bytes of a peer, or files of somebody else. A target takes any bytes, and
// aborts if the tested code breaks a promise of its header. fuzz_main.cc makes a libFuzzer program of each
// (scripts/fuzz). corpus_test.cc runs all of them over the kept corpus, tests/fuzz/corpus/NAME/, over inputs
// that real writers make, and over mutations of both.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace tandem::fuzz {

using Input = absl::Span<const uint8_t>;

struct Target {
  std::string name;
  void (*run)(Input input);
  // The number of mutations that corpus_test.cc runs.
  int mutations = 3000;
  // Returns inputs that real writers have made; nullptr: the kept corpus is enough.
  std::vector<std::string> (*seeds)() = nullptr;
  // The input is a file: reading it may take twice its size and a fixed allowance.
  bool is_file = false;
};

void FuzzIdCodec(Input input);     // ps/wire/id_codec.h
void FuzzValueCodec(Input input);  // ps/wire/value_codec.h
void FuzzBulkCodec(Input input);   // rpc/wire/bulk_codec.h
void FuzzRing(Input input);        // rpc/shm/record.h
void FuzzFrame(Input input);       // rpc/wire/frame.h
// The server's and the client's end of a stream over a real connection, with a hostile client and a hostile
// server.
void FuzzStreamServer(Input input);
void FuzzStreamClient(Input input);
// The handlers of a parameter server: a refused request changes no table, and an accepted one leaves every
// row finite. ps_target.cc describes the forms of an input.
void FuzzPull(Input input);
void FuzzPush(Input input);
// The other services' handlers, the link between copies of a shard, and a recording of a process.
void FuzzAppend(Input input);
void FuzzStore(Input input);
void FuzzWeights(Input input);
void FuzzReplayService(Input input);
void FuzzRecording(Input input);
// What a process reads of a peer that it does not know yet.
void FuzzCaller(Input input);     // rpc/caller.h
void FuzzHttp(Input input);       // cluster/metrics/http_server.h
void FuzzMeshHello(Input input);  // collectives/backends/tcp/mesh_connector.h
// Files, which are read or refused. Inputs of most are those of RealFiles (real_files.h).
void FuzzCheckpoint(Input input);  // ps/checkpoint
void FuzzReplay(Input input);      // replay/checkpoint
void FuzzStoreLog(Input input);    // cluster/store/log.h
void FuzzShardLog(Input input);    // ps/log, ps/snapshot
void FuzzModel(Input input);       // worker/rl/run/model_file.h
void FuzzTraceDump(Input input);   // collectives/diagnostics/trace_file.h
void FuzzData(Input input);        // worker/data
void FuzzJob(Input input);         // worker/job

std::vector<std::string> AppendSeeds();
std::vector<std::string> StoreSeeds();
std::vector<std::string> WeightsSeeds();
std::vector<std::string> ReplayServiceSeeds();
std::vector<std::string> RecordingSeeds();
std::vector<std::string> CallerSeeds();
std::vector<std::string> HttpSeeds();
std::vector<std::string> MeshHelloSeeds();
std::vector<std::string> CheckpointSeeds();
std::vector<std::string> ReplaySeeds();
std::vector<std::string> StoreLogSeeds();
std::vector<std::string> ShardLogSeeds();
std::vector<std::string> ModelSeeds();
std::vector<std::string> TraceDumpSeeds();
std::vector<std::string> DataSeeds();
std::vector<std::string> JobSeeds();

// Returns all targets.
const std::vector<Target>& Targets();

}  // namespace tandem::fuzz

#endif  // TANDEM_TESTS_FUZZ_TARGETS_H_
